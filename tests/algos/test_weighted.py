import pytest

from rlvlm.algos.registries import REGULARIZERS
from rlvlm.algos.weighted import build_kl_in_reward, build_value_loss, build_weighted
from rlvlm.errors import ConfigError, RegistryError


def test_a_number_is_the_weight_and_a_mapping_gives_options_too() -> None:
    short = build_weighted(REGULARIZERS, "entropy", 0.1, "here")
    assert (short.name, short.part.name, short.weight, short.is_controlled) == ("entropy", "entropy", 0.1, False)
    long = build_weighted(REGULARIZERS, "kl", {"name": "kl_to_reference", "weight": 2, "estimator": "k2"}, "here")
    assert (long.name, long.weight, long.part.options) == ("kl", 2.0, {"estimator": "k2"})


def test_a_controller_moves_the_weight() -> None:
    term = build_weighted(
        REGULARIZERS, "entropy", {"weight": 1.0, "controller": {"name": "adaptive", "horizon": 10}}, "here"
    )
    assert term.is_controlled
    term.update(measured=100.0, num_samples=5)
    assert term.weight == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "'here.entropy' has no weight; give 'here.entropy.weight' a number"),
        ({"weight": True}, "'here.entropy.weight' is a finite number, got True"),
        (float("nan"), "'here.entropy.weight' is a finite number, got nan"),
        ([0.1], r"'here.entropy' is a weight or a mapping with 'weight', got \[0.1\]"),
        ({"weight": 0.1, "controller": "adaptiv"}, r"no controller called 'adaptiv' \(did you mean 'adaptive'\?\)"),
        ({"weight": 0.1, "power": 2}, "regularizer 'entropy' has no option 'power'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_with_its_path(node: object, message: str) -> None:
    with pytest.raises((ConfigError, RegistryError), match=message):
        build_weighted(REGULARIZERS, "entropy", node, "here")


def test_a_value_loss_weighs_one_and_the_kl_in_the_reward_is_k1_unless_said() -> None:
    value = build_value_loss("clipped")
    assert value is not None
    assert (value.name, value.weight) == ("value_loss", 1.0)
    kl = build_kl_in_reward(0.01)
    assert kl is not None
    assert (kl.part.name, kl.weight) == ("k1", 0.01)
    capped = build_kl_in_reward({"weight": 0.1, "estimator": {"name": "k3", "max_value": 10.0}})
    assert capped is not None
    assert capped.part.options == {"max_value": 10.0}
    assert build_value_loss(None) is build_kl_in_reward(None) is None
