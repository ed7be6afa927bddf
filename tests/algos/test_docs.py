import runpy
from pathlib import Path

from torch import Tensor

from rlvlm.algos import ADVANTAGES

SCRIPT = Path(__file__).parents[2] / "docs/make_algorithms.py"


def test_the_page_of_algorithms_is_up_to_date_and_names_every_part() -> None:
    script = runpy.run_path(str(SCRIPT))
    assert script["main"](["--check"]) == 0
    text = script["page"]()
    for _, _, registry, _ in script["KINDS"]:
        for entry in registry.own_entries():
            assert f"| `{entry.name}` |" in text
            assert script["read_doc"](entry).says


def test_the_page_does_not_change_with_plug_ins_at_hand() -> None:
    def outside(rewards: Tensor, loss_mask: Tensor) -> Tensor:
        """What a plug-in computes."""
        return rewards.unsqueeze(-1) * loss_mask

    ADVANTAGES.register("outside")(outside)
    try:
        assert runpy.run_path(str(SCRIPT))["main"](["--check"]) == 0
    finally:
        del ADVANTAGES._entries["outside"]
