import pytest

from rlvlm.algos.conventions import Conventions
from rlvlm.algos.registries import ADVANTAGES, POLICY_LOSSES, REGULARIZERS
from rlvlm.errors import ConfigError, RegistryError

CONVENTIONS = Conventions(
    {
        "advantages": {"grpo": {"eps": 1e-4, "singleton": "reward"}},
        "regularizers": {"kl_to_reference": {"estimator": "k1"}, "overlong": {"bounded": False}},
    }
)


def test_a_node_takes_the_options_that_it_does_not_give() -> None:
    assert CONVENTIONS.fill(ADVANTAGES, "grpo") == {"name": "grpo", "eps": 1e-4, "singleton": "reward"}
    explicit = CONVENTIONS.fill(ADVANTAGES, {"name": "grpo", "eps": 0.5})
    assert explicit == {"name": "grpo", "eps": 0.5, "singleton": "reward"}
    assert CONVENTIONS.fill(ADVANTAGES, "rloo") == {"name": "rloo"}
    assert CONVENTIONS.fill(POLICY_LOSSES, "gspo") == "gspo"
    assert CONVENTIONS.fill(ADVANTAGES, None) is None


def test_a_weighted_node_is_found_by_its_key_or_its_name() -> None:
    filled = {"name": "kl_to_reference", "estimator": "k1", "weight": 0.1}
    assert CONVENTIONS.fill(REGULARIZERS, 0.1, "kl_to_reference") == filled
    assert CONVENTIONS.fill(REGULARIZERS, {"name": "kl_to_reference", "weight": 0.1}, "mine") == filled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"advantage": {}}, r"no kind of part 'advantage' \(did you mean 'advantages'\?\)"),
        ({"advantages": {"grpo": {"epz": 1}}}, r"advantage 'grpo' has no option 'epz' \(did you mean 'eps'\?\)"),
        ({"advantages": {"grpo": {"eps": "small"}}}, "option 'eps' of advantage 'grpo' can't be 'small'"),
        ({"advantages": {"grpo": 3}}, r"algorithm.conventions.advantages.grpo is a mapping of options, got 3"),
    ],
)
def test_what_there_is_not_is_named(options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=message):
        Conventions(options)


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(RegistryError, match=r"no advantage called 'gropo' \(did you mean 'grpo'\?\)"):
        Conventions({"advantages": {"gropo": {}}})
