"""Boxes and points, against IoU counted by hand and by cells."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rlvlm.errors import ConfigError, RewardError
from rlvlm.rewards import score
from rlvlm.rewards.geometry import iou, read_shapes


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        ("[1, 2, 3, 4]", [(1, 2, 3, 4)]),
        ("1, 2, 3, 4", [(1, 2, 3, 4)]),
        ("(1,2),(3,4)", [(1, 2, 3, 4)]),
        ("<|box_start|>(1,2),(3,4)<|box_end|>", [(1, 2, 3, 4)]),
        ('[{"bbox_2d": [1,2,3,4]}, {"bbox_2d": [5,6,7,8]}]', [(1, 2, 3, 4), (5, 6, 7, 8)]),
        ('{"box": [1,2,3,4], "score": [9,9,9,9]}', [(1, 2, 3, 4)]),
        ("[[1,2],[3,4]]", [(1, 2, 3, 4)]),
        ('{"x1": 1, "y1": 2, "x2": 3, "y2": 4}', [(1, 2, 3, 4)]),
        ("at [1,2,3,4] and again [1, 2, 3, 4]", [(1, 2, 3, 4), (1, 2, 3, 4)]),
        ("[1,2,3]", []),
        ("[1,2,3,4,5]", []),
        ("[" * 50_000, []),
        ('{"bbox_2d": [1e999, 0, 1, 1]}', []),
        (f'{{"bbox_2d": [{"9" * 400}, 0, 1, 1]}}', []),
        (f'{{"bbox_2d": [{"9" * 5000}, 0, 1, 1]}}', []),
        ('{"bbox_2d": [true, 0, 1, 1]}', []),
        ("[1,2,3,4] " * 40_000, []),
        (" ".join(f"[{i},2,3,4]" for i in range(400)), []),
    ],
)
def test_boxes_are_read_from_what_models_write(text: str, boxes: list[Any]) -> None:
    assert read_shapes(text, 4) == [tuple(map(float, box)) for box in boxes]


def test_iou_agrees_with_counting_cells() -> None:
    draw = random.Random(0)
    boxes = [sorted(draw.sample(range(20), 2)) + sorted(draw.sample(range(20), 2)) for _ in range(40)]
    boxes = [(x1, y1, x2, y2) for x1, x2, y1, y2 in boxes]
    cells = np.zeros((40, 20, 20), dtype=bool)
    for row, (x1, y1, x2, y2) in enumerate(boxes):
        cells[row, y1:y2, x1:x2] = True
    both = (cells[:, None] & cells[None]).sum((2, 3))
    either = (cells[:, None] | cells[None]).sum((2, 3))
    got = [[iou(box, other) for other in boxes] for box in boxes]
    np.testing.assert_allclose(got, both / either)


def test_giou_tells_near_misses_from_far_ones_and_stays_in_range() -> None:
    gold = [0, 0, 10, 10]
    near, far = (score("bbox", f"<answer>[{x}, 0, {x + 10}, 10]</answer>", gold, giou=True) for x in (11, 90))
    assert 0 < far < near < 0.5
    assert score("bbox", "<answer>[0,0,10,10]</answer>", gold, giou=True) == 1.0
    assert score("bbox", "<answer>none</answer>", gold, giou=True) == 0.0
    # hull 20x10, union 150, IoU 1/3: GIoU = 1/3 - 50/200 of the two boxes side by side by half
    half = score("bbox", "<answer>[5, 0, 15, 10]</answer>", gold, giou=True)
    assert half == pytest.approx((1 + 1 / 3 - 0 / 150) / 2)


def test_a_threshold_makes_the_overlap_all_or_nothing() -> None:
    half = "<answer>[0, 0, 10, 5]</answer>"
    assert score("bbox", half, [0, 0, 10, 10], iou_threshold=0.5) == 1.0
    assert score("bbox", half, [0, 0, 10, 10], iou_threshold=0.51) == 0.0


@pytest.mark.parametrize(
    ("boxes", "expected"),
    [
        ([[0, 0, 10, 10], [20, 20, 30, 30]], 1.0),
        ([[20, 20, 30, 30]], 0.5),
        ([[0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60]], 2 / 3),
        ([[0, 0, 10, 10], [0, 0, 10, 9]], 0.5),
    ],
)
def test_several_boxes_are_matched_one_to_one_and_extra_ones_cost(boxes: Any, expected: float) -> None:
    got = score("bbox", f"<answer>{boxes}</answer>", [[0, 0, 10, 10], [20, 20, 30, 30]])
    assert got == pytest.approx(expected)


def test_two_boxes_for_one_gold_are_no_answer_unless_several_are_allowed() -> None:
    two = "<answer>[0,0,10,10] [0,0,9,9]</answer>"
    assert score("bbox", two, [0, 0, 10, 10]) == 0.0
    assert score("bbox", two, [0, 0, 10, 10], multi=True) == 0.5


def test_spaces_need_sizes_and_say_which() -> None:
    with pytest.raises(RewardError, match="need 'image_size'"):
        score("bbox", "<answer>[0, 0, 500, 500]</answer>", [0, 0, 10, 10], pred_space="norm1000", gold_space="pixel")
    assert (
        score("bbox", "<answer>[0, 0, 500, 1000]</answer>", [0, 0, 0.5, 1], pred_space="norm1000", gold_space="norm1")
        == 1.0
    )
    with pytest.raises(ConfigError, match="norm1000"):
        score("bbox", "<answer>[0, 0, 500, 500]</answer>", [0, 0, 1, 1], pred_space="permille")


def test_a_gold_without_a_box_is_an_error() -> None:
    with pytest.raises(RewardError, match="holds no box"):
        score("bbox", "<answer>[0,0,1,1]</answer>", "nowhere")


@pytest.mark.parametrize(
    ("text", "gold", "options", "expected"),
    [
        ("(42, 60)", [30, 40, 90, 160], {}, 1.0),
        ("[10, 60]", [30, 40, 90, 160], {}, 0.0),
        ('{"point_2d": [42, 60], "label": "a"}', [30, 40, 90, 160], {}, 1.0),
        ('<point x="42.0" y="60">a</point>', [30, 40, 90, 160], {}, 1.0),
        ('{"x": 42, "y": 60}', [30, 40, 90, 160], {}, 1.0),
        ("[3, 4]", [0, 0], {"radius": 5.0}, 1.0),
        ("[3, 4]", [0, 0], {"radius": 4.9}, 0.0),
        ("[500, 500]", [40, 40, 60, 60], {"pred_space": "norm1000", "gold_space": "norm100"}, 1.0),
        ("[1,1] [50,50]", [0, 0, 10, 10], {}, 0.0),
        ("[1,1] [50,50]", [[0, 0, 10, 10], [40, 40, 60, 60]], {}, 1.0),
        ("none", [0, 0, 10, 10], {}, 0.0),
    ],
)
def test_points_hit_boxes_or_come_near_points(text: str, gold: Any, options: dict[str, Any], expected: float) -> None:
    assert score("point", f"<answer>{text}</answer>", gold, **options) == expected


def test_a_gold_point_needs_a_radius() -> None:
    with pytest.raises(RewardError, match="'radius'"):
        score("point", "<answer>[3, 4]</answer>", [0, 0])


def test_a_box_given_three_times_is_three_boxes() -> None:
    """As COCO counts them: one detection matches, its repetitions are false."""
    box, other = "[0, 0, 10, 10]", "[20, 20, 30, 30]"
    two = [[0, 0, 10, 10], [20, 20, 30, 30]]
    for written in (f"[{box}, {box}, {other}]", f"{box}, {box} and {other}"):
        assert score("bbox", f"<answer>{written}</answer>", two) == pytest.approx(2 / 3)
    assert score("bbox", f"<answer>[{box}, {box}, {box}]</answer>", two) == pytest.approx(1 / 3)
    assert score("bbox", f"<answer>[{box}, {box}, {box}]</answer>", two[0], multi=True) == pytest.approx(1 / 3)
    assert score("bbox", f"<answer>[{box}, {box}, {box}]</answer>", two[0]) == 0.0
    assert score("point", "<answer>(5, 5), (5, 5)</answer>", two) == 0.5
    assert score("bbox", f"<answer>[{box}, {box}]</answer>", [two[0], two[0]]) == 1.0


def test_a_threshold_is_never_met_by_a_box_as_large_as_the_page() -> None:
    gold, page = [400, 400, 500, 500], "<answer>[0, 0, 1000, 1000]</answer>"
    for threshold in (0.05, 0.5):
        assert score("bbox", page, gold, giou=True, iou_threshold=threshold) == 0.0
    assert score("bbox", "<answer>[400, 400, 500, 490]</answer>", gold, giou=True, iou_threshold=0.5) == 1.0
    assert score("bbox", "<answer>[455, 400, 555, 500]</answer>", gold, giou=True, iou_threshold=0.5) == 0.0
