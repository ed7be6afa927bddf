"""What is held of data files in memory: one budget of decoded bytes for all files of a process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

MAPPED = 8 << 20
"""Bytes that a memory-mapped piece counts for: it holds none of its own, but a file handle."""


class FileCache:
    """Decoded pieces of files, the most recently used ones, up to a number of bytes; the last one is always kept.

    Args:
        budget: bytes; it may be set anew at any time.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], tuple[Any, int]]) -> Any:
        """The piece of a key; ``load`` gives a missing one with its bytes."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        piece, size = load()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = piece, size
                self.used += size
            while self.used > self.budget and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self.used -= dropped
        return piece


FILES = FileCache(512 << 20)
"""The cache of this process; ``data.file_cache_mb`` sets its budget when sources are opened."""
