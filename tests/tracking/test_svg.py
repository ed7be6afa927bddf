"""Charts: every series drawn, every number finite, whatever is put in."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlvlm.tracking.svg import line_chart, spell, thin, ticks


def parse(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<body>{chart}</body>")


def test_a_chart_has_a_line_a_legend_entry_and_the_last_value_for_each_series():
    chart = parse(
        line_chart("Accuracy", {"sampled": [(1, 0.2), (2, 0.9)], "greedy": [(1, 0.5), (2, 1.0)]}, percent=True)
    )
    assert len(chart.findall(".//polyline")) == 2
    legend = ["".join(key.itertext()) for key in chart.findall(".//span[@class='key']")]
    assert legend == ["sampled 90.0%", "greedy 100%"]


def test_higher_values_are_drawn_higher_and_later_steps_further_right():
    chart = parse(line_chart("x", {"a": [(0, 0.0), (10, 1.0)]}))
    (first, last) = [tuple(map(float, pair.split(","))) for pair in chart.find(".//polyline").get("points").split()]
    assert last[0] > first[0]
    assert last[1] < first[1]


def test_a_value_that_is_not_finite_is_a_gap_and_a_lone_point_a_dot():
    chart = parse(line_chart("x", {"a": [(1, 1.0), (2, 2.0), (3, math.nan), (4, 2.0)]}))
    assert len(chart.findall(".//polyline")) == 1
    assert len(chart.findall(".//circle")) == 1


def test_nothing_to_draw_gives_no_chart():
    assert line_chart("x", {}) == ""
    assert line_chart("x", {"a": [(1, math.nan)]}) == ""


def test_names_are_escaped():
    assert "<script>" not in line_chart("<script>", {"<script>": [(1, 1.0)]})


@settings(max_examples=200, deadline=None)
@example([(0, -1.7e308), (1, 1.7e308)])
@example([(0, 0.0), (1, 5e-324)])
@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(allow_nan=True, allow_infinity=True)), max_size=30))
def test_any_numbers_give_well_formed_svg_with_finite_coordinates(points):
    chart = line_chart("x", {"a": [(float(x), y) for x, y in points]})
    if chart:
        parse(chart)
        assert not re.search(r'(?:points|x1|y1|cx|cy|x|y)="[^"]*(?:nan|inf)', chart)


def test_thin_averages_and_keeps_the_mean():
    points = [(float(step), float(step % 7)) for step in range(1000)]
    few = thin(points, most=100)
    assert len(few) == 100
    assert sum(y for _, y in few) / 100 == pytest.approx(sum(y for _, y in points) / 1000)
    assert thin(points[:50], most=100) == points[:50]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 17.0), (1e-7, 3e-7), (1e6, 1.2e6)])
def test_ticks_are_round_and_inside(low, high):
    marks = ticks(low, high)
    assert 2 <= len(marks) <= 7
    assert all(low - 1e-9 * abs(high) <= mark <= high * (1 + 1e-9) for mark in marks)


def test_numbers_are_spelled_short():
    assert [spell(value) for value in (0, 0.5, 12345, 4.1e6, 0.00002, math.nan)] == [
        "0",
        "0.5",
        "12.3k",
        "4.10e+06",
        "2.0e-05",
        "–",
    ]
