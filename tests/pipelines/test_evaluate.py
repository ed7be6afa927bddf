"""Evaluation: means over what was scored, errors counted apart, the same answers every time."""

from __future__ import annotations

import math

import pytest

from rlvlm.engines.inference.hf import HfEngine
from rlvlm.pipelines.evaluate import evaluate
from rlvlm.rewards import register_reward
from rlvlm.rewards.config import RewardConfig
from rlvlm.roles.config import RolloutConfig
from rlvlm.roles.reward import Reward
from rlvlm.roles.rollout import Rollout
from tests import tiny


@register_reward("test_even", isolated=False, override=True)
def even(completion: str, answer: str) -> float:
    """1 for records with an even answer, an error for the answer 3."""
    if answer == "3":
        raise RuntimeError("no idea")
    return float(int(answer) % 2 == 0)


@pytest.mark.parametrize("greedy", [True, False])
def test_accuracy_is_the_mean_of_the_rule_over_the_answers_that_were_scored(greedy):
    policy = tiny.policy("llava")
    rollout = Rollout(HfEngine(policy, shared=True), RolloutConfig(n=4, max_new_tokens=3))
    asked = tiny.prompts(policy, [[], [], [], [], []])  # answers 0 … 4
    with Reward(RewardConfig(rules={"test_even": 1.0}, max_error_rate=1.0)) as reward:
        batches = [asked.index([0, 1, 2]), asked.index([3, 4])]
        result = evaluate(rollout, reward, batches, rule="test_even", greedy=greedy, keep_rows=2)
    assert result.accuracy == pytest.approx(3 / 4)
    assert (result.prompts, result.errors) == (4, 1)
    assert sum(map(len, result.rows)) == 2
    assert result.metrics("eval/")["eval/accuracy"] == pytest.approx(0.75)
    assert result.metrics("eval/")["eval/reward_errors"] == 1
    assert 0 < result.length <= 3


def test_where_no_answer_could_be_scored_there_is_no_accuracy():
    policy = tiny.policy("llava")
    rollout = Rollout(HfEngine(policy, shared=True), RolloutConfig(n=4, max_new_tokens=3))
    asked = tiny.prompts(policy, [[], [], [], []]).index([3])  # answer 3 fails
    with Reward(RewardConfig(rules={"test_even": 1.0}, max_error_rate=1.0)) as reward:
        result = evaluate(rollout, reward, [asked], rule="test_even", greedy=False, keep_rows=2)
    assert (result.accuracy, result.prompts, result.errors) == (None, 0, 1)
    assert math.isnan(result.metrics("eval/")["eval/accuracy"])
