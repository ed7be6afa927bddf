"""Boxes and points: reading them from text and records, coordinate spaces, IoU and matching."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rlvlm.errors import RewardError
from rlvlm.rewards.extract import fenced_blocks
from rlvlm.rewards.extras import require
from rlvlm.rewards.text import plain

Space = Literal["pixel", "norm1", "norm100", "norm1000", "resized"]
"""Units of coordinates: pixels of the picture as the record has it, 0..1, 0..100, 0..1000, or pixels as the model sees it."""
BoxFormat = Literal["xyxy", "xywh"]
Shape = tuple[float, ...]
"""x1, y1, x2, y2 of a box; x, y of a point."""

MAX_CHARS = 100_000
"""A longer answer holds no boxes."""
MAX_SHAPES = 300
"""More boxes or points than this are no answer."""

_NORMAL = {"norm1": 1.0, "norm100": 100.0, "norm1000": 1000.0}
_KEYS = {4: ("bbox_2d", "bbox", "box_2d", "box"), 2: ("point_2d", "point", "coordinate", "click")}
_CORNERS = ("x1", "y1", "x2", "y2")
_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_SEPARATOR = r"(?:\s*,\s*|\s+)"
_TUPLE = re.compile(rf"[\[(]\s*({_NUMBER}(?:{_SEPARATOR}{_NUMBER})*)\s*[\])]")
_BARE = re.compile(rf"\s*{_NUMBER}(?:{_SEPARATOR}{_NUMBER})*\s*")
_VALUE = re.compile(_NUMBER)
_XML_POINT = re.compile(rf'<point\s+x="\s*({_NUMBER})\s*"\s+y="\s*({_NUMBER})\s*"')


def read_shapes(text: str, size: int) -> list[Shape]:
    """Boxes (``size`` 4) or points (``size`` 2) that an answer states: JSON, ``bbox_2d`` objects, lists, or bare numbers.

    Shapes with a coordinate that is not finite are left out; one that is given three times is three shapes.
    """
    if len(text) > MAX_CHARS:
        return []
    text = plain(text) if "```" not in text else text
    blocks = [content for language, content in fenced_blocks(text) if language in ("", "json")]
    for source in (*blocks, text):
        try:
            found = shapes_in(json.loads(source), size)
        except (ValueError, RecursionError):  # not JSON, or nested beyond what a box can need
            continue
        if found:
            return found
    return _finite(_scan(text, size))


def shapes_in(value: Any, size: int) -> list[Shape]:
    """Boxes or points in parsed JSON, or in a record's column; raises ``RecursionError`` for a deep one."""
    return _finite(_walk(value, size))


def _walk(value: Any, size: int) -> Iterable[Any]:
    if isinstance(value, Mapping):
        keys = [key for key in _KEYS[size] if key in value]
        if keys:
            yield from _walk(value[keys[0]], size)
        elif size == 2 and "x" in value and "y" in value:
            yield (value["x"], value["y"])
        elif size == 4 and all(corner in value for corner in _CORNERS):
            yield [value[corner] for corner in _CORNERS]
        else:
            for inner in value.values():
                if isinstance(inner, (Mapping, list, tuple)):
                    yield from _walk(inner, size)
    elif isinstance(value, (list, tuple)):
        if len(value) == size and all(isinstance(part, (int, float)) and not isinstance(part, bool) for part in value):
            yield value
        elif (
            size == 4 and len(value) == 2 and all(isinstance(part, (list, tuple)) and len(part) == 2 for part in value)
        ):
            yield [*value[0], *value[1]]
        else:
            for inner in value:
                if isinstance(inner, (Mapping, list, tuple)):
                    yield from _walk(inner, size)


def _scan(text: str, size: int) -> Iterable[Sequence[Any]]:
    """Lists of exactly ``size`` numbers in running text; for boxes also pairs of points, as Qwen2-VL writes them."""
    lists = [(match.start(), match.end(), _VALUE.findall(match[1])) for match in _TUPLE.finditer(text)]
    if size == 2:
        yield from ((match[1], match[2]) for match in _XML_POINT.finditer(text))
    wanted = [values for _, _, values in lists if len(values) == size]
    if wanted:
        yield from wanted
        return
    if size == 4:
        position = 0
        while position + 1 < len(lists):
            (_, end, first), (start, _, second) = lists[position], lists[position + 1]
            paired = len(first) == len(second) == 2 and not text[end:start].strip(" ,\n")
            if paired:
                yield [*first, *second]
            position += 2 if paired else 1
    if not lists and _BARE.fullmatch(text) and len(values := _VALUE.findall(text)) == size:
        yield values


