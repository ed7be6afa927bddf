"""A worker process of the reward pool: builds rules by name and scores rows one at a time, until its pipe closes.

It is started by ``rlvlm.rewards.pool`` as a fresh interpreter, so it holds nothing of the trainer, and imports neither
torch nor a model unless a rule does.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any, Literal

from rlvlm.registry import Part, load_plugins
from rlvlm.rewards.compose import build_part
from rlvlm.rewards.execute import Failure, failure_of, read_score

_PR_SET_PDEATHSIG = 1
_RECYCLE_AT = 0.5
"""A worker that has taken this share of the memory left to it is replaced by a fresh one."""

Reply = tuple[float | None, Any, Literal["next", "leave", "all"]]
"""Score (or ``None``), detail (or a ``Failure``), and what follows: the next row, another worker, or the same for all rows."""


def main(fd: int, memory_mb: int) -> None:
    """Serves requests on the pipe ``fd``: ``(key, module, file, label, node)`` builds a rule, ``(key, label, rows)`` scores rows."""
    _settle(memory_mb)
    rules: dict[str, Part] = {}
    recycle_at = float(memory_mb)
    with Connection(fd) as pipe:
        while True:
            try:
                request = pipe.recv_bytes()
            except (EOFError, OSError):  # the trainer is gone
                return
            try:
                message = pickle.loads(request)
            except Exception as error:  # a column that this process can't load
                pipe.send((None, failure_of("reward", error), "all"))
                continue
            if len(message) == 5:
                pipe.send(_build(rules, *message))
                held = resident_mb(os.getpid())
                recycle_at = held + _RECYCLE_AT * (memory_mb - held)
            elif not _serve(pipe, rules[message[0]], message[1], message[2], recycle_at):
                return


def _settle(memory_mb: int) -> None:
    """Own memory limit, no interrupts, printed text to stderr, and an end together with the trainer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    limit_memory(memory_mb)


def limit_memory(megabytes: int) -> None:
    """Lets this process allocate no more than this; where the system has no such limit, the pool's own watch remains."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _build(
    rules: dict[str, Part], key: str, module: str, file: str, label: str, node: dict[str, Any]
) -> Failure | None:
    try:
        if file:
            load_plugins([file])
        elif module:
            importlib.import_module(module)
        part, _ = build_part({"name": node["name"]}, node["options"], label)
        for name in part.traits["imports"]:
            importlib.import_module(name)  # now, so that it costs no row its time
    except Exception as error:
        return failure_of(label, error)
    rules[key] = part
    return None


def _serve(pipe: Connection, part: Part, label: str, rows: list[dict[str, Any]], recycle_at: float) -> bool:
    """Scores rows and sends one reply for each; ``False`` when another worker is to go on."""
    for given in rows:
        reply = _score(part, label, given)
        leaves = reply[2] == "leave" or resident_mb(os.getpid()) > recycle_at
        pipe.send((*reply[:2], "leave") if leaves else reply)
        if leaves:
            return False
    return True


def _score(part: Part, label: str, given: dict[str, Any]) -> Reply:
    try:
        score, detail = read_score(part.call(**given))
        pickle.dumps(detail)
    except MemoryError as error:
        return None, failure_of(label, error), "leave"
    except BaseException as error:  # SystemExit in a user's rule is its row's failure too
        return None, failure_of(label, error), "next"
    return score, detail, "next"


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MiB; 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        return 0.0
