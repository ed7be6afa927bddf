"""Settings that would do nothing are refused at check time, with what to change."""

from __future__ import annotations

import pytest

from rlvlm.conf.check import examine

REFUSED = [
    (["rollout.n=1"], "rollout.n is 1, but advantage 'grpo'"),
    (["rollout.n=1", "algorithm.advantage=rloo"], "rollout.n is 1, but advantage 'rloo'"),
    (["rollout.temperature=0"], "rollout.temperature is 0"),
    (["algorithm.value_loss=clipped"], "algorithm.value_loss trains a critic"),
    (["run.steps=0"], "run.steps is"),
    (["run.stop_at=0.9", "run.eval_every=0"], "run.stop_at is 0.9, but run.eval_every is 0"),
    (["run.stop_at=0.9", "run.eval_every=5", "data.eval=null"], "run.stop_at needs held-out records"),
    (["stages.warmup.actor.epochs=2"], "actor.epochs is 2, but supervised"),
    (["stages.warmup.actor.mini_batches=3"], "actor.mini_batches is 3, but supervised"),
    (["algorithm.advantage=gae"], "which no pipeline here trains"),
    (["rollout.top_k=1"], "rollout.top_k is 1, so all answers"),
    (
        ["rollout.n=1", "algorithm.advantage=remax", "algorithm.filters=[length, reward_spread]"],
        "but filter 'reward_spread'",
    ),
    (["algorithm.max_refills=3"], "algorithm.max_refills is 3, but algorithm.filters is empty"),
    (["algorithm.max_refills=0"], "algorithm.max_refills is 0, but algorithm.filters is empty"),
    (["algorithm.advantage={name: grpo, std: none, eps: 0.5}"], "has eps 0.5, which does nothing where std is 'none'"),
    (["algorithm.advantage={name: grpo, std: none, unbiased: false}"], "has unbiased False, which does nothing"),
    (["algorithm.advantage={name: grpo, mean: none, leave_one_out: true}"], "which does nothing where mean is 'none'"),
    (["algorithm.advantage={name: grpo, equal_groups: whitened}"], "which does nothing where whiten_tokens is False"),
    (["algorithm.advantage={name: grpo_passk, divide: false, eps: 1}"], "set divide to True"),
    (["algorithm.advantage={name: gdpo, divide: false, eps: 1}"], "set divide to True"),
    (["algorithm.correction={name: areal_rejection, agg: max}"], "set level to sequence"),
    (["algorithm.correction=[tis, {name: areal_rejection, agg: max}]"], "set level to sequence"),
    (
        ["algorithm.correction={name: rejection, statistic: k2, k1_ratio: engine/trainer}"],
        "does nothing where statistic is 'k2'",
    ),
    (["algorithm.kl_in_reward={weight: 0, controller: adaptive}"], "multiplies it, so that it stays 0"),
    (["algorithm.regularizers.kl_to_reference={weight: 0, controller: adaptive}"], "multiplies it, so that it stays 0"),
    (
        ["algorithm.advantage=gae", "algorithm.value_loss=clipped"],
        "leave it null, with an advantage that reads no values",
    ),
]


@pytest.mark.parametrize(("overrides", "said"), REFUSED, ids=[" ".join(given) for given, _ in REFUSED])
def test_a_setting_that_would_do_nothing_is_refused(overrides, said):
    _, found = examine("quickstart", overrides)
    assert any(said in problem for problem in found.problems), found.problems


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["actor.epochs=2", "actor.mini_batches=4"],  # for the stage that samples
        ["rollout.n=1", "algorithm.advantage=reinforce_plus_plus"],
        ["algorithm.advantage=remax", "rollout.n=1"],
        ["rollout.n=1", "algorithm.advantage=grpo", "+preset=verl"],
        ["+preset=areal", "algorithm.advantage={name: grpo, whiten_tokens: false}"],
        ["+preset=areal", "algorithm.advantage={name: grpo, equal_groups: zero}"],
        ["+preset=trl", "algorithm.advantage={name: grpo, std: none}"],
        ["algorithm.advantage={name: grpo, std: none, eps: 1e-6}"],
        ["algorithm.advantage={name: grpo, whiten_tokens: true, equal_groups: whitened}"],
        ["algorithm.correction={name: areal_rejection, level: sequence, agg: max}"],
        ["algorithm.filters=[reward_spread]", "algorithm.max_refills=3"],
        ["algorithm.regularizers.entropy=0"],
    ],
)
def test_settings_that_do_something_pass(overrides):
    assert examine("quickstart", overrides)[1].problems == []


def test_an_end_of_the_schedule_that_no_stage_reaches_is_said():
    told = "actor.optimizer.min_lr_ratio does nothing while actor.optimizer.schedule is constant."
    for overrides, said in (
        (["actor.optimizer.schedule=constant", "stages=[]"], True),
        (["actor.optimizer.schedule=linear", "stages=[]"], False),
        ([], False),  # the warm-up's rate falls
    ):
        _, found = examine("quickstart", [*overrides, "actor.optimizer.min_lr_ratio=0.1"])
        assert (told in found.notes) is said
