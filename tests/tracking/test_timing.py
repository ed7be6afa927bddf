"""Phases are timed and their memory is measured."""

from __future__ import annotations

import time

import pytest

from rlvlm.tracking.timing import PhaseTimer, peak_memory, reset_peak_memory


def test_a_phase_entered_twice_adds_up_and_collect_starts_anew():
    timer = PhaseTimer()
    for _ in range(2):
        with timer.phase("update"):
            time.sleep(0.02)
    first = timer.collect()
    assert 0.04 <= first["time/update"] < 1.0
    assert set(first) == {"time/update", "memory/update"}
    assert timer.collect() == {}
    with timer.phase("update"):
        pass
    assert timer.totals["update"] == pytest.approx(first["time/update"], abs=0.01)


def test_nested_phases_count_in_the_outer_one_too():
    timer = PhaseTimer()
    with timer.phase("outer"), timer.phase("inner"):
        time.sleep(0.02)
    seconds = timer.collect()
    assert seconds["time/outer"] >= seconds["time/inner"] >= 0.02


def test_a_phase_that_raises_is_still_timed():
    timer = PhaseTimer()
    with pytest.raises(RuntimeError), timer.phase("update"):
        raise RuntimeError
    assert "time/update" in timer.collect()


def test_memory_is_the_peak_of_the_phase_and_not_of_the_process():
    reset_peak_memory()
    ballast = bytearray(64 * 1024**2)
    if peak_memory() < 64:
        pytest.skip("this system does not report a resident peak")
    del ballast
    reset_peak_memory()
    if peak_memory() >= 64 + 1000:  # a process as large as that hides 64 MiB
        pytest.skip("the process is too large to tell")
    timer = PhaseTimer()
    with timer.phase("large"):
        with timer.phase("nested"):
            ballast = bytearray(256 * 1024**2)
        del ballast
    with timer.phase("small"):
        pass
    memory = timer.collect()
    assert memory["memory/large"] >= memory["memory/small"] + 200
    assert memory["memory/large"] == memory["memory/nested"]
