"""JSON lines and JSON arrays as lazy sequences of rows: only the places of the rows are kept in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rlvlm.data.identity import check_unchanged, stamp
from rlvlm.data.listings import refuse_no_rows
from rlvlm.data.sources import register_source
from rlvlm.errors import DataError

_CHUNK = 1 << 20  # bytes scanned at once: a chunk and what is worked out of it stay in the cache
_QUOTE, _BACKSLASH, _NEWLINE = (ord(char) for char in '"\\\n')
_STEPS = np.zeros(256, np.int8)  # what a byte outside strings does to the depth of nesting
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_MARKS = _STEPS != 0
_MARKS[ord(",")] = True


class JsonRows(Sequence[dict[str, Any]]):
    """Rows of a JSON file by their byte ranges [N, 2]; eight bytes a bound, so a million rows take 16 MB.

    Reading a row parses only its own bytes and raises ``DataError`` if they are no JSON object.
    """

    def __init__(self, path: str, scan: Callable[[str], NDArray[np.int64]]) -> None:
        self.path, self._stamp = path, stamp(path)
        self._ranges = scan(path) if self._stamp[1] else np.zeros((0, 2), np.int64)
        check_unchanged(path, self._stamp)
        self._file: BinaryIO | None = None

    def __len__(self) -> int:
        return len(self._ranges)

    def __getitem__(self, row: Any) -> Any:
        check_unchanged(self.path, self._stamp)  # the places of rows are those of the file as it was
        if self._file is None:
            self._file = open(self.path, "rb")  # noqa: SIM115 - stays open as long as the rows are read
        try:
            value = json.loads(_slice(self._file, self._ranges[row]).decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:  # bad JSON or bad UTF-8
            raise DataError(f"{self.path}, row {row}: no valid JSON ({error}).") from error
        if not isinstance(value, dict):
            raise DataError(f"{self.path}, row {row}: a row is a JSON object, got {type(value).__name__}.")
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


@register_source("jsonl")
def jsonl(path: str) -> Sequence[dict[str, Any]]:
    """One JSON object a line; blank lines are passed over."""
    return JsonRows(path, _line_ranges)


@register_source("json")
def json_array(path: str) -> Sequence[dict[str, Any]]:
    """A JSON array of objects (or JSON lines under that name), read without parsing the whole."""
    first = _first_byte(path)
    if first == b"{":
        refuse_no_rows(path)
    return JsonRows(path, _array_ranges if first == b"[" else _line_ranges)


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
    """Byte ranges of a top-level array's entries: between its brackets and the commas at depth 1, strings aside."""
    commas: list[NDArray[np.int64]] = []
    depth, inside, opened, closed = 0, np.uint8(0), -1, -1
    for start, chunk in _chunks(path):
        in_string = np.bitwise_xor.accumulate(_unescaped_quotes(chunk).view(np.uint8)) ^ inside
        inside = in_string[-1]
        places = np.flatnonzero(_MARKS[chunk] & (in_string == 0))
        steps = _STEPS[chunk[places]]
        depths = np.cumsum(steps, dtype=np.int64) + depth
        if opened < 0 and len(places):
            opened = start + int(places[0])
        commas.append(places[(steps == 0) & (depths == 1)] + start)
        if closed < 0 and len(ends := places[(steps == -1) & (depths == 0)]):
            closed = start + int(ends[0])
        depth = int(depths[-1]) if len(depths) else depth
    if closed < 0:
        raise DataError(f"{path}: the JSON array is not closed; the file was cut off.")
    _check_end(path, closed + 1)
    cuts = np.concatenate([[opened], *commas, [closed]]).astype(np.int64)
    ranges = np.stack([cuts[:-1] + 1, cuts[1:]], axis=1)
    with open(path, "rb") as file:
        return ranges[:0] if len(ranges) == 1 and not _slice(file, ranges[0]).strip() else ranges


def _check_end(path: str, end: int) -> None:
    """Raises ``DataError`` where anything but blanks stands behind the array."""
    with open(path, "rb") as file:
        file.seek(end)
        while chunk := file.read(_CHUNK):
            if rest := chunk.strip(b" \t\r\n\0"):
                shown = rest[:40].decode("utf-8", "replace")
                raise DataError(
                    f"{path}: {shown!r} stands behind the end of the JSON array; put all rows into one array, or one to a line of a "
                    ".jsonl file."
                )


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
