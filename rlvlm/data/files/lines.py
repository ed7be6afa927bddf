"""JSON lines and JSON arrays as lazy sequences of rows: only the places of the rows are kept in memory."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rlvlm.data.sources import register_source
from rlvlm.errors import DataError

_CHUNK = 1 << 24  # bytes scanned at once
_QUOTE, _BACKSLASH, _NEWLINE, _COMMA = (ord(char) for char in '"\\\n,')
_OPENING, _CLOSING = b"[{", b"]}"


class JsonRows(Sequence[dict[str, Any]]):
    """Rows of a JSON file by their byte ranges [N, 2]; eight bytes a bound, so a million rows take 16 MB.

    Reading a row parses only its own bytes and raises ``DataError`` if they are no JSON object.
    """

    def __init__(self, path: str, ranges: NDArray[np.int64]) -> None:
        self.path, self._ranges = path, ranges
        self._view: mmap.mmap | None = None

    def __len__(self) -> int:
        return len(self._ranges)

    def __getitem__(self, row: Any) -> Any:
        start, end = (int(bound) for bound in self._ranges[row])
        try:
            value = json.loads(self._bytes()[start:end].decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:  # bad JSON or bad UTF-8
            raise DataError(f"{self.path}, row {row}: no valid JSON ({error}).") from error
        if not isinstance(value, dict):
            raise DataError(f"{self.path}, row {row}: a row is a JSON object, got {type(value).__name__}.")
        return value

    def _bytes(self) -> mmap.mmap:
        if self._view is None:
            with open(self.path, "rb") as file:
                self._view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._view

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None}


@register_source("jsonl")
def jsonl(path: str) -> Sequence[dict[str, Any]]:
    """One JSON object a line; blank lines are passed over."""
    return JsonRows(path, _ranges(path, _line_ranges))


@register_source("json")
def json_array(path: str) -> Sequence[dict[str, Any]]:
    """A JSON array of objects (or JSON lines under that name), read without parsing the whole."""
    return JsonRows(path, _ranges(path, _array_ranges if _first_byte(path) == b"[" else _line_ranges))


def _ranges(path: str, scan: Callable[[str], NDArray[np.int64]]) -> NDArray[np.int64]:
    return scan(path) if os.path.getsize(path) else np.zeros((0, 2), np.int64)


def _first_byte(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


def _chunks(path: str) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    with open(path, "rb") as file:
        start = 0
        while chunk := file.read(_CHUNK):
            while chunk.endswith(b"\\") and (more := file.read(1)):  # so that no escape reaches over a chunk's end
                chunk += more
            yield start, np.frombuffer(chunk, np.uint8)
            start += len(chunk)


def _line_ranges(path: str) -> NDArray[np.int64]:
    ends = [np.flatnonzero(chunk == _NEWLINE) + start for start, chunk in _chunks(path)]
    newlines = np.concatenate([*ends, [os.path.getsize(path)]]).astype(np.int64)
    starts = np.concatenate([[0], newlines[:-1] + 1])
    ranges = np.stack([starts, newlines], axis=1)
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    short = np.flatnonzero(ranges[:, 1] - ranges[:, 0] <= 8)  # a line of blanks only is taken for one up to this length
    with open(path, "rb") as file:
        blank = [row for row in short if not _slice(file, ranges[row]).strip()]
    return np.delete(ranges, blank, axis=0)


def _array_ranges(path: str) -> NDArray[np.int64]:
    """Byte ranges of a top-level array's entries: commas at depth 1 that stand outside strings."""
    cuts, depth, inside = [], 0, False
    opened = closed = -1
    for start, chunk in _chunks(path):
        in_string = (np.cumsum(_unescaped_quotes(chunk)) + inside) % 2 == 1
        inside = bool(in_string[-1])
        outside = ~in_string
        step = np.zeros(len(chunk), np.int32)
        for char in _OPENING:
            step[(chunk == char) & outside] = 1
        for char in _CLOSING:
            step[(chunk == char) & outside] = -1
        depths = np.cumsum(step) + depth
        if opened < 0 and (rises := np.flatnonzero(depths == 1)).size:
            opened = start + int(rises[0])
        cuts.append(np.flatnonzero((chunk == _COMMA) & outside & (depths == 1)) + start)
        if (falls := np.flatnonzero((step == -1) & (depths == 0))).size and closed < 0:
            closed = start + int(falls[0])
        depth = int(depths[-1])
    if opened < 0 or closed < 0:
        raise DataError(f"{path}: the JSON array is not closed; the file was cut off.")
    commas = np.concatenate(cuts)
    starts = np.concatenate([[opened], commas]) + 1
    ranges = np.stack([starts, np.concatenate([commas, [closed]])], axis=1).astype(np.int64)
    with open(path, "rb") as file:
        return ranges[:0] if len(ranges) == 1 and not _slice(file, ranges[0]).strip() else ranges


def _slice(file: BinaryIO, bounds: NDArray[np.int64]) -> bytes:
    return os.pread(file.fileno(), int(bounds[1] - bounds[0]), int(bounds[0]))


def _unescaped_quotes(chunk: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where a quote opens or closes a string, in a chunk whose first byte is not escaped."""
    quote = chunk == _QUOTE
    backslash = chunk == _BACKSLASH
    behind = np.flatnonzero(quote[1:] & backslash[:-1]) + 1
    if behind.size:  # escaped when the run of backslashes before it is odd
        places = np.arange(len(chunk))
        last_other = np.maximum.accumulate(np.where(backslash, -1, places))
        run = behind - 1 - last_other[behind - 1]
        quote[behind[run % 2 == 1]] = False
    return quote
