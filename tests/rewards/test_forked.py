"""A copy of the process does the work that may end it."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from rlvlm.rewards.forked import run_forked


def _forever() -> bytes:
    while True:
        pass


def _memory() -> bytes:
    return bytes(1 << 30)


def _abort() -> bytes:
    os.abort()


def _sleeps() -> bytes:
    signal.pause()
    return b""


def test_what_the_work_gives_comes_back_whole() -> None:
    assert run_forked(lambda: b"", seconds=5, memory_mb=256) == b""
    assert run_forked(lambda: bytes(range(256)) * 10_000, seconds=5, memory_mb=256) == bytes(range(256)) * 10_000


@pytest.mark.parametrize("work", [_forever, _memory, _abort, lambda: 1 / 0])
def test_work_that_does_not_end_well_gives_none_and_leaves_no_process(work: object) -> None:
    before = psutil.Process().children()
    assert run_forked(work, seconds=1, memory_mb=256) is None  # type: ignore[arg-type]
    assert set(psutil.Process().children()) <= set(before)


def test_work_that_waits_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvlm.rewards.forked._WALL_FACTOR", 0.2)
    assert run_forked(_sleeps, seconds=1, memory_mb=256) is None
