"""Standing checks."""

from __future__ import annotations

from rlvlm.pipelines.gates import SpreadWatch


def test_rewards_without_spread_are_said_once_in_as_many_steps_as_asked():
    watch = SpreadWatch()
    told = [watch.check({"groups/no_spread": 1.0, "reward": 0.2}, 3, step) for step in range(1, 7)]
    assert [sentence is not None for sentence in told] == [False, False, True, False, False, True]
    assert "for 3 steps, up to step 3" in str(told[2])
    assert watch.check({"groups/no_spread": 0.9}, 3, 7) is None
    assert watch.steps == 0
    assert SpreadWatch().check({"groups/no_spread": 1.0}, 0, 1) is None
