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
    [[], ["rollout.n=1", "algorithm.advantage=reinforce_plus_plus"], ["algorithm.advantage=remax", "rollout.n=1"]],
)
def test_settings_that_do_something_pass(overrides):
    assert examine("quickstart", overrides)[1].problems == []
