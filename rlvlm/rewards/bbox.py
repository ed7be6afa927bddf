"""``bbox`` and ``point``: grounding by boxes and points."""

from __future__ import annotations

import math
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.ranges import at_least
from rlvlm.rewards.geometry import (
    BoxFormat,
    Shape,
    Space,
    converted,
    corners,
    gold_boxes,
    iou,
    matched_share,
    read_gold,
    read_shapes,
    written_shapes,
)
from rlvlm.rewards.options import share
from rlvlm.rewards.rule import register_reward


@register_reward(
    "bbox",
    isolated=False,
    ranges=(share("iou_threshold"),),
    imports=("scipy",),
    example={
        "completion": '<answer>{"bbox_2d": [10, 20, 110, 220]}</answer>',
        "answer": [10, 20, 100, 200],
        "options": {"iou_threshold": 0.5},
    },
)
def bbox(
    answer_text: str,
    answer: Any,
    image_size: Any = None,
    resized_size: Any = None,
    *,
    pred_space: Space = "pixel",
    gold_space: Space | None = None,
    pred_format: BoxFormat = "xyxy",
    gold_format: BoxFormat = "xyxy",
    iou_threshold: float | None = None,
    giou: bool = False,
    multi: bool | None = None,
) -> float:
    """IoU of the answer's box with the gold box, 0..1; of several boxes the best matching's sum over the larger count.

    Reads lists, JSON and ``bbox_2d`` objects. Boxes that are empty, turned round or not finite score 0; a box that is
    given three times is three boxes, of which one can match (as COCO counts repeated detections).

    Args:
        pred_space, gold_space: units of the answer's and the gold's coordinates: ``pixel`` of the record's picture,
            ``norm1``, ``norm100``, ``norm1000``, or ``resized`` (pixels as the model sees the picture); ``gold_space``
            is ``pred_space`` unless given. Differing spaces need ``image_size`` or ``resized_size`` where they are in pixels.
        pred_format, gold_format: ``xyxy`` (two corners) or ``xywh`` (corner, width, height); never guessed.
        iou_threshold: overlap from which a box counts 1, below it 0; ``None`` pays the overlap itself.
        giou: pay (1 + GIoU) / 2, which also tells near misses from far ones; ``iou_threshold`` is compared with GIoU then,
            which is never above IoU.
        multi: whether several boxes may be asked for; ``None`` goes by the gold. Where one is, several are no answer.

    Raises ``RewardError`` when the gold holds no box, or one without area, or a size that is needed is unknown.
    """
    golds = gold_boxes(read_gold(answer, 4), gold_format)
    found = read_shapes(answer_text, 4) if answer_text else []
    sizes = {"pixel": image_size, "resized": resized_size}
    boxes = [corners(box, pred_format) for box in converted(found, pred_space, gold_space or pred_space, sizes)]
    several = len(golds) > 1 if multi is None else multi
    if not boxes or (not several and len(boxes) > 1):
        return 0.0
    overlaps = [[iou(box, gold, generalised=giou) for gold in golds] for box in boxes]
    if iou_threshold is not None:
        overlaps = [[float(overlap >= iou_threshold) for overlap in row] for row in overlaps]
    elif giou:
        overlaps = [[(1.0 + overlap) / 2.0 for overlap in row] for row in overlaps]
    return matched_share(overlaps) if several else max(overlaps[0])


@register_reward(
    "point",
    isolated=False,
    ranges=(at_least(0, "radius"),),
    imports=("scipy",),
    example={"completion": "<answer>(42, 60)</answer>", "answer": [30, 40, 90, 160]},
)
def point(
    answer_text: str,
    answer: Any,
    image_size: Any = None,
    resized_size: Any = None,
    *,
    pred_space: Space = "pixel",
    gold_space: Space | None = None,
    gold_format: BoxFormat = "xyxy",
    radius: float | None = None,
    multi: bool | None = None,
) -> float:
    """1 when the answer's point lies in the gold box, or within ``radius`` of the gold point; of several the matched share.

    Args:
        pred_space, gold_space: units, as of ``bbox``.
        gold_format: ``xyxy`` or ``xywh``, of gold boxes.
        radius: allowed distance from a gold point, in the gold's units.
        multi: whether several points may be asked for; ``None`` goes by the gold.

    Raises ``RewardError`` when the gold holds neither point nor box, or a box without area, a point has no ``radius``, or a
    needed size is unknown.
    """
    golds, are_boxes = _targets(answer)
    edges = gold_boxes(golds, gold_format) if are_boxes else []
    if not are_boxes and radius is None:
        raise RewardError(
            "the gold answer is a point, so the rule 'point' needs its option 'radius', in the gold's units."
        )
    found = read_shapes(answer_text, 2) if answer_text else []
    sizes = {"pixel": image_size, "resized": resized_size}
    points = converted(found, pred_space, gold_space or pred_space, sizes)
    several = len(golds) > 1 if multi is None else multi
    if not points or (not several and len(points) > 1):
        return 0.0
    if are_boxes:
        hits = [[float(x1 <= x <= x2 and y1 <= y <= y2) for x1, y1, x2, y2 in edges] for x, y in points]
    else:
        hits = [[float(math.dist(one, gold) <= (radius or 0.0)) for gold in golds] for one in points]
    return matched_share(hits) if several else max(hits[0])


def _targets(answer: Any) -> tuple[list[Shape], bool]:
    boxes = written_shapes(answer, 4)
    return (boxes, True) if boxes else (read_gold(answer, 2), False)
