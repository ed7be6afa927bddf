"""One process at a time in a run directory: a lock that the system releases when its process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvlm.errors import ConfigError

FILE = ".lock"
_LOG = logging.getLogger("rlvlm")
_HELD: set[int] = set()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a run directory; raises ``ConfigError`` naming the process and host that hold it already."""
    path = folder / FILE
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(handle, folder)
    except BaseException:
        os.close(handle)
        raise
    _HELD.add(handle)
    try:
        _write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        if handle in _HELD:  # not in a child, which has closed it
            _HELD.discard(handle)
            _write(handle, "")  # the file stays: one that is deleted could be locked twice
            os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"the run directory '{folder}' is in use by {_holder(handle)}; wait until that process has ended, or choose "
            "another run.name."
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
            raise
        _LOG.warning("the file system of '%s' has no locks; start no second process in it.", folder)


def _holder(handle: int) -> str:
    try:
        told: dict[str, Any] = json.loads(os.pread(handle, 4096, 0))
        return f"process {told['pid']} on host '{told['host']}'"
    except (ValueError, KeyError):  # the holder has the lock and has not written its name yet
        return "another process"


def _write(handle: int, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def _leave_to_parent() -> None:
    for handle in _HELD:
        os.close(handle)
    _HELD.clear()


os.register_at_fork(after_in_child=_leave_to_parent)  # a child that outlives its parent must not keep the lock
