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
_FILES = (b"0", b"\0", b"7")
_GNU_LONG_NAME, _PAX, _SPARSE = b"L", b"x", b"S"
_WITHOUT_CONTENT = (
    b"1",
    b"2",
    b"3",
    b"4",
    b"5",
    b"6",
)  # links, devices, folders: a size that they state counts for nothing
_LONGEST_NOTE = 1 << 20  # bytes of a long name or of pax fields
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
        place, name = 0, ""
        fields: dict[str, bytes] = {}  # of the member that comes next
        while place + _BLOCK <= total:
            header = header_at(place)
            if header == _EMPTY:
                return
            name, size, kind = _read_header(path, header, place)
            place += _BLOCK
            if kind in (_GNU_LONG_NAME, _PAX):
                if size > _LONGEST_NOTE or place + size > total:
                    raise DataError(f"{path}: the long name at byte {place} takes {size} bytes; the tar is broken.")
                note = os.pread(file.fileno(), size, place)
                if kind == _PAX:
                    fields.update(_pax_fields(path, note, place))
                else:
                    fields["path"] = note.partition(b"\0")[0]
            else:
                name = _text(fields["path"]) if "path" in fields else name
                size = 0 if kind in _WITHOUT_CONTENT else _pax_size(path, fields, size, place)
                if place + size > total:
                    raise DataError(f"{path}: cut off inside member '{name}'; the tar is not whole.")
                if kind == _SPARSE or any(field.startswith("GNU.sparse") for field in fields):
                    raise DataError(
                        f"{path}: member '{name}' is sparse, which is not read; write the tar without --sparse."
                    )
                if kind in _FILES:
                    yield name, place, size
                fields = {}
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
    if len(header) < _BLOCK or found != (1 + stated) % 65521:
        raise DataError(
            f"{path}: no tar header at byte {place}; the tar is broken, or compressed (unpack it first: rows are read in place)."
        )
    if size < 0:
        raise DataError(f"{path}: the member at byte {place} states a size of {size} bytes; the tar is broken.")
    name = _text(header[:100].partition(b"\0")[0])
    if header[345] and header[257:263] == b"ustar\0":
        prefix = _text(header[345:500].rstrip(b"\0"))
        name = f"{prefix}/{name}"
    return name, size, header[156:157]


def _text(name: bytes) -> str:
    """A name as text; bytes that are no UTF-8 are written ``\\xff``, so that different names stay different."""
    return name.decode("utf-8", "backslashreplace")


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # base 256, a two's complement behind the mark
        return int.from_bytes(field[1:], "big") - (1 << 8 * (len(field) - 1) if field[0] == 0xFF else 0)
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _pax_fields(path: str, content: bytes, place: int) -> dict[str, bytes]:
    """Pax fields, each ``length key=value`` and a line end, the length that of all of it."""
    fields: dict[str, bytes] = {}
    while content.strip(b"\0"):
        digits, _, rest = content.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 12 else 0
        if not len(digits) + 1 < length <= len(content):
            raise DataError(
                f"{path}: the pax field at byte {place} states a length of {digits[:20].decode('ascii', 'backslashreplace')!r}, and "
                f"{len(content)} bytes are left; the tar is broken."
            )
        key, _, value = rest[: length - len(digits) - 2].partition(b"=")
        fields[_text(key)] = value
        content, place = content[length:], place + length
    return fields


def _pax_size(path: str, fields: dict[str, bytes], size: int, place: int) -> int:
    if "size" not in fields:
        return size
    if not (fields["size"].isdigit() and len(fields["size"]) < 20):
        raise DataError(
            f"{path}: the member at byte {place} states a size of {_text(fields['size'][:20])!r}; the tar is broken."
        )
    return int(fields["size"])
