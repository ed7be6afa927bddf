"""WebDataset tars as lazy sequences of rows: members that share a base name are one row.

Only the places of the members are kept. A row holds the fields of its ``json`` member; ``txt`` is its caption, and its
picture members, of any suffix of a picture format that is read and in the order of their names, are its ``images``. In a tar that
``rlvlm data pack`` wrote, a row is a whole packed bin.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from rlvlm.data.files.tar_index import TarIndex
from rlvlm.data.identity import check_unchanged, stamp
from rlvlm.data.pixels import is_picture, is_picture_name, is_video_name
from rlvlm.data.sources import register_source
from rlvlm.errors import DataError

_TEXTS = ("txt", "caption")


class TarRows(Sequence[dict[str, Any]]):
    """Rows of one uncompressed tar, by the places of their members: about a hundred bytes of memory a row."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stamp = stamp(path)
        self._index = TarIndex(path)
        check_unchanged(path, self._stamp)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, row: Any) -> Any:
        contents = self.files(row)
        fields: dict[str, Any] = {"__key__": self._index.key(row)}
        pictures = []
        for extension in sorted(contents, key=_natural):
            kind = extension.rpartition(".")[2].lower()
            if is_picture_name(f".{kind}"):
                pictures.append(contents[extension])
            elif kind == "json":
                fields.update(self._parsed(contents[extension], row))
            elif kind in _TEXTS:
                fields["caption"] = self._text(contents[extension], row)
            elif is_video_name(f".{kind}"):
                raise DataError(
                    f"{self.path}, row {row}: its member '.{extension}' is a video or sound, which is not read; leave the row out."
                )
            elif is_picture(contents[extension]):
                pictures.append(contents[extension])
        if pictures:
            fields["images"] = pictures
        return fields

    def _text(self, content: bytes, row: int) -> str:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}, row {row}: its text member is no UTF-8 ({error}).") from error

    def files(self, row: int) -> dict[str, bytes]:
        """The members of a row: extension (all behind the first dot) to content."""
        check_unchanged(self.path, self._stamp)
        with open(self.path, "rb") as file:
            files = {extension: os.pread(file.fileno(), size, start) for extension, start, size in self._index[row]}
        check_unchanged(self.path, self._stamp)  # what was read is of the file that was indexed
        return files

    def _parsed(self, content: bytes, row: int) -> dict[str, Any]:
        try:
            value = json.loads(content)
        except ValueError as error:
            raise DataError(f"{self.path}, row {row}: its json member is no valid JSON ({error}).") from error
        if not isinstance(value, dict):
            raise DataError(f"{self.path}, row {row}: its json member is an object, got {type(value).__name__}.")
        return value


def _natural(extension: str) -> tuple[list[str | int], str]:
    """Orders ``2.png`` before ``10.jpg``: what stands before the kind counts first, its numbers as numbers."""
    stem, _, kind = extension.rpartition(".")
    pieces = re.split(r"([0-9]+)", stem)  # texts at even places, numbers at odd ones: equal places compare
    return [int(piece) if place % 2 else piece for place, piece in enumerate(pieces)], kind


@register_source("webdataset")
def webdataset(path: str) -> Sequence[dict[str, Any]]:
    """One WebDataset tar: pictures, ``json`` and ``txt`` that share a base name are one row."""
    return TarRows(path)
