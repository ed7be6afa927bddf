"""``bbox`` and ``point``: grounding by boxes and points."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlvlm.errors import RewardError
from rlvlm.rewards.geometry import (
    BoxFormat,
    Space,
    best_pairs,
    corners,
    iou,
    read_gold,
    read_shapes,
    shapes_in,
    to_unit,
)
from rlvlm.rewards.rule import register_reward


@register_reward(
    "bbox",
    isolated=False,
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

    Reads lists, JSON and ``bbox_2d`` objects. Boxes that are empty, turned round or not finite score 0.

    Args:
        pred_space, gold_space: units of the answer's and the gold's coordinates: ``pixel`` of the record's picture,
            ``norm1``, ``norm100``, ``norm1000``, or ``resized`` (pixels as the model sees the picture); ``gold_space``
            is ``pred_space`` unless given. Differing spaces need ``image_size`` or ``resized_size`` where they are in pixels.
        pred_format, gold_format: ``xyxy`` (two corners) or ``xywh`` (corner, width, height); never guessed.
        iou_threshold: overlap from which a box counts 1, below it 0; ``None`` pays the overlap itself.
        giou: use (1 + GIoU) / 2, which also tells near misses from far ones.
        multi: whether several boxes may be asked for; ``None`` goes by the gold. Where one is, several are no answer.

    Raises ``RewardError`` when the gold holds no box, or a size that is needed is unknown.
    """
    found = read_shapes(answer_text, 4) if answer_text else []
    if not found:
        return 0.0
    golds = read_gold(answer, 4)
    several = len(golds) > 1 if multi is None else multi
    if not several and len(found) > 1:
        return 0.0
    space = gold_space or pred_space
    boxes, targets = np.asarray(found), np.asarray(golds)
    if space != pred_space:
        sizes = {"pixel": image_size, "resized": resized_size}
        boxes, targets = to_unit(found, pred_space, sizes), to_unit(golds, space, sizes)
    overlaps = iou(corners(boxes, pred_format), corners(targets, gold_format), generalised=giou)
    if iou_threshold is not None:
        overlaps = (overlaps >= iou_threshold).astype(np.float64)
    if not several:
        return float(overlaps.max())
    return best_pairs(overlaps) / max(overlaps.shape)


@register_reward(
    "point",
    isolated=False,
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

    Raises ``RewardError`` when the gold holds neither box nor point, a point has no ``radius``, or a needed size is unknown.
    """
    found = read_shapes(answer_text, 2) if answer_text else []
    if not found:
        return 0.0
    golds, are_boxes = _targets(answer)
    several = len(golds) > 1 if multi is None else multi
    if not several and len(found) > 1:
        return 0.0
    if not are_boxes and radius is None:
        raise RewardError(
            "the gold answer is a point, so the rule 'point' needs its option 'radius', in the gold's units."
        )
    space = gold_space or pred_space
    points, targets = np.asarray(found), np.asarray(golds)
    if space != pred_space:
        sizes = {"pixel": image_size, "resized": resized_size}
        points = to_unit(found, pred_space, sizes) / to_unit([(1.0, 1.0)], space, sizes)  # in the gold's units
    if are_boxes:
        edges = corners(targets, gold_format)
        inside = (points[:, None] >= edges[None, :, :2]) & (points[:, None] <= edges[None, :, 2:])
        hits = np.asarray(inside.all(axis=2))
    else:
        with np.errstate(over="ignore"):
            hits = np.asarray(np.linalg.norm(points[:, None] - targets[None], axis=2) <= radius)
    if not several:
        return float(hits.any())
    return best_pairs(hits.astype(np.float64)) / max(hits.shape)


def _targets(answer: Any) -> tuple[list[tuple[float, ...]], bool]:
    boxes = read_shapes(answer, 4) if isinstance(answer, str) else shapes_in(answer, 4)
    return (boxes, True) if boxes else (read_gold(answer, 2), False)
