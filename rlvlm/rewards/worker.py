"""A worker process of the rewards: builds rules by name and scores rows in its main thread, until its pipe closes.

It is started by ``rlvlm.rewards.process``, as a fresh interpreter that holds nothing of the trainer and imports neither
torch nor a model unless a rule does, or as a fork. Rules run in the process's main thread, where signals work: libraries that
limit their own time by ``signal.alarm`` do so here as they do in a script.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any, Literal

from rlvlm.registry import Part, load_plugins
from rlvlm.rewards.compose import build_part
from rlvlm.rewards.execute import Batched, Failure, await_rows, failure_of, read_score, timed_out
from rlvlm.rewards.printing import escape_output

_PR_SET_PDEATHSIG = 1
_RECYCLE_AT = 0.5
"""A worker of the pool that has taken this share of the memory left to it is replaced by a fresh one."""

Reply = tuple[float | None, Any, Literal["next", "leave", "all"]]
"""Score (or ``None``), detail (or a ``Failure``), and what follows: the next row, another worker, or the same for all rows."""


def main(fd: int, memory_mb: int) -> None:
    """Serves requests on the pipe ``fd`` as a process of its own, with so much memory."""
    _settle(memory_mb << 20)
    with Connection(fd) as pipe:
        _Worker(pipe, {}, memory_mb).serve()


def serve_forked(fd: int, memory_mb: int, parts: dict[str, Part]) -> None:
    """Serves requests on the pipe ``fd`` in a fork of the trainer, whose memory it has; the parts are built already."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # the trainer's threads are not in the fork, and its pool would wait for them
    _settle(_data_bytes() + (memory_mb << 20))
    with Connection(fd) as pipe:
        _Worker(pipe, parts, memory_mb).serve()


class _Worker:
    """What a worker process holds: its rules, its event loop, and the memory at which it asks for a successor."""

    def __init__(self, pipe: Connection, parts: dict[str, Part], memory_mb: int) -> None:
        self.pipe, self.parts, self.memory_mb = pipe, parts, memory_mb
        self.recycle_at = float(memory_mb)
        self._own_loop = asyncio.new_event_loop()

    def serve(self) -> None:
        """Answers ``("build", key, module, file, label, node)``, ``("rows", key, label, rows, timeout)`` with one reply for each row,
        and ``("all", key, label, given, timeout)`` with one reply for all."""
        while True:
            try:
                request = self.pipe.recv_bytes()
            except (EOFError, OSError):  # the trainer is gone
                return
            try:
                kind, key, *rest = pickle.loads(request)
            except Exception as error:  # a column that this process can't load
                self.pipe.send((None, failure_of("reward", error), "all"))
                continue
            if kind == "build":
                self.pipe.send(self._build(key, *rest))
                held = resident_mb(os.getpid())
                self.recycle_at = held + _RECYCLE_AT * (self.memory_mb - held)
            elif kind == "all":
                self.pipe.send_bytes(self._all(self.parts[key], *rest))
            elif not self._rows(self.parts[key], *rest):
                return

    def _build(self, key: str, module: str, file: str, label: str, node: dict[str, Any]) -> Failure | None:
        try:
            _find(module, file)
            part, _ = build_part({"name": node["name"]}, node["options"], label)
            for name in part.traits["imports"]:
                importlib.import_module(name)  # now, so that it costs no row its time
        except BaseException as error:  # SystemExit of a user's module too
            return failure_of(label, error)
        self.parts[key] = part
        return None

    def _rows(self, part: Part, label: str, rows: list[dict[str, Any]], timeout: float, keeps: bool) -> bool:
        """Scores rows and sends one reply for each; ``False`` when another worker is to go on, never for one that ``keeps`` state."""
        for given in rows:
            reply = self._score(part, label, given, timeout)
            leaves = reply[2] == "leave" or (not keeps and resident_mb(os.getpid()) > self.recycle_at)
            self.pipe.send((*reply[:2], "leave") if leaves else reply)
            if leaves:
                return False
        return True

    def _score(self, part: Part, label: str, given: dict[str, Any], timeout: float) -> Reply:
        try:
            value = part.call(**given)
            if inspect.isawaitable(value):
                value = self._awaited(asyncio.wait_for(value, timeout))
            score, detail = read_score(value)
            pickle.dumps(detail)
        except MemoryError as error:
            return None, failure_of(label, error), "leave"
        except (TimeoutError, asyncio.TimeoutError) as error:
            return None, timed_out(label, timeout) if not error.args else failure_of(label, error), "next"
        except BaseException as error:  # SystemExit in a user's rule is its row's failure too
            return None, failure_of(label, error), "next"
        return score, detail, "next"

    def _all(self, part: Part, label: str, given: Any, timeout: float) -> bytes:
        """What the rule gave for all rows, ready to be sent: ``(scores, metrics)``, or a ``Failure``."""
        try:
            if part.traits["batched"]:
                found = part.call(**given)
                found = self._awaited(found) if inspect.isawaitable(found) else found
            else:
                found = self._awaited(await_rows(part, label, given, timeout))
            batch = found if isinstance(found, Batched) else Batched(list(found))
            return pickle.dumps(([_plain(value) for value in batch.values], dict(batch.metrics)))
        except BaseException as error:
            return pickle.dumps(failure_of(label, error))

    def _awaited(self, value: Any) -> Any:
        """The result of an awaitable, on the same loop at every call, since sessions and locks are bound to theirs."""
        if self._own_loop.is_closed():  # by the rule itself
            self._own_loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._own_loop)
        return self._own_loop.run_until_complete(value)


def _plain(value: Any) -> Any:
    """A score as it can be sent: tensors and numbers of other libraries as floats, what is no score as a ``Failure``."""
    if isinstance(value, Failure):
        return value
    try:
        score, detail = read_score(value)
    except Exception as error:
        return failure_of("reward", error)
    return {"score": score, "detail": detail} if detail else score


def _find(module: str, file: str) -> None:
    """Imports the module, or loads its file where this process has no module of that name."""
    if not module:
        return
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not file or error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        load_plugins([file])


def _settle(data_bytes: int) -> None:
    """Own memory limit, no interrupts, printed text to stderr with its control characters escaped, and an end together with the trainer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    escape_output()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    limit_memory(data_bytes)


def limit_memory(data_bytes: int) -> None:
    """Lets this process allocate no more than this; where the system has no such limit, the trainer's own watch remains."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _data_bytes() -> int:
    """Memory that counts against the limit already; 0 where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            found = [line.split() for line in file if line.startswith("VmData:")]
        return int(found[0][1]) << 10
    except (OSError, ValueError, IndexError):
        return 0


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MiB; 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        return 0.0
