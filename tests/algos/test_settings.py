from __future__ import annotations

from typing import Any

import pytest

from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.errors import ConfigError

CRITIC = {"value_loss": "plain"}


def refused(settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        Algorithm(AlgorithmConfig(**settings))
    return str(caught.value)


@pytest.mark.parametrize("value", [-1.0, float("nan")])
@pytest.mark.parametrize("name", ["grpo", "grpo_passk", "gdpo"])
def test_what_keeps_a_division_finite_is_not_negative(name: str, value: float) -> None:
    assert (
        refused({"advantage": {"name": name, "eps": value}}) == f"option 'eps' of '{name}' is at least 0, got {value}."
    )


@pytest.mark.parametrize("value", [-1, 1.5, float("nan")])
@pytest.mark.parametrize(("name", "option"), [("gae", "gamma"), ("gae", "lam"), ("reinforce_plus_plus", "gamma")])
@pytest.mark.parametrize("critic", [{}, CRITIC], ids=["alone", "with a critic"])
def test_a_discount_lies_between_0_and_1(name: str, option: str, value: float, critic: dict[str, Any]) -> None:
    message = refused({"advantage": {"name": name, option: value}, **critic})
    assert message == f"option '{option}' of '{name}' lies between 0 and 1, got {value}."


@pytest.mark.parametrize("share", [2, 0, -0.1, float("nan")])
@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_a_share_is_a_part_of_the_whole(name: str, share: float) -> None:
    message = refused({"policy_loss": {"name": name, "share": share}})
    assert message == f"option 'share' of '{name}' is above 0 and at most 1, got {share}."


def adaptive(**options: float) -> dict[str, Any]:
    return {"weight": 0.1, "controller": {"name": "adaptive", **options}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl_in_reward": adaptive(target=-1)}, "option 'target' of 'adaptive' is above 0, got -1."),
        ({"regularizers": {"entropy": adaptive(horizon=0)}}, "option 'horizon' of 'adaptive' is above 0, got 0."),
        (
            {"kl_in_reward": {"weight": 0.1, "estimator": {"name": "k3", "max_value": -1}}},
            "option 'max_value' of 'k3' is above 0, got -1.",
        ),
        (
            {"regularizers": {"kl_to_reference": {"weight": 0.1, "estimator": {"name": "k3+", "max_value": 0}}}},
            "option 'max_value' of 'k3' is above 0, got 0.",
        ),
        (
            {"policy_loss": {"name": "kl_cov", "coefficient": -1}},
            "option 'coefficient' of 'kl_cov' is at least 0, got -1.",
        ),
        (
            {"advantage": {"name": "gdpo", "weights": {"exact": "much"}}},
            "option 'weights' of 'gdpo' gives 'exact' a finite number, got 'much'.",
        ),
        (
            {"filters": [{"name": "reward_spread", "above": -1}]},
            "option 'above' of 'reward_spread' is at least 0, got -1.",
        ),
        ({"filters": [{"name": "length", "shortest": -1}]}, "option 'shortest' of 'length' is at least 0, got -1."),
        ({"correction": {"name": "ratio_mask", "low": -1}}, "option 'low' of 'ratio_mask' is at least 0, got -1."),
    ],
)
def test_an_option_out_of_range_is_found_when_the_algorithm_is_made(settings: dict[str, Any], message: str) -> None:
    assert refused(settings) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask_truncated": "no"}, "algorithm.mask_truncated is true or false, got 'no'."),
        ({"seed": "x"}, "algorithm.seed is a whole number of at most 64 bits, got 'x'."),
        ({"seed": None}, "algorithm.seed is a whole number of at most 64 bits, got None."),
        ({"seed": 2**64}, f"algorithm.seed is a whole number of at most 64 bits, got {2**64}."),
        (
            {"regularizers": ["entropy"]},
            "algorithm.regularizers is a mapping from a name to a weight, got ['entropy'].",
        ),
        ({"filters": "length"}, "algorithm.filters is a list of nodes, got 'length'."),
        ({"correction": 2.0}, "algorithm.correction is a node, a list of nodes, or null, got 2.0."),
        (
            {"conventions": ["grpo"]},
            "algorithm.conventions is a mapping of options by kind and name of part, got ['grpo'].",
        ),
        (
            {"conventions": {"advantages": "grpo"}},
            "algorithm.conventions.advantages is a mapping of parts, got 'grpo'.",
        ),
    ],
)
def test_a_setting_of_the_wrong_kind_says_what_was_expected(settings: dict[str, Any], message: str) -> None:
    assert refused(settings) == message


def test_several_wrong_settings_are_told_of_together() -> None:
    assert len(refused({"seed": "x", "mask_truncated": "no"}).splitlines()) == 2


@pytest.mark.parametrize("seed", [0, -1, 2**64 - 1])
def test_every_seed_of_64_bits_is_taken(seed: int) -> None:
    first, again = (Algorithm(AlgorithmConfig(seed=seed)).state_dict()["generator"] for _ in range(2))
    other = Algorithm(AlgorithmConfig(seed=seed ^ 1)).state_dict()["generator"]
    assert first.equal(again)
    assert not first.equal(other)
