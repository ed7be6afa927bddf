"""Keeps freed host memory with the process, for engines that compute on the CPU."""

from __future__ import annotations

import ctypes
import functools
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
KEPT = 256 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Tells glibc to keep up to 256 MiB of freed memory, and to serve blocks below that from it; says whether it could.

    Each pass allocates the same tensors again; given back to the system every time, their pages must be faulted in anew. The
    environment variables MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ do the same when set before the process starts.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # musl and others have no mallopt
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT)) and bool(mallopt(_MMAP_THRESHOLD, KEPT))
