"""Runs Python that a model wrote: in a process of its own that has given up what it does not need.

What it promises, on Linux (x86-64, AArch64), as any user and as root in a container:

- no network and no other process: the kernel refuses sockets, new processes, programs, signals to others and tracing (seccomp);
- no file but its own: it starts in an empty folder of its own and may write only there; it may read only Python's and the
  system's libraries (Landlock, and a user of its own when it is started by root);
- bounds on wall-clock time, CPU time, memory, file size, open files and threads;
- nothing of the caller: a fresh interpreter with an empty environment, without site-packages, killed with its caller.

What it does not promise: it is no virtual machine. A hole in the kernel is a hole in it; it does not hide the machine's
time, CPU model or load; and other runs on the same machine can be slowed down within the bounds. Where neither Landlock
nor another user is to be had, or seccomp is not, it refuses to run anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from rlvlm.errors import RewardError

_USERS = range(61_000, 64_000)
"""User ids that runs get when the caller is root: below the usual limit of containers, above those of accounts."""
_STDERR_CHARS = 2000


@dataclass(frozen=True)
class Limits:
    """Bounds on one run: wall-clock and CPU seconds, memory in MiB, bytes of a file or of the output."""

    seconds: float = 4.0
    memory_mb: int = 512
    output_bytes: int = 1 << 20


@dataclass(frozen=True)
class Run:
    """What a run left: its output, the end of its error output, the results of the calls, and how it ended.

    ``results`` holds for each call ``{"value": repr}`` or ``{"error": type}``, as far as the run came.
    """

    stdout: str
    stderr: str
    results: tuple[dict[str, str], ...]
    exit_code: int
    timed_out: bool


def run_python(code: str, *, stdin: str = "", calls: Sequence[str] = (), limits: Limits | None = None) -> Run:
    """Executes a program in the sandbox, then evaluates expressions in its names.

    Args:
        code: source of the program.
        stdin: what it reads.
        calls: expressions, evaluated one after another; of each the ``repr`` of its value is kept.

    Raises ``RewardError`` where the sandbox can't be set up; the program's own faults are in the result.
    """
    if sys.platform != "linux":
        raise RewardError(
            f"the sandbox needs Linux (seccomp, Landlock), this is {sys.platform}; run code rewards there."
        )
    limits = limits or Limits()
    home = tempfile.mkdtemp(prefix="rlvlm-sandbox-")
    try:
        with contextlib.ExitStack() as stack:
            channel, results, out, errors, given = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(5))
            uid = secrets.choice(_USERS) if os.geteuid() == 0 else None
            if uid is not None:
                os.chown(home, uid, uid)
            job = _job(code, calls, limits, home, uid, results.fileno())
            channel.write(json.dumps(job).encode("utf-8"))
            channel.seek(0)
            given.write(stdin.encode("utf-8", "surrogatepass"))
            given.seek(0)
            fds = [channel.fileno(), results.fileno()]
            process = subprocess.Popen(
                [sys.executable, "-S", "-s", "-B", "-c", _launcher(), str(fds[0])],
                stdin=given,
                stdout=out,
                stderr=errors,
                pass_fds=fds,
                cwd=home,
                env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8:replace"},
                start_new_session=True,
            )
            timed_out = _wait(process, limits.seconds)
            return _read(process, timed_out, results, out, errors, limits)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _job(
    code: str, calls: Sequence[str], limits: Limits, home: str, uid: int | None, results_fd: int
) -> dict[str, Any]:
    return {
        "code": code,
        "calls": list(calls),
        "home": home,
        "uid": uid,
        "results_fd": results_fd,
        "memory_mb": limits.memory_mb,
        "cpu_seconds": max(1, round(limits.seconds + 0.5)),
        "file_bytes": limits.output_bytes,
    }


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits for the end of the run; kills it when the time is up, and tells whether it was."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(
    process: subprocess.Popen[bytes], timed_out: bool, results: Any, out: Any, errors: Any, limits: Limits
) -> Run:
    texts = []
    for file in (results, out, errors):
        file.seek(0)
        texts.append(file.read(limits.output_bytes).decode("utf-8", "replace"))
    lines = texts[0].splitlines()
    setup = _object(lines[0]).get("setup") if lines else None
    if setup is None and not timed_out:
        raise RewardError(f"the sandbox did not start (exit code {process.returncode}): {texts[2][-300:].strip()}.")
    if setup:
        raise RewardError(f"the sandbox can't be set up here: {setup}; run code rewards on a machine that allows it.")
    return Run(texts[1], texts[2][-_STDERR_CHARS:], tuple(map(_object, lines[1:])), process.returncode, timed_out)


def _object(line: str) -> dict[str, str]:
    """A result line; whatever a program may have written in its place counts as no result."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


@lru_cache(maxsize=1)
def _launcher() -> str:
    return files("rlvlm.rewards").joinpath("sandbox_child.py").read_text(encoding="utf-8")
