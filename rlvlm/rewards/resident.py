"""A process of its own for a rule that keeps state or scores whole batches: built once, called in its main thread, killed when it hangs.

A rule that is a class, a peer's factory, batched or async has one process; so has a function that only a fork of the trainer
can call. A kill loses the state that the rule had: it is built anew, and goes on with the next row.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from rlvlm.rewards.compose import Rule
from rlvlm.rewards.execute import (
    Failure,
    Scores,
    columns_of,
    complete_rows,
    failure_of,
    is_async,
    put_all,
    rows_of,
    timed_out,
)
from rlvlm.rewards.pool import Chunk, Job, score_chunk
from rlvlm.rewards.process import Process, is_importable, key_of
from rlvlm.rewards.samples import Samples

MAX_HANGING = 3
"""Processes that one scoring may lose to a rule, after which its other rows fail without being tried."""
_GRACE = 1.0
"""Seconds in which a process tells of its own time limits before it is killed."""


class Resident:
    """The process of one rule, and the thread that it is started and spoken to from.

    Args:
        rule: what it scores by.
        memory_mb: memory of the process, in MiB.
    """

    def __init__(self, rule: Rule, memory_mb: int) -> None:
        self._state = _State(rule, memory_mb)
        self._finalizer = weakref.finalize(self, self._state.shut)

    def submit(self, samples: Samples, rows: Sequence[int], into: Scores) -> Callable[[], None]:
        """Starts scoring; gives what waits until every row has a score or a failure. Calls are served one after another."""
        done = threading.Event()
        self._state.put((samples, rows, into, done))

        def wait() -> None:
            done.wait()

        return wait

    def close(self) -> None:
        """Kills the process; rows that are still waiting fail."""
        self._finalizer()


_Work = tuple[Samples, Sequence[int], Scores, threading.Event]


class _State:
    """What the thread works with; it does not hold the ``Resident``, so that a forgotten one ends."""

    def __init__(self, rule: Rule, memory_mb: int) -> None:
        assert rule.part is not None  # only a choice has no part, and a choice is never run itself
        self.rule, self.part, self.memory_mb, self.key = rule, rule.part, memory_mb, key_of(rule)
        self.process: Process | None = None
        self.closed = False
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._lost = 0

    def put(self, work: _Work) -> None:
        """Hands work to the thread, which is started for the first one."""
        with self._lock:
            if self.closed:
                self._fail_rest(work[1], work[2], self._was_closed())
                work[3].set()
                return
            if self._thread is None:
                # One thread for as long as the process lives: the system ends a child when the thread that made it ends.
                self._thread = threading.Thread(target=self._serve, name="reward-process", daemon=True)
                self._thread.start()
            self._queue.put(work)

    def shut(self) -> None:
        """Kills the process and lets the thread end."""
        if os.getpid() != self._owner:  # in a fork: it is not its own
            return
        with self._lock:
            self.closed = True
        process = self.process
        if process is not None:
            process.signal()  # the thread sees the end of the pipe and cleans up
        self._queue.put(None)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            samples, rows, into, done = work
            try:
                self._score(samples, rows, into)
            except Exception as error:  # such as no memory for another process: its rows fail, the run goes on
                self._fail_rest(rows, into, failure_of(self.rule.label, error))
            finally:
                done.set()
            del work, samples, rows, into, done  # a batch is not kept until the next one comes
        self._end()

    def _fail_rest(self, rows: Sequence[int], into: Scores, failure: Failure) -> None:
        for row in rows:
            if into.values[row] is None and row not in into.failures:
                into.put(row, self.rule.label, failure)

    def _was_closed(self) -> Failure:
        return Failure(self.rule.label, "error", f"reward '{self.rule.label}' was closed before the row was scored.")

    def _score(self, samples: Samples, rows: Sequence[int], into: Scores) -> None:
        self._lost = 0
        rows = complete_rows(self.part, self.rule.label, samples, rows, into)
        if not rows:
            return
        if self.part.traits["batched"] or is_async(self.part.entry.target):
            put_all(self.rule.label, self._whole(samples, rows, into), rows, into)
        else:
            self._each(samples, rows, into)

    def _each(self, samples: Samples, rows: Sequence[int], into: Scores) -> None:
        """Scores row by row; a row that ends the process fails, and a new one goes on with the next."""
        given = rows_of(self.part, samples, rows)
        chunk = Chunk(self.rule, Job(self.rule.label, len(rows), into))
        chunk.rows.extend(zip(rows, given, strict=True))

        def lost(failure: Failure) -> None:
            self._lost += 1

        while chunk.rows:
            process = self._given_up() or self._ready()
            if isinstance(process, Failure):
                chunk.fail(process)
            elif not score_chunk(process, chunk, self.key, keeps_state=True, lost=lost):
                self._end()

    def _whole(self, samples: Samples, rows: Sequence[int], into: Scores) -> list[Any]:
        """Scores all rows by one call. Rows that fail alone too are taken out, and the others scored by another call."""
        found = self._call(samples, rows, into)
        if not isinstance(found, Failure):
            return found
        if len(rows) == 1:
            return [found]
        guilty: dict[int, Failure] = {}
        for row in rows:
            alone = self._given_up() or self._call(samples, [row], None)
            if isinstance(alone, Failure):
                guilty[row] = alone
        others = [row for row in rows if row not in guilty]
        again = self._call(samples, others, into) if guilty and others else []
        if not guilty or isinstance(again, Failure):  # they fail together only
            guilty.update(dict.fromkeys(others, again if isinstance(again, Failure) else found))
        elif len(again) != len(others):
            return again  # a wrong number of scores fails all
        scored = iter(again if isinstance(again, list) else [])
        return [guilty[row] if row in guilty else next(scored) for row in rows]

    def _call(self, samples: Samples, rows: Sequence[int], into: Scores | None) -> list[Any] | Failure:
        """What one call gives for these rows; ``into`` gets its metrics."""
        label, batched = self.rule.label, self.part.traits["batched"]
        process = self._ready()
        if isinstance(process, Failure):
            return process
        given: Any = columns_of(self.part, samples, rows) if batched else rows_of(self.part, samples, rows)
        try:
            message = pickle.dumps(("all", self.key, label, given, self.rule.timeout))
        except Exception as error:  # a record's column that can't be sent
            return failure_of(label, error)
        with contextlib.suppress(OSError):  # a process that died is noticed below
            process.pipe.send_bytes(message)
        seconds = self.rule.timeout * len(rows)
        reply = process.receive(label, seconds + (0.0 if batched else _GRACE))
        if isinstance(reply, Failure):
            if reply.kind in ("timeout", "crash", "memory"):
                self._lost += 1
                self._end()
            return timed_out(label, seconds, len(rows)) if reply.kind == "timeout" else reply
        if len(reply) == 3:  # the request could not be read
            failure: Failure = reply[1]
            return failure
        values, metrics = reply
        if into is not None:
            into.metrics.update(metrics)
        return list(values)

    def _given_up(self) -> Failure | None:
        """The failure of a row that is not tried, since too many before it ended the process."""
        if self._lost < MAX_HANGING:
            return None
        label = self.rule.label
        return Failure(
            label,
            "timeout",
            f"reward '{label}' hung or crashed on {self._lost} completions before this one; it was not tried again.",
        )

    def _ready(self) -> Process | Failure:
        """The process, started and built where it is not."""
        if self.closed:
            return self._was_closed()
        if self.process is None:
            self.process = Process(self.memory_mb, None if is_importable(self.rule) else {self.key: self.part})
        failure = self.process.build(self.rule, self.key)
        if failure is not None:
            self._end()
            return failure
        return self.process

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None
