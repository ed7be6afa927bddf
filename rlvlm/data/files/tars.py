"""WebDataset tars as lazy sequences of rows: members that share a base name are one row.

Only the places of the members are kept. A row holds the fields of its ``json`` member; ``txt`` is its caption, and its
picture members, in the order of their names, are its ``images``. In a tar that ``rlvlm data pack`` wrote, a row is a whole packed bin.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rlvlm.data.sources import register_source
from rlvlm.errors import DataError

_BLOCK = 512
_PICTURES = {"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm"}
_REGULAR, _OLD_REGULAR, _GNU_LONG_NAME, _PAX = b"0", b"\0", b"L", b"x"
Member = tuple[str, int, int]


class TarRows(Sequence[dict[str, Any]]):
    """Rows of one uncompressed tar, by the places of their members."""

    def __init__(self, path: str) -> None:
        self.path = path
        groups: dict[str, list[Member]] = {}
        for name, start, size in tar_members(path):
            folder, _, base = name.rpartition("/")
            key, _, extension = base.partition(".")
            if key:  # a hidden file belongs to no row
                groups.setdefault(f"{folder}/{key}" if folder else key, []).append((extension, start, size))
        self._keys, self._members = list(groups), list(groups.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, row: Any) -> Any:
        contents = self.files(row)
        fields: dict[str, Any] = {"__key__": self._keys[row]}
        pictures = []
        for extension in sorted(contents, key=_natural):
            kind = extension.rpartition(".")[2].lower()
            if kind in _PICTURES:
                pictures.append(contents[extension])
            elif kind == "json":
                fields.update(self._parsed(contents[extension], row))
            elif kind in ("txt", "caption"):
                fields["caption"] = contents[extension].decode("utf-8")
        if pictures:
            fields["images"] = pictures
        return fields

    def files(self, row: int) -> dict[str, bytes]:
        """The members of a row: extension (all behind the first dot) to content."""
        with open(self.path, "rb") as file:
            return {extension: os.pread(file.fileno(), size, start) for extension, start, size in self._members[row]}

    def _parsed(self, content: bytes, row: int) -> dict[str, Any]:
        try:
            value = json.loads(content)
        except ValueError as error:
            raise DataError(f"{self.path}, row {row}: its json member is no valid JSON ({error}).") from error
        if not isinstance(value, dict):
            raise DataError(f"{self.path}, row {row}: its json member is an object, got {type(value).__name__}.")
        return value


def tar_members(path: str) -> Iterator[Member]:
    """(name, start, size) of each regular file in a tar, from the headers alone; ``DataError`` if it is cut off."""
    total = os.path.getsize(path)
    with open(path, "rb") as file:
        place, name, long_name = 0, "", None
        while place + _BLOCK <= total:
            header = os.pread(file.fileno(), _BLOCK, place)
            if not header.strip(b"\0"):
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
        if place > total:
            raise DataError(f"{path}: cut off behind member '{name}'; the tar is not whole.")


def _read_header(path: str, header: bytes, place: int) -> tuple[str, int, bytes]:
    name = header[:100].rstrip(b"\0").decode("utf-8", "replace")
    prefix = header[345:500].rstrip(b"\0").decode("utf-8", "replace") if header[257:262] == b"ustar" else ""
    try:
        size = _number(header[124:136])
        whole = _number(header[148:156]) == sum(header[:148]) + sum(header[156:]) + 8 * ord(" ")
    except ValueError:
        size, whole = 0, False
    if not whole:
        raise DataError(
            f"{path}: no tar header at byte {place}; the tar is broken, or compressed (unpack it first: rows are read in place)."
        )
    return (f"{prefix}/{name}" if prefix and header[257:263] == b"ustar\0" else name), size, header[156:157]


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


def _natural(extension: str) -> tuple[list[str | int], str]:
    """Orders ``2.png`` before ``10.jpg``: what stands before the kind counts first, its numbers as numbers."""
    stem, _, kind = extension.rpartition(".")
    pieces = re.split(r"([0-9]+)", stem)  # texts at even places, numbers at odd ones: equal places compare
    return [int(piece) if place % 2 else piece for place, piece in enumerate(pieces)], kind


@register_source("webdataset")
def webdataset(path: str) -> Sequence[dict[str, Any]]:
    """One WebDataset tar: pictures, ``json`` and ``txt`` that share a base name are one row."""
    return TarRows(path)
