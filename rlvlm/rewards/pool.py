"""A pool of processes that scores rows under a wall-clock limit; a worker that overruns or dies is replaced.

Every worker is a fresh interpreter started by a thread of the pool, so the pool works from any thread, needs no guard in the
user's script, and copies nothing of the trainer.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.compose import Rule
from rlvlm.rewards.execute import Failure, Scores, failure_of
from rlvlm.rewards.process import Process, key_of

MAX_CHUNK = 16
"""Rows that are sent to a worker at once."""
MAX_CHUNK_CHARS = 4_000_000
"""Text that is sent to a worker at once, where it is more than one row."""


class Job:
    """Rows of one rule on their way through the pool; :meth:`wait` until every row has a score or a failure."""

    def __init__(self, label: str, rows: int, into: Scores) -> None:
        self.label, self._into, self._left = label, into, rows
        self._lock, self._done = threading.Lock(), threading.Event()
        if not rows:
            self._done.set()

    def put(self, row: int, value: Any) -> None:
        """Keeps the score or failure of one row."""
        with self._lock:
            self._into.put(row, self.label, value)
            self._left -= 1
            if not self._left:
                self._done.set()

    def wait(self) -> None:
        """Blocks until all rows are done; every row ends by a limit, so it always returns."""
        self._done.wait()


@dataclass
class Chunk:
    """Rows of a job that one worker gets at once; rows that are done leave the queue."""

    rule: Rule
    job: Job
    rows: deque[tuple[int, dict[str, Any]]] = field(default_factory=deque)

    def done(self, value: Any) -> None:
        """The first waiting row got its score or failure."""
        self.job.put(self.rows.popleft()[0], value)

    def fail(self, failure: Any) -> None:
        """All waiting rows fail alike."""
        while self.rows:
            self.done(failure)


@dataclass
class _State:
    """What the pool's threads share; it does not hold the pool, so that a forgotten pool ends."""

    memory_mb: int
    queue: SimpleQueue[Chunk | None] = field(default_factory=SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    workers: set[Process] = field(default_factory=set)
    threads: int = 0
    closed: bool = False
    owner: int = field(default_factory=os.getpid)

    def start(self) -> Process:
        """Starts a worker process."""
        worker = Process(self.memory_mb)
        with self.lock:
            self.workers.add(worker)
        return worker

    def end(self, worker: Process) -> None:
        """Kills a worker process."""
        worker.kill()
        with self.lock:
            self.workers.discard(worker)

    def shut(self) -> None:
        """Kills all workers and lets the threads end."""
        if os.getpid() != self.owner:  # in a fork: they are not its own
            return
        with self.lock:
            self.closed = True
            workers, threads, self.threads = list(self.workers), self.threads, 0
        for worker in workers:
            worker.signal()  # its thread sees the end of the pipe and cleans up
        for _ in range(threads):
            self.queue.put(None)


class Pool:
    """Processes that score rows.

    Args:
        workers: how many; they start when there is work for them.
        memory_mb: memory of each, in MiB.
    """

    def __init__(self, workers: int, memory_mb: int) -> None:
        self.workers = workers
        self._state = _State(memory_mb)
        self._finalizer = weakref.finalize(self, self._state.shut)

    def submit(self, rule: Rule, rows: Sequence[tuple[int, dict[str, Any]]], into: Scores) -> Job:
        """Starts scoring; each row is its number and what the rule reads of it. Raises ``RewardError`` after :meth:`close`."""
        job = Job(rule.label, len(rows), into)
        chunks = _chunks(rule, job, rows, self.workers)
        with self._state.lock:
            if self._state.closed:
                raise RewardError("the reward pool is closed; make a new Reward.")
            for _ in range(self._state.threads, min(self.workers, self._state.threads + len(chunks))):
                self._state.threads += 1
                threading.Thread(target=_serve, args=(self._state,), name="reward-pool", daemon=True).start()
        for chunk in chunks:
            self._state.queue.put(chunk)
        return job

    def close(self) -> None:
        """Kills the workers; rows that are still waiting fail."""
        self._finalizer()


def _chunks(rule: Rule, job: Job, rows: Sequence[tuple[int, dict[str, Any]]], workers: int) -> list[Chunk]:
    """Rows in pieces: small enough to keep all workers busy, few enough bytes to be sent at once."""
    most = max(1, min(MAX_CHUNK, -(-len(rows) // (2 * workers))))
    chunks: list[Chunk] = []
    chars = 0
    for row in rows:
        size = sum(len(value) for value in row[1].values() if isinstance(value, str))
        if not chunks or len(chunks[-1].rows) >= most or chars + size > MAX_CHUNK_CHARS:
            chunks.append(Chunk(rule, job))
            chars = 0
        chunks[-1].rows.append(row)
        chars += size
    return chunks


def _serve(state: _State) -> None:
    """One thread of the pool: takes chunks until told to end, with at most one worker process at a time."""
    worker: Process | None = None
    while (chunk := state.queue.get()) is not None:
        try:
            worker = _run(state, worker, chunk)
        except Exception as error:  # such as no memory for another process: its rows fail, the pool goes on
            chunk.fail(failure_of(chunk.rule.label, error))
    if worker is not None:
        state.end(worker)


def _run(state: _State, worker: Process | None, chunk: Chunk) -> Process | None:
    """Scores a chunk, with as many workers one after another as it takes; gives the worker that is left."""
    while chunk.rows:
        if state.closed:
            chunk.fail(Failure(chunk.rule.label, "error", "the reward pool was closed before the row was scored."))
            break
        worker = worker or state.start()
        failure = worker.build(chunk.rule, key_of(chunk.rule))
        if failure is not None:
            chunk.fail(failure)
        if failure is not None or not score_chunk(worker, chunk, key_of(chunk.rule)):
            state.end(worker)
            worker = None
    return worker


def score_chunk(
    worker: Process, chunk: Chunk, key: str, *, keeps_state: bool = False, lost: Callable[[Failure], None] | None = None
) -> bool:
    """Has the worker score the chunk's rows; ``False`` when the worker can't go on.

    Args:
        keeps_state: the worker is not left for another one because it has grown.
        lost: is told the failure of a row that ended the worker.
    """
    rule = chunk.rule
    try:
        message = pickle.dumps(("rows", key, rule.label, [given for _, given in chunk.rows], rule.timeout, keeps_state))
    except Exception as error:  # a record's column that can't be sent
        chunk.fail(failure_of(rule.label, error))
        return True
    with contextlib.suppress(OSError):  # a worker that died is noticed below
        worker.pipe.send_bytes(message)
    while chunk.rows:
        reply = worker.receive(rule.label, rule.timeout)
        if isinstance(reply, Failure):
            chunk.done(reply)
            if lost is not None:
                lost(reply)
            return False
        score, detail, then = reply
        value = detail if isinstance(detail, Failure) else {"score": score, "detail": detail} if detail else score
        if then == "all":
            chunk.fail(value)
        else:
            chunk.done(value)
        if then == "leave":
            return False
    return True
