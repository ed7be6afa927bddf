"""The folder of a sandboxed program: how much is in it, and how it is removed whatever the program left there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache

MAX_ENTRIES = 1000
"""Files and folders that a program may have at once."""
MAX_BYTES = 64 << 20
"""Bytes that its files may take together."""

_PREFIX = "rlvlm-sandbox-"
_ABANDONED_AFTER = 60.0
_AS_ITSELF = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def own_folder() -> Iterator[str]:
    """An empty folder in the temporary folder, removed at the end; also those of processes that were killed are removed."""
    _remove_abandoned(tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    lock = os.open(folder, _AS_ITSELF)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as this process lives
        yield folder
    finally:
        remove(folder)
        os.close(lock)


@lru_cache(maxsize=1)
def _remove_abandoned(parent: str) -> None:
    """Removes the folders that no process holds, once in the life of this one."""
    for name in os.listdir(parent):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):  # another user's, or just removed by another process
            if time.time() - os.stat(path, follow_symlinks=False).st_mtime < _ABANDONED_AFTER:
                continue  # its process may be about to take the lock
            lock = os.open(path, _AS_ITSELF)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
            finally:
                os.close(lock)


def is_over(folder: str) -> bool:
    """Whether there is more in the folder than a program may have, or a part of it that can't be looked into."""
    entries, size, waiting = 0, 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    if entries > MAX_ENTRIES:
                        return True
                    size += _size_of(entry, waiting)
        except FileNotFoundError:  # removed by the program meanwhile
            continue
        except OSError:  # closed to its caller, or deeper than a path can name
            return True
        if size > MAX_BYTES:
            return True
    return False


def _size_of(entry: os.DirEntry[str], folders: list[str]) -> int:
    if entry.is_dir(follow_symlinks=False):
        folders.append(entry.path)
        return 0
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0


def remove(folder: str) -> None:
    """Removes the folder and all in it, once its program has ended: any depth, any mode, without following links."""
    top = os.open(folder, _AS_ITSELF)
    try:
        while found := os.listdir(top):
            for name in found:
                _take_out(top, name)
    finally:
        os.close(top)
    os.rmdir(folder)


def _take_out(top: int, name: str) -> None:
    """Removes a file, or a folder after its folders have moved up beside it: so no depth needs a stack or a long path."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, 0o700, dir_fd=top)  # nothing else runs here, so it is still a folder
    inner = os.open(name, _AS_ITSELF, dir_fd=top)
    try:
        for child in os.listdir(inner):
            if stat.S_ISDIR(os.stat(child, dir_fd=inner, follow_symlinks=False).st_mode):
                os.chmod(child, 0o700, dir_fd=inner)
                os.rename(child, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
            else:
                os.unlink(child, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