def _finite(shapes: Iterable[Any]) -> list[Shape]:
    kept: list[Shape] = []
    for shape in shapes:
        try:
            values = tuple(float(value) for value in shape)
        except (OverflowError, TypeError, ValueError):  # an integer beyond float, or nested where numbers belong
            continue
        if all(math.isfinite(value) for value in values):
            kept.append(values)
        if len(kept) > MAX_SHAPES:
            return []
    return kept


def read_gold(answer: Any, size: int) -> list[Shape]:
    """The record's gold boxes or points, given as numbers or as text; none raises ``RewardError``."""
    value = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(value, str) and any(
        isinstance(one, float) and not math.isfinite(one) for shape in _walk(value, size) for one in shape
    ):
        raise RewardError(f"the record's gold answer {str(value)[:80]!r} has a coordinate that is not finite; mend it.")
    found = written_shapes(value, size)
    if not found:
        what = "box of four numbers" if size == 4 else "point of two numbers"
        raise RewardError(f"the record's gold answer {str(answer)[:80]!r} holds no {what}; mend the record.")
    return found


def written_shapes(answer: Any, size: int) -> list[Shape]:
    """The record's boxes or points, given as numbers, as text, or as a list of texts; there may be none."""
    if isinstance(answer, str):
        return read_shapes(answer, size)
    if isinstance(answer, (list, tuple)) and any(isinstance(part, str) for part in answer):
        return _finite(
            shape for part in answer for shape in (read_shapes(part, size) if isinstance(part, str) else [part])
        )
    return shapes_in(answer.tolist() if hasattr(answer, "tolist") else answer, size)


def converted(shapes: Sequence[Shape], space: Space, target: Space, sizes: Mapping[str, Any]) -> list[Shape]:
    """Coordinates from one space in the units of another.

    Args:
        sizes: ``pixel`` and ``resized``, the sizes (width, height) that those spaces need; the same space needs none.

    Raises ``RewardError`` when a needed size is unknown.
    """
    if space == target:
        return list(shapes)
    (width, height), (to_width, to_height) = _extent(space, sizes), _extent(target, sizes)
    factors = (to_width / width, to_height / height)
    return [tuple(value * factors[axis % 2] for axis, value in enumerate(shape)) for shape in shapes]


def _extent(space: Space, sizes: Mapping[str, Any]) -> tuple[float, float]:
    if space in _NORMAL:
        return _NORMAL[space], _NORMAL[space]
    size = sizes.get(space)
    if size is None or len(size) != 2 or min(size) <= 0:
        column = "image_size" if space == "pixel" else "resized_size"
        raise RewardError(
            f"coordinates in '{space}' units need '{column}' (width, height) to be converted, got {size!r}."
        )
    return float(size[0]), float(size[1])


def gold_boxes(golds: Sequence[Shape], form: BoxFormat) -> list[Shape]:
    """The record's gold boxes as x1, y1, x2, y2; one without area, which nothing can match, raises ``RewardError``."""
    boxes = [corners(gold, form) for gold in golds]
    for gold, box in zip(golds, boxes, strict=True):
        if not _area(box):
            raise RewardError(
                f"the record's gold box {list(gold)} has no area as {form}; mend the record or the option 'gold_format'."
            )
    return boxes


def corners(box: Shape, form: BoxFormat) -> Shape:
    """A box as x1, y1, x2, y2."""
    return box if form == "xyxy" else (box[0], box[1], box[0] + box[2], box[1] + box[3])


def iou(box: Shape, other: Shape, *, generalised: bool = False) -> float:
    """IoU of two boxes, in 0..1; with ``generalised`` GIoU, in -1..1.

    A box that is empty, turned round or beyond floating point has the least. Source: Rezatofighi et al. 2019 (1902.09630).
    """
    area, other_area = _area(box), _area(other)
    if not area or not other_area:
        return -1.0 if generalised else 0.0
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    inner = width * height if width > 0 and height > 0 else 0.0
    union = area + other_area - inner
    value = inner / union if union > 0 else 0.0
    if generalised:
        hull = (max(box[2], other[2]) - min(box[0], other[0])) * (max(box[3], other[3]) - min(box[1], other[1]))
        value = value - (hull - union) / hull if math.isfinite(hull) else -1.0
    least = -1.0 if generalised else 0.0
    return min(1.0, max(least, value)) if math.isfinite(value) else least


def _area(box: Shape) -> float:
    """Area of a box; 0 for one that is empty, turned round, or not finite."""
    width, height = box[2] - box[0], box[3] - box[1]
    area = width * height if width > 0 and height > 0 else 0.0
    return area if math.isfinite(area) else 0.0


def matched_share(scores: Sequence[Sequence[float]]) -> float:
    """Sum over the pairs of the best one-to-one matching of rows and columns, over the larger of both counts."""
    import numpy as np

    table = np.asarray(scores, dtype=np.float64)
    rows, columns = require("scipy.optimize").linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum()) / max(table.shape)
