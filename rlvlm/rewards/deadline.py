"""Rules that stay in this process but may hang: in a thread with a deadline, or on an event loop of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Sequence

from rlvlm.registry import Part
from rlvlm.rewards.execute import Failure, Scores, run_async, run_batched, run_rows, timed_out
from rlvlm.rewards.samples import Samples

MAX_HANGING = 4
"""Hanging threads of one call, which can't be killed, after which its other rows fail without being tried."""
MIN_BATCH_SECONDS = 120.0
"""A batched rule has at least this long, since it loads its model at the first call."""


class _Turn:
    """One thread's way through the rows; the waiting side sees how far it has come."""

    def __init__(self) -> None:
        self.done = 0
        self.finished = False
        self.moved = threading.Condition()

    def advance(self, finished: bool = False) -> None:
        """Tells the waiting side of a row more, or of the end."""
        with self.moved:
            self.done += not finished
            self.finished = self.finished or finished
            self.moved.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Waits until a row more is done, or all; ``False`` when the time is up."""
        with self.moved:
            return self.moved.wait_for(lambda: self.finished or self.done > seen, seconds)


def run_rows_in_thread(
    part: Part, label: str, samples: Samples, rows: Sequence[int], into: Scores, timeout: float
) -> None:
    """Calls a part row by row; a row that takes longer than ``timeout`` fails and its thread is left behind."""
    waiting, hanging = list(rows), 0
    while waiting:
        if hanging == MAX_HANGING:
            for row in waiting:
                into.put(
                    row,
                    label,
                    Failure(
                        label,
                        "timeout",
                        f"reward '{label}' hung on {hanging} completions before this one; it was not tried again.",
                    ),
                )
            return
        turn, own = _Turn(), Scores([None] * len(samples))
        threading.Thread(target=_walk, args=(part, label, samples, waiting, own, turn), daemon=True).start()
        seen = 0
        while not turn.finished and turn.wait(seen, timeout):
            seen = turn.done
        for row in waiting[: turn.done]:
            _take(own, row, into)
        waiting = waiting[turn.done :]
        if waiting:
            into.put(waiting.pop(0), label, timed_out(label, timeout))
            hanging += 1


def run_batched_in_thread(
    part: Part, label: str, samples: Samples, rows: Sequence[int], into: Scores, timeout: float
) -> None:
    """Calls a part of whole columns; it has ``timeout`` for each row, and at least ``MIN_BATCH_SECONDS``."""
    limit = max(timeout * len(rows), MIN_BATCH_SECONDS)
    own = Scores([None] * len(samples))
    thread = threading.Thread(target=run_batched, args=(part, label, samples, rows, own), daemon=True)
    thread.start()
    thread.join(limit)
    for row in rows:
        if thread.is_alive():
            into.put(
                row,
                label,
                Failure(
                    label, "timeout", f"reward '{label}' took longer than {limit:g} s for {len(rows)} completions."
                ),
            )
        else:
            _take(own, row, into)


def run_on_loop(
    loop: asyncio.AbstractEventLoop,
    part: Part,
    label: str,
    samples: Samples,
    rows: Sequence[int],
    into: Scores,
    timeout: float,
) -> None:
    """Awaits an async part for all rows at once on a loop that runs in another thread."""
    limit = max(timeout * len(rows), MIN_BATCH_SECONDS)
    own = Scores([None] * len(samples))
    future = asyncio.run_coroutine_threadsafe(run_async(part, label, samples, rows, own, timeout), loop)
    try:
        future.result(limit)
    except (TimeoutError, concurrent.futures.TimeoutError):  # it blocks the loop, or hangs in a batched call
        future.cancel()
        own = Scores([None] * len(samples), failures={row: timed_out(label, timeout) for row in rows})
    for row in rows:
        _take(own, row, into)


def _walk(part: Part, label: str, samples: Samples, rows: Sequence[int], own: Scores, turn: _Turn) -> None:
    for row in rows:
        run_rows(part, label, samples, [row], own)
        turn.advance()
    turn.advance(finished=True)


def _take(own: Scores, row: int, into: Scores) -> None:
    into.values[row] = own.values[row]
    if row in own.details:
        into.details[row] = own.details[row]
    if row in own.failures:
        into.failures[row] = own.failures[row]
