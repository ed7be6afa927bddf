"""Whether a file is the one that it was: its size, its time and a hash of its content."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvlm.errors import DataError

WHOLE = 1 << 30
"""Bytes up to which all of a file is hashed. Of a larger one, blocks spread evenly and its time of modification: data may be terabytes."""

_BLOCK, _BLOCKS = 1 << 16, 4096
_SHORT_CUT = 1 << 20  # bytes from which a file with the recorded size and time is not read again


def identity(path: str, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Size, time (ns) and hash of a file; zeros for one that is not there, such as a repository of a hub.

    A file over ``WHOLE`` bytes that was changed between the blocks, with its old size and time put back, is taken for the same. One that
    was copied without its time is taken for another.

    Args:
        known: what was recorded of it; a larger file with that size and time is not read again.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        return {"size": 0, "time": 0, "hash": ""}
    found = file.stat()
    size, time = found.st_size, found.st_mtime_ns
    if known is not None and size > _SHORT_CUT and (known["size"], known["time"]) == (size, time):
        return dict(known)
    return {"size": size, "time": time, "hash": _hash(str(file.absolute()), size, time)}


Stamp = tuple[int, int, int]
"""Inode, size and time of modification (ns) of a file that is being read."""


def stamp(path: str) -> Stamp:
    """What :func:`check_unchanged` compares; ``DataError`` for a file that is gone."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}).") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_unchanged(path: str, before: Stamp) -> None:
    """Raises ``DataError`` for a file that was replaced or written to since ``before``: its rows would be mixed with those of another."""
    now = stamp(path)
    if now != before:
        raise DataError(
            f"{path}: the file was replaced or changed while it was being read (it had {before[1]} bytes when it was opened, "
            f"and has {now[1]}); leave data files as they are during a run, and start again with the new file."
        )


@functools.lru_cache(maxsize=4096)  # stages of one run, and runs of one sweep, name the same files
def _hash(path: str, size: int, time: int) -> str:
    digest = hashlib.sha256()
    if size <= WHOLE:
        starts: Any = range(0, size, _BLOCK)
    else:
        last = size - _BLOCK
        starts = [last * number // (_BLOCKS - 1) for number in range(_BLOCKS)]
        digest.update(str(time).encode())
    with open(path, "rb") as file:
        for start in starts:
            file.seek(start)
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()[:32]
