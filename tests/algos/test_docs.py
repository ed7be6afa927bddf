import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs/make_algorithms.py"


def test_the_page_of_algorithms_is_up_to_date_and_names_every_part() -> None:
    script = runpy.run_path(str(SCRIPT))
    assert script["main"](["--check"]) == 0
    text = script["page"]()
    for _, _, registry, _ in script["KINDS"]:
        for name in registry.names():
            assert f"| `{name}` |" in text
            assert script["read_doc"](registry.get(name)).says
