"""Where the members of a tar lie: a scan of its headers alone, and an index of rows in a few flat arrays."""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rlvlm.errors import DataError

_BLOCK = 512
_EMPTY, _BLANKS = bytes(_BLOCK), b" " * 8
_NEAR, _WINDOW = 1 << 15, 1 << 18  # bytes: members up to so far apart are looked at through windows of that size
_REGULAR, _OLD_REGULAR, _GNU_LONG_NAME, _PAX = b"0", b"\0", b"L", b"x"
Member = tuple[str, int, int]


class TarIndex:
    """The members of each row of a tar, rows in the order of their first members; about a hundred bytes of memory a row.

    A row's members share their name up to the first dot behind the last slash; hidden files belong to no row.
    """

    def __init__(self, path: str) -> None:
        extensions: dict[str, int] = {}
        kinds, starts, sizes = array("l"), array("q"), array("q")
        first_members, names, name_ends, hashes = array("q"), bytearray(), array("q", [0]), array("q")  # of stretches
        last = None
        for name, start, size in tar_members(path):
            cut = name.find(".", name.rfind("/") + 1)
            key, extension = (name[:cut], name[cut + 1 :]) if cut >= 0 else (name, "")
            if not key or key[-1] == "/":
                continue
            if key != last:
                last = key
                first_members.append(len(kinds))
                names += key.encode()
                name_ends.append(len(names))
                hashes.append(hash(key))
            kinds.append(extensions.setdefault(extension, len(extensions)))
            starts.append(start)
            sizes.append(size)
        self._extensions, self._names = list(extensions), bytes(names)
        self._kinds, self._starts, self._sizes = (np.array(values, np.int64) for values in (kinds, starts, sizes))
        self._name_ends = np.array(name_ends, np.int64)
        bounds = np.append(np.array(first_members, np.int64), len(kinds))
        self._row_names, self._order, self._row_ends = self._rows(bounds, np.array(hashes))

    def _rows(
        self, bounds: NDArray[np.int64], hashes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Which stretch names each row, the members in the order of the rows, and where each row's members end.

        Args:
            bounds, hashes: of stretches of members with one name: where they begin, and of that name.
        """
        stretches = len(bounds) - 1
        if len(np.unique(hashes)) == stretches:  # as WebDataset writes them: a row's members lie side by side
            return np.arange(stretches), np.arange(bounds[-1]), bounds
        row_of: dict[bytes, int] = {}
        named: list[int] = []
        rows = np.empty(stretches, np.int64)
        for stretch in range(stretches):
            rows[stretch] = row = row_of.setdefault(self._name(stretch), len(row_of))
            if row == len(named):
                named.append(stretch)
        of_member = np.repeat(rows, np.diff(bounds))
        ends = np.concatenate([[0], np.cumsum(np.bincount(of_member))])
        return np.array(named), np.argsort(of_member, kind="stable"), ends

    def _name(self, stretch: int) -> bytes:
        return self._names[self._name_ends[stretch] : self._name_ends[stretch + 1]]

    def __len__(self) -> int:
        return len(self._row_names)

    def key(self, row: int) -> str:
        """What the names of a row's members begin with."""
        return self._name(int(self._row_names[row])).decode()

    def __getitem__(self, row: int) -> list[Member]:
        """(extension, start, size) of each member of a row."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        members = self._order[self._row_ends[row] : self._row_ends[row + 1]].tolist()
        return [(self._extensions[self._kinds[m]], int(self._starts[m]), int(self._sizes[m])) for m in members]


def tar_members(path: str) -> Iterator[Member]:
    """(name, start, size) of each regular file in a tar, from the headers alone; ``DataError`` if it is cut off."""
    total = os.path.getsize(path)
    with open(path, "rb") as file:
        header_at = _Window(file.fileno()).at
        place, name, long_name = 0, "", None
        while place + _BLOCK <= total:
            header = header_at(place)
            if header == _EMPTY:
                return
            name, size, kind = _read_header(path, header, place)
            place += _BLOCK
            if place + size > total:
                raise DataError(f"{path}: cut off inside member '{name}'; the tar is not whole.")
            if kind == _GNU_LONG_NAME:
                long_name = os.pread(file.fileno(), size, place).rstrip(b"\0").decode()
            elif kind == _PAX:
                long_name = _pax_path(os.pread(file.fileno(), size, place)) or long_name
            else:
                if kind in (_REGULAR, _OLD_REGULAR):
                    yield long_name or name, place, size
                long_name = None
            place += -(-size // _BLOCK) * _BLOCK
        behind = f"behind member '{name}'" if name else "before the first member"
        raise DataError(f"{path}: cut off {behind}, where an end mark should stand; the tar is not whole.")


class _Window:
    """Headers of a file, many at a time while members are small, one by one where they lie far apart."""

    def __init__(self, file: int) -> None:
        self._file, self._start, self._held = file, 0, b""

    def at(self, place: int) -> bytes:
        """The header at a place."""
        offset = place - self._start
        if offset + _BLOCK > len(self._held):
            near = offset - len(self._held) < _NEAR
            self._start, offset = place, 0
            self._held = os.pread(self._file, _WINDOW if near else _BLOCK, place)
        return self._held[offset : offset + _BLOCK]


def _read_header(path: str, header: bytes, place: int) -> tuple[str, int, bytes]:
    try:
        size, stated = _number(header[124:136]), int(header[148:156].strip(b"\0 "), 8)
    except ValueError:
        size, stated = 0, -1
    # the checksum is the sum of the header's bytes, its own field read as blanks; the low half of Adler-32 is 1 + the sum
    found = zlib.adler32(header[156:], zlib.adler32(_BLANKS, zlib.adler32(header[:148]))) & 0xFFFF
    if found != (1 + stated) % 65521:
        raise DataError(
            f"{path}: no tar header at byte {place}; the tar is broken, or compressed (unpack it first: rows are read in place)."
        )
    name = header[:100].partition(b"\0")[0].decode("utf-8", "replace")
    if header[345] and header[257:263] == b"ustar\0":
        prefix = header[345:500].rstrip(b"\0").decode("utf-8", "replace")
        name = f"{prefix}/{name}"
    return name, size, header[156:157]


def _number(field: bytes) -> int:
    return int.from_bytes(field[1:], "big") if field[0] & 0x80 else int(field.strip(b"\0 ") or b"0", 8)


def _pax_path(content: bytes) -> str | None:
    while content:
        length = int(content.partition(b" ")[0])
        key, _, value = content[: length - 1].partition(b" ")[2].partition(b"=")
        if key == b"path":
            return value.decode()
        content = content[length:]
    return None
