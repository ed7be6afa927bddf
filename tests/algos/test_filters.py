from __future__ import annotations

from typing import Any

import pytest
import torch

from rlvlm.algos.registries import FILTERS
from rlvlm.errors import ConfigError

IDS = torch.tensor([4, 4, 9, 9, 2, 2, 2, 7])
REWARDS = torch.tensor([1.0, 0, 0.7, 0.7, 0.1, 0.1, 0.1, 1])
ACCURACY = torch.tensor([1.0, 1, 0, 1, 0, 0, 0, 1])
LENGTHS = torch.tensor([1, 3, 5, 5, 2, 2, 5, 0])


def kept(node: Any, rewards: torch.Tensor = REWARDS, **more: Any) -> list[int]:
    given = {
        "rewards": rewards,
        "scores": REWARDS,
        "scores_by_rule": {"accuracy": ACCURACY},
        "group_ids": IDS,
        "loss_mask": torch.arange(6) < LENGTHS[:, None],
        **more,
    }
    mask = FILTERS.build(node)(given)
    return sorted(set(IDS[mask].tolist()))


def test_only_groups_whose_rewards_differ_are_kept() -> None:
    assert kept("reward_spread") == [4]
    assert kept({"name": "reward_spread", "of": "accuracy"}) == [9]
    assert kept({"name": "reward_spread", "above": 1.0}) == []


def test_a_group_without_a_usable_reward_is_dropped() -> None:
    nan = float("nan")
    assert kept("reward_spread", torch.tensor([1, nan, 0, 1, nan, nan, nan, 1])) == [9]
    assert kept({"name": "mean_window", "low": -1, "high": 2}, torch.tensor([1, nan, 0, 1, nan, nan, nan, 1])) == [
        4,
        7,
        9,
    ]


def test_the_window_on_a_mean_is_open_and_may_look_at_one_rule() -> None:
    assert kept({"name": "mean_window", "low": 0.1, "high": 0.7}) == [4]
    assert kept({"name": "mean_window", "of": "accuracy"}) == [9]
    assert kept({"name": "mean_window", "of": "scores"}) == [2, 4, 9]


def test_groups_are_kept_by_their_mean_length() -> None:
    assert kept({"name": "length", "shortest": 2.0}) == [2, 4, 9]
    assert kept({"name": "length", "longest": 3.0}) == [2, 4, 7]


def test_an_unknown_rule_gets_its_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"can't look at 'acuracy'.*\(did you mean 'accuracy'\?\)"):
        kept({"name": "mean_window", "of": "acuracy"})
    with pytest.raises(ConfigError, match="got low 2 and high 1"):
        kept({"name": "mean_window", "low": 2, "high": 1})
