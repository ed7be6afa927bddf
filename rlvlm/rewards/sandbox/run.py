"""Runs Python that a model wrote: in a process of its own that has given up what it does not need.

What it promises, on Linux (x86-64, AArch64), as any user and as root in a container:

- no network and no other process: only the system calls of a short list work (seccomp); none of them reaches a socket, a new
  process or program, another process, or the guards of the sandbox itself;
- no file but its own: it starts in an empty folder of its own and may write only there; it may read only Python's and the
  system's libraries (Landlock, and a user of its own when it is started by root);
- bounds on wall-clock time, CPU time, memory, threads, file size, open files, and the number and size of all files together;
- nothing of the caller: a fresh interpreter with an empty environment, without site-packages, killed with its caller;
- what the program does is the program's result: it can neither make the sandbox look broken nor leave anything behind.

What it does not promise: it is no virtual machine. A hole in the kernel is a hole in it; it does not hide the machine's
time, CPU model or load; and other runs on the same machine can be slowed down within the bounds. Without seccomp it refuses to run
anything. Without Landlock it refuses too; root may accept that (``Limits.without_landlock``), and then a program can read files that
every user may read, and write where every user may write, such as shared memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from rlvlm.errors import RewardError
from rlvlm.rewards.sandbox.folder import is_over, own_folder
from rlvlm.rewards.sandbox.syscalls import filter_for

MAX_THREADS = 32
"""Threads that a program may have."""

_USERS = range(61_000, 64_000)
"""User ids that runs get when the caller is root: below the usual limit of containers, above those of accounts."""
_STDERR_CHARS = 2000
_START_SECONDS = 60.0
"""An interpreter that has not started by then never will; not counted as the program's time."""
_LOOK_EVERY = 0.05
_READY = b"ready"


@dataclass(frozen=True)
class Limits:
    """Bounds on one run.

    Attributes:
        seconds: of wall-clock and of CPU time, from the program's first line.
        memory_mb: address space in MiB.
        output_bytes: of a file, and of the output.
        without_landlock: run as another user alone where the kernel has no Landlock; only root can.
    """

    seconds: float = 4.0
    memory_mb: int = 512
    output_bytes: int = 1 << 20
    without_landlock: bool = False


@dataclass(frozen=True)
class Run:
    """What a run left: its output, the end of its error output, the results of the calls, and how it ended.

    ``results`` holds for each call what ``child.described`` makes of its value, or ``{"error": type}``, as far as the run came.
    ``stopped`` says which bound ended it: ``time``, ``files`` (number or size of all together) or ``threads``.
    """

    stdout: str
    stderr: str
    results: tuple[Any, ...]
    exit_code: int
    stopped: Literal["", "time", "files", "threads"]


def run_python(code: str, *, stdin: str = "", calls: Sequence[str] = (), limits: Limits | None = None) -> Run:
    """Executes a program in the sandbox, then evaluates expressions in its names.

    Args:
        code: source of the program.
        stdin: what it reads.
        calls: expressions, evaluated one after another; of each a plain description of its value is kept.

    Raises ``RewardError`` where the sandbox can't be set up; the program's own faults are in the result.
    """
    if sys.platform != "linux":
        raise RewardError(
            f"the sandbox needs Linux (seccomp, Landlock), this is {sys.platform}; run code rewards there."
        )
    limits = limits or Limits()
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(own_folder())
        channel, results, out, errors, given = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(5))
        started, ready = os.pipe()
        stack.callback(os.close, started)
        job = _job(code, calls, limits, home, results.fileno(), ready)
        channel.write(json.dumps(job).encode("utf-8"))
        channel.seek(0)
        given.write(stdin.encode("utf-8", "surrogatepass"))
        given.seek(0)
        try:
            process = _started(channel.fileno(), [results.fileno(), ready], given, out, errors, home)
        finally:
            os.close(ready)
        with _killed_at_the_end(process):
            _wait_for_start(process, started, errors)
            stopped = _wait_for_end(process, limits.seconds, home)
        return _read(process, stopped, results, out, errors, limits)


def _job(code: str, calls: Sequence[str], limits: Limits, home: str, results_fd: int, ready_fd: int) -> dict[str, Any]:
    uid = secrets.choice(_USERS) if os.geteuid() == 0 else None
    if uid is not None:
        os.chown(home, uid, uid)
    machine = platform.machine()
    return {
        "code": code,
        "calls": list(calls),
        "home": home,
        "uid": uid,
        "parent": os.getpid(),
        "results_fd": results_fd,
        "ready_fd": ready_fd,
        "memory_mb": limits.memory_mb,
        "cpu_seconds": max(1, round(limits.seconds + 2)),
        "file_bytes": limits.output_bytes,
        "threads": MAX_THREADS,
        "without_landlock": limits.without_landlock,
        "machine": machine,
        "filters": {str(owned): filter_for(machine, may_set_limits=owned) for owned in (False, True)},
    }


def _started(channel: int, fds: list[int], given: Any, out: Any, errors: Any, home: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-s", "-B", "-c", _launcher(), str(channel)],
        stdin=given,
        stdout=out,
        stderr=errors,
        pass_fds=[channel, *fds],
        cwd=home,
        env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8:replace"},
        start_new_session=True,
    )


@contextlib.contextmanager
def _killed_at_the_end(process: subprocess.Popen[bytes]) -> Any:
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for_start(process: subprocess.Popen[bytes], started: int, errors: Any) -> None:
    """Waits until the program is about to run; the channel for that is closed before the program's first line."""
    said = b""
    end = time.monotonic() + _START_SECONDS
    while select.select([started], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(started, 4096)
        said += piece
        if not piece:
            break
    if said == _READY:
        return
    if said:
        raise RewardError(
            f"the sandbox can't be set up here: {said.decode('utf-8', 'replace')}; run code rewards on a machine that allows it."
        )
    errors.seek(0)
    text = errors.read().decode("utf-8", "replace")[-300:].strip()
    raise RewardError(f"the sandbox did not start (exit code {process.poll()}): {text}.")


def _wait_for_end(process: subprocess.Popen[bytes], seconds: float, home: str) -> Any:
    """Waits until the run ends or passes a bound, and tells which."""
    end = time.monotonic() + seconds
    ended = os.pidfd_open(process.pid)
    try:
        while not select.select([ended], [], [], min(_LOOK_EVERY, max(0.0, end - time.monotonic())))[0]:
            if time.monotonic() >= end:
                return "time"
            if is_over(home):
                return "files"
            if _threads(process.pid) > MAX_THREADS:
                return "threads"
    finally:
        os.close(ended)
    return "files" if is_over(home) else ""


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:  # it has just ended
        return 0


def _read(process: subprocess.Popen[bytes], stopped: Any, results: Any, out: Any, errors: Any, limits: Limits) -> Run:
    texts = []
    for file in (results, out, errors):
        file.seek(0)
        texts.append(file.read(limits.output_bytes).decode("utf-8", "replace"))
    values = tuple(map(_value, texts[0].splitlines()))
    return Run(texts[1], texts[2][-_STDERR_CHARS:], values, process.returncode, stopped)


def _value(line: str) -> Any:
    """A result line; whatever a program may have written in its place counts as no result."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return {"error": "no result"}


@lru_cache(maxsize=1)
def _launcher() -> str:
    return files("rlvlm.rewards.sandbox").joinpath("child.py").read_text(encoding="utf-8")
