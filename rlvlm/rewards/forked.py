"""Calls a library that may abort, hang or eat memory on hostile input, in a copy of this process that may die."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import select
import signal
import time
from collections.abc import Callable

_WALL_FACTOR = 10.0
"""Wall-clock seconds for each CPU second: only for what waits for ever, so that other work on the machine does not count."""


def run_forked(work: Callable[[], bytes], *, seconds: int, memory_mb: int) -> bytes | None:
    """What ``work`` returns, or ``None`` where it did not come to an end within the bounds, whatever ended it.

    Args:
        work: must not use locks or threads of this process, since a copy has only the thread that made it.
        seconds: of CPU time.
        memory_mb: address space beyond what the process has now.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _work_and_exit(work, writer, seconds, memory_mb)
    os.close(writer)
    try:
        found = _read(reader, time.monotonic() + seconds * _WALL_FACTOR)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    size = int.from_bytes(found[:8], "little")
    return found[8:] if len(found) >= 8 and len(found) == 8 + size else None


def _work_and_exit(work: Callable[[], bytes], writer: int, seconds: int, memory_mb: int) -> None:
    """The child's side: only ``_exit`` leaves it, so that nothing of the parent's clean-up runs twice."""
    try:
        faulthandler.disable()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)  # what a library says while it aborts
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (memory_mb << 20),) * 2)
        found = work()
        view = memoryview(len(found).to_bytes(8, "little") + found)
        while view:
            view = view[os.write(writer, view) :]
    finally:
        os._exit(0)


def _read(reader: int, end: float) -> bytes:
    """All that the child writes; nothing where it does not close its end in time."""
    pieces: list[bytes] = []
    while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(reader, 1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
    return b""
