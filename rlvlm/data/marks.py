"""Where pictures and boxes stand in a record's texts, in the ways of several libraries, as ``<image>`` marks and plain words.

``<image 1>`` and the like name a picture by number (MMMU, Phi), ``<img>path</img>`` holds its path (Qwen-VL), ``<ref-object>``
and ``<bbox>`` take names and boxes of an ``objects`` column (ms-swift). Slots are what the marks and parts of a dialogue stand for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvlm.data.pixels import is_picture_name
from rlvlm.errors import DataError

IMAGE = "<image>"
"""Where the next picture stands in a text."""
_NUMBERED = re.compile(r"<image[ _-]?(\d+)>|<\|image_(\d+)\|>")
_INLINE = re.compile(r"<img>([^<>\n]{1,4096})</img>")
_OBJECT = re.compile(r"<ref-object>|<bbox>")


@dataclass(frozen=True)
class Slot:
    """One mark's picture: the one that it holds itself, the one at ``index`` of the picture column, or else the next."""

    held: Any = None
    index: int | None = None


def fill_slots(slots: Sequence[Slot], column: Sequence[Any]) -> list[Any]:
    """The pictures in the order of their marks.

    Parts that name a picture by index show that one, also twice; pictures that no index names are not shown. Where as many
    pictures stand in the column as there are marks, the column's are taken, else those that the parts hold.

    Raises ``DataError`` for an index beyond the column.
    """
    if not slots:
        return list(column)
    named = any(slot.index is not None for slot in slots)
    if not named and (len(column) == len(slots) or all(slot.held is None for slot in slots)):
        return list(column)
    free = iter(column)
    filled: list[Any] = []
    for slot in slots:
        if slot.held is not None:
            filled.append(slot.held)
        elif slot.index is not None:
            if not 0 <= slot.index < len(column):
                raise DataError(
                    f"an image part has index {slot.index}, and the row holds {len(column)} pictures; indices count from 0."
                )
            filled.append(column[slot.index])
        elif (picture := next(free, None)) is not None:
            filled.append(picture)
    return filled if named else [*filled, *free]


def read_marks(
    texts: Sequence[str], pictures: Sequence[Any], numbers: Sequence[int], objects: Any
) -> tuple[list[str], list[Any]]:
    """Texts whose marks are ``<image>`` and words alone, and the pictures in the order of these marks.

    Args:
        texts: in their order.
        pictures: of the row's columns.
        numbers: what numbered marks call each of them by.
        objects: the row's ``objects`` column, or ``None``.

    Raises ``DataError`` for a mark that names no picture, and for fewer or more objects than marks.
    """
    texts = _with_objects(texts, objects)
    texts, inline = _take_inline(texts, len(pictures))
    if inline:
        return texts, inline
    return _take_numbered(texts, pictures, numbers)


def _replaced(pattern: re.Pattern[str], texts: Sequence[str], by: Callable[[re.Match[str]], str]) -> list[str]:
    return [pattern.sub(by, text) for text in texts]


def _take_inline(texts: Sequence[str], pictures: int) -> tuple[list[str], list[Any]]:
    """``<img>path</img>`` as marks with their pictures; where the columns hold as many, these stand there."""
    found: list[Any] = []

    def by(match: re.Match[str]) -> str:
        path = match[1].strip()
        if not (is_picture_name(path) or path[:5].lower() in ("data:", "file:", "http:", "https")):
            return match[0]
        found.append(path)
        return IMAGE

    marked = _replaced(_INLINE, texts, by)
    if not found:
        return list(texts), []
    if any(IMAGE in text for text in texts):
        raise DataError(f"the text has both {IMAGE} and <img>path</img> marks; give all pictures one kind.")
    if pictures and pictures != len(found):
        raise DataError(
            f"the text names {len(found)} pictures by <img>path</img>, and the columns hold {pictures}; keep one of them."
        )
    return marked, [] if pictures else found


def _take_numbered(
    texts: Sequence[str], pictures: Sequence[Any], numbers: Sequence[int]
) -> tuple[list[str], list[Any]]:
    """``<image 2>`` and its like as ``<image>``; pictures that no mark names stand before the first mark's text."""
    named = [int(match[1] or match[2]) for text in texts for match in _NUMBERED.finditer(text)]
    if not named:
        return list(texts), list(pictures)
    if any(IMAGE in text for text in texts):
        raise DataError(
            f"the text has both {IMAGE} and numbered marks such as <image {named[0]}>; give all pictures one kind."
        )
    if 0 in named and 0 not in numbers:
        numbers = range(len(pictures))
    held = dict(zip(numbers, pictures, strict=True))
    missing = next((number for number in named if number not in held), None)
    if missing is not None:
        raise DataError(
            f"the text names <image {missing}>, and the row holds {len(pictures)} pictures{_listed(held)}; name their column by "
            "'columns: {images: …}', or mend the text."
        )
    others = [picture for number, picture in held.items() if number not in named]
    marked = _replaced(_NUMBERED, texts, lambda _: IMAGE)
    first = next(place for place, text in enumerate(marked) if IMAGE in text)
    marked[first] = IMAGE * len(others) + marked[first]
    return marked, [*others, *(held[number] for number in named)]


def _listed(held: Mapping[int, Any]) -> str:
    return f" ({', '.join(map(str, held))})" if held else ""


def _with_objects(texts: Sequence[str], objects: Any) -> list[str]:
    """``<ref-object>`` and ``<bbox>`` as the names and boxes of the column, one after the other."""
    if isinstance(objects, str) and objects.strip():
        try:
            objects = json.loads(objects)
        except ValueError as error:
            raise DataError(f"'objects' is no valid JSON ({error}).") from error
    if not objects:
        if any("<ref-object>" in text for text in texts):
            raise DataError(
                "the text has <ref-object> marks and the row no 'objects'; give it the names in objects.ref."
            )
        return list(texts)
    marks = [match[0] for text in texts for match in _OBJECT.finditer(text)]
    if not marks:
        return list(texts)
    names, boxes = _objects(objects)
    for mark, held, key in (("<ref-object>", names, "ref"), ("<bbox>", boxes, "bbox")):
        if marks.count(mark) != len(held) and (mark in marks or key == "bbox"):
            raise DataError(
                f"the text has {marks.count(mark)} {mark} marks for {len(held)} entries of objects.{key}; give each one."
            )
    left: dict[str, Iterator[str]] = {"<ref-object>": iter(names), "<bbox>": iter(boxes)}
    return _replaced(_OBJECT, texts, lambda match: next(left[match[0]]))


def _objects(objects: Any) -> tuple[list[str], list[str]]:
    """Names, and boxes as text, of ``{ref: […], bbox: […]}`` or ``[{caption, bbox}, …]``."""
    if isinstance(objects, Mapping):
        names, boxes = objects.get("ref") or [], objects.get("bbox") or []
    elif isinstance(objects, Sequence) and all(isinstance(one, Mapping) and "bbox" in one for one in objects):
        names, boxes = [one.get("caption", one.get("ref", "")) for one in objects], [one["bbox"] for one in objects]
    else:
        raise DataError(f"'objects' is {{ref: […], bbox: […]}}, got {str(objects)[:60]}.")
    return [str(name) for name in names], [json.dumps(box) for box in boxes]
