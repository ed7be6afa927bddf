"""A run directory that can't be written: one sentence that says why, whatever was being written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from rlvlm.errors import StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EIO, errno.ESTALE}


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns an error of the file system about a run directory into a ``StorageError``; others pass as they are."""
    try:
        yield
    except OSError as error:
        if not _is_about(error, folder):
            raise
        raise StorageError(_sentence(folder, error)) from error


@contextlib.contextmanager
def saving(what: str, folder: Path) -> Iterator[None]:
    """The same around libraries that wrap such errors in kinds of their own, as torch's and safetensors' writers do."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, OSError):
            raise StorageError(_sentence(folder, error)) from error
        if not _wraps_system_error(error):
            raise
        raise StorageError(_cut_short(what, folder, error)) from error


def _is_about(error: OSError, folder: Path) -> bool:
    if error.errno in _FULL:
        return True
    named = [str(name) for name in (error.filename, error.filename2) if name is not None]
    inside = any(os.path.abspath(name).startswith(str(folder)) or str(folder).startswith(name) for name in named)
    return error.errno in _DENIED and inside


def _sentence(folder: Path, error: OSError) -> str:
    reason = (error.strerror or str(error) or type(error).__name__).rstrip(".").lower()
    if error.errno in _FULL:
        return (
            f"the run directory '{folder}' can't be written ({reason}); free some space there, then start the run again, "
            "which goes on from its newest checkpoint."
        )
    return f"the run directory '{folder}' can't be written ({reason}); choose another with run.dir, or allow writing there."


def _wraps_system_error(error: Exception) -> bool:
    text = str(error).lower()
    return any(
        mark in text for mark in ("os error", "i/o error", "no space", "inline_container", "failed writing file")
    )


def _cut_short(what: str, folder: Path, error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    reason = "the disk took only a part of it" if "inline_container" in text else text
    return (
        f"{what} can't be written to '{folder}' ({reason}); free some space there, then start the run again, which goes on "
        "from its newest checkpoint."
    )
