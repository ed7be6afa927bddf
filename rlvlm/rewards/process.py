"""One worker process: started fresh or forked, spoken to through a pipe, killed when it takes too long or too much memory.

A fresh interpreter copies nothing of the trainer and builds a rule from the module or file that it is defined in. What no other
process could find (a function of the main script, a notebook or another function) is called in a fork, which has it already.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Protocol

from rlvlm.registry import Part
from rlvlm.rewards.compose import PEER_STYLES, Rule
from rlvlm.rewards.execute import Failure, failure_of, timed_out
from rlvlm.rewards.worker import resident_mb, serve_forked

BUILD_SECONDS = 120.0
"""Time for a worker to start and to import what a rule needs."""
PLUGIN_PREFIX = "rlvlm_plugin_"
"""Start of the module names that plug-in files get."""

_POLL_SECONDS = 0.1
_START = "import sys; from rlvlm.rewards.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
_STARTING = threading.Lock()
"""One process is started at a time, so that no fork holds the other end of another worker's pipe."""


class _Child(Protocol):
    """What is asked of a child process, as ``subprocess.Popen`` has it."""

    pid: int

    def wait(self) -> int:
        """Its exit code, once it has ended."""


class _Fork:
    """A child made by ``os.fork`` that runs one function and ends."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._code: int | None = None
        self._lock = threading.Lock()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)  # nothing of the trainer's own end may run here

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        with self._lock:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self._code


class Process:
    """A worker process with its pipe and the rules that it has built.

    Args:
        memory_mb: memory that it may take, in MiB; a fork may take as much on top of what it was forked with.
        parts: rules, by their keys, for a fork to hold; without them the process is a fresh interpreter.
    """

    def __init__(self, memory_mb: int, parts: Mapping[str, Part] | None = None) -> None:
        self.built: set[str] = set(parts or ())
        with _STARTING:
            ours, theirs = socket.socketpair()
            self.pipe = Connection(ours.detach())
            with theirs:
                self.process = _fresh(theirs, memory_mb) if parts is None else self._forked(theirs, memory_mb, parts)
        self.pid = self.process.pid
        self.memory_mb = memory_mb + (0.0 if parts is None else resident_mb(self.pid))

    def _forked(self, theirs: socket.socket, memory_mb: int, parts: Mapping[str, Part]) -> _Child:
        def work() -> None:
            self.pipe.close()
            serve_forked(theirs.detach(), memory_mb, dict(parts))

        return _Fork(work)

    def build(self, rule: Rule, key: str) -> Failure | None:
        """Has the process build the rule, unless it has."""
        if key in self.built:
            return None
        module, file = home_of(rule)
        with contextlib.suppress(OSError):  # a process that died is noticed below
            self.pipe.send(("build", key, module, file, rule.label, rule.node))
        answer: Failure | None = self.receive(rule.label, BUILD_SECONDS)
        if answer is None:
            self.built.add(key)
        return answer

    def receive(self, label: str, seconds: float) -> Any:
        """The next message; a ``Failure`` when it takes too long, takes too much memory, or the process ends."""
        end = time.monotonic() + seconds
        try:
            while not self.pipe.poll(min(_POLL_SECONDS, max(end - time.monotonic(), 0.0))):
                if time.monotonic() >= end:
                    return timed_out(label, seconds)
                if resident_mb(self.pid) > self.memory_mb:
                    return failure_of(label, MemoryError())
            return self.pipe.recv()
        except (EOFError, OSError):
            self.signal()
            code = self.process.wait()
            return Failure(
                label,
                "crash",
                f"the process that ran reward '{label}' died (exit code {code}); the completion or the rule crashes it.",
            )

    def signal(self) -> None:
        """Kills the process and whatever it started; whoever waits for it sees the end of its pipe."""
        for kill in (os.killpg, os.kill):  # a fork that was only just made is not yet the leader of its group
            with contextlib.suppress(OSError):
                kill(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kills the process and waits for its end."""
        self.signal()
        with contextlib.suppress(OSError):
            self.pipe.close()
        self.process.wait()


def _fresh(theirs: socket.socket, memory_mb: int) -> _Child:
    command = [sys.executable, "-c", _START, str(theirs.fileno()), str(memory_mb)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
        env=_environment(),
    )


def key_of(rule: Rule) -> str:
    """What a process knows the rule by."""
    return repr((rule.label, *home_of(rule), rule.node))


def home_of(rule: Rule) -> tuple[str, str]:
    """Where a fresh process finds the rule: its module, and the file of that where it has one."""
    if rule.part is None or _has_style(rule):
        return "", ""
    module = rule.part.entry.target.__module__
    return module, str(getattr(sys.modules.get(module), "__file__", None) or "")


def is_importable(rule: Rule) -> bool:
    """Whether a fresh process can build the rule from its node and the place where its function or class is defined."""
    if rule.part is None or rule.in_process:
        return False
    target = rule.part.entry.target
    return _has_style(rule) or (target.__module__ != "__main__" and "<" not in target.__qualname__)


def _has_style(rule: Rule) -> bool:
    """Whether the rule's node tells by itself where the function is."""
    return rule.node.get("options", {}).get("style") in PEER_STYLES


def _environment() -> dict[str, str]:
    """The trainer's environment and import path, with one thread for each worker."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, **dict.fromkeys(_THREADS, "1"), "RUST_BACKTRACE": "0"}
