"""A pool of processes that scores rows under a wall-clock limit; a worker that overruns or dies is replaced.

Every worker is a fresh interpreter started by a thread of the pool, so the pool works from any thread, needs no guard in the
user's script, and copies nothing of the trainer.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.compose import PEER_STYLES, Rule
from rlvlm.rewards.execute import Failure, Scores, failure_of, timed_out
from rlvlm.rewards.worker import resident_mb

BUILD_SECONDS = 120.0
"""Time for a worker to start and to import what a rule needs."""
MAX_CHUNK = 16
"""Rows that are sent to a worker at once."""
MAX_CHUNK_CHARS = 4_000_000
"""Text that is sent to a worker at once, where it is more than one row."""
PLUGIN_PREFIX = "rlvlm_plugin_"
"""Start of the module names that plug-in files get."""

_POLL_SECONDS = 0.1
_START = "import sys; from rlvlm.rewards.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


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
class _Chunk:
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


@dataclass(eq=False)
class _Worker:
    """One process: its pipe and the rules that it has built."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    built: set[str] = field(default_factory=set)

    def kill(self) -> None:
        """Ends the process and whatever it started."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.pipe.close()
        self.process.wait()


@dataclass
class _State:
    """What the pool's threads share; it does not hold the pool, so that a forgotten pool ends."""

    memory_mb: int
    queue: SimpleQueue[_Chunk | None] = field(default_factory=SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    workers: set[_Worker] = field(default_factory=set)
    threads: int = 0
    closed: bool = False

    def start(self) -> _Worker:
        """Starts a worker process."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", _START, str(theirs.fileno()), str(self.memory_mb)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=_environment(),
            )
        worker = _Worker(process, Connection(ours.detach()))
        with self.lock:
            self.workers.add(worker)
        return worker

    def end(self, worker: _Worker) -> None:
        """Kills a worker process."""
        worker.kill()
        with self.lock:
            self.workers.discard(worker)

    def shut(self) -> None:
        """Kills all workers and lets the threads end."""
        with self.lock:
            self.closed = True
            workers, threads, self.threads = list(self.workers), self.threads, 0
        for worker in workers:
            with contextlib.suppress(OSError):
                os.killpg(worker.process.pid, signal.SIGKILL)  # its thread sees the end of the pipe and cleans up
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


def _chunks(rule: Rule, job: Job, rows: Sequence[tuple[int, dict[str, Any]]], workers: int) -> list[_Chunk]:
    """Rows in pieces: small enough to keep all workers busy, few enough bytes to be sent at once."""
    most = max(1, min(MAX_CHUNK, -(-len(rows) // (2 * workers))))
    chunks: list[_Chunk] = []
    chars = 0
    for row in rows:
        size = sum(len(value) for value in row[1].values() if isinstance(value, str))
        if not chunks or len(chunks[-1].rows) >= most or chars + size > MAX_CHUNK_CHARS:
            chunks.append(_Chunk(rule, job))
            chars = 0
        chunks[-1].rows.append(row)
        chars += size
    return chunks


def _serve(state: _State) -> None:
    """One thread of the pool: takes chunks until told to end, with at most one worker process at a time."""
    worker: _Worker | None = None
    while (chunk := state.queue.get()) is not None:
        try:
            worker = _run(state, worker, chunk)
        except Exception as error:  # such as no memory for another process: its rows fail, the pool goes on
            chunk.fail(failure_of(chunk.rule.label, error))
    if worker is not None:
        state.end(worker)


def _run(state: _State, worker: _Worker | None, chunk: _Chunk) -> _Worker | None:
    """Scores a chunk, with as many workers one after another as it takes; gives the worker that is left."""
    while chunk.rows:
        if state.closed:
            chunk.fail(Failure(chunk.rule.label, "error", "the reward pool was closed before the row was scored."))
            break
        worker = worker or state.start()
        failure = _build(worker, chunk.rule, state.memory_mb)
        if failure is not None:
            chunk.fail(failure)
        if failure is not None or not _score(worker, chunk, state.memory_mb):
            state.end(worker)
            worker = None
    return worker


def _build(worker: _Worker, rule: Rule, memory_mb: int) -> Failure | None:
    """Has the worker build the rule, unless it has."""
    module, file = home_of(rule)
    key = repr((rule.label, module, file, rule.node))
    if key in worker.built:
        return None
    worker.pipe.send((key, module, file, rule.label, rule.node))
    answer = _receive(worker, rule.label, BUILD_SECONDS, memory_mb)
    if answer is None:
        worker.built.add(key)
    return answer


def _score(worker: _Worker, chunk: _Chunk, memory_mb: int) -> bool:
    """Has the worker score the chunk's rows; ``False`` when the worker can't go on."""
    rule = chunk.rule
    module, file = home_of(rule)
    try:
        message = pickle.dumps(
            (repr((rule.label, module, file, rule.node)), rule.label, [given for _, given in chunk.rows])
        )
    except Exception as error:  # a record's column that can't be sent
        chunk.fail(failure_of(rule.label, error))
        return True
    with contextlib.suppress(OSError):  # a worker that died is noticed below
        worker.pipe.send_bytes(message)
    while chunk.rows:
        reply = _receive(worker, rule.label, rule.timeout, memory_mb)
        if isinstance(reply, Failure):
            chunk.done(reply)
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


def _receive(worker: _Worker, label: str, seconds: float, memory_mb: int) -> Any:
    """The worker's next message; a ``Failure`` when it takes too long, takes too much memory, or ends."""
    end = time.monotonic() + seconds
    try:
        while not worker.pipe.poll(min(_POLL_SECONDS, max(end - time.monotonic(), 0.0))):
            if time.monotonic() >= end:
                return timed_out(label, seconds)
            if resident_mb(worker.process.pid) > memory_mb:
                return failure_of(label, MemoryError())
        return worker.pipe.recv()
    except (EOFError, OSError):
        code = worker.process.wait()
        return Failure(
            label,
            "crash",
            f"the process that ran reward '{label}' died (exit code {code}); the completion or the rule crashes it.",
        )


def home_of(rule: Rule) -> tuple[str, str]:
    """Where a worker finds the rule's function: its module, and the file when that is a plug-in or a peer's file."""
    if rule.part is None or rule.node.get("options", {}).get("style") in PEER_STYLES:
        return "", ""
    module = rule.part.entry.target.__module__
    loaded = sys.modules.get(module)
    return module, str(loaded.__file__) if module.startswith(PLUGIN_PREFIX) and loaded is not None else ""


def _environment() -> dict[str, str]:
    """The trainer's environment and import path, with one thread for each worker."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, **dict.fromkeys(_THREADS, "1"), "RUST_BACKTRACE": "0"}
