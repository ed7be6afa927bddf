"""HTML and SVG: what is empty, shuffled or hostile is not paid; the published form can be had."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import numpy as np
import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards import svg_drawing as drawing
from rlvlm.rewards.html import html
from rlvlm.rewards.markup import opened_tags, same_markup, sequence_similarity
from rlvlm.rewards.svg import svg

PAGE = "<html><body><h1>Soup of the day</h1><ul><li>Leek</li><li>Pea</li></ul><p class='a'>Two euros</p></body></html>"
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="24" height="24" viewBox="0 0 24 24" fill="none" stroke="black">'
    '<path d="M3 9l9-7 9 7v11a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2z"/><polyline points="9 22 9 12 15 12 15 22"/></svg>'
)
HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="64" height="64" viewBox="0 0 64 64">'
SQUARE = HEAD + '<rect x="8" y="8" width="48" height="48" fill="#cc3333"/></svg>'


def _html(page: str, gold: str = PAGE, **options: Any) -> float:
    found = html(page, "", gold, **options)
    return found["score"] if isinstance(found, dict) else found


def _svg(source: str, gold: str = SQUARE, **options: Any) -> float:
    found = svg(source, "", gold, **options)
    return found["score"] if isinstance(found, dict) else found


def test_the_page_itself_scores_one_whatever_its_quotes_and_space() -> None:
    assert _html(PAGE) == 1.0
    assert _html(PAGE.replace("'", '"').replace("><", ">\n  <")) == 1.0


def test_a_shuffled_bag_of_the_pages_own_tokens_and_tags_is_not_paid() -> None:
    pieces = re.findall(r"</?\w+[^>]*>|\w+", PAGE)
    draw = random.Random(1)
    shuffled = " ".join(draw.sample(pieces, len(pieces)))
    assert _html(shuffled, compat="ov15") > 0.95  # the published form pays it
    assert _html(shuffled) < 0.6
    assert _html(" ".join(sorted(set(pieces)))) < 0.6


def test_an_empty_skeleton_and_repetition_are_not_paid_as_the_page() -> None:
    skeleton = re.sub(r">[^<]+<", "><", re.sub(r"<(\w+)[^>]*>", r"<\1>", PAGE))
    assert _html("<html><body></body></html>") == _html(skeleton) == 0.0
    assert _html("<hr>", "<hr>") == 1.0
    assert _html("") == _html("<!-- Soup -->") == 0.0
    assert _html(PAGE * 8) < 0.4


def test_the_published_html_score_is_the_overlap_of_sets() -> None:
    tokens = len({"<", ">", "/", "p", "b"} & {"<", ">", "/", "p", "a"}) / 6
    assert _html("<p>b</p>", "<p>a</p>", compat="ov15") == pytest.approx(0.6 * tokens + 0.4 * 1.0)
    assert _html('<P  class="x">a</P>', "<p class='x'>a</p>", compat="ov15") == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize(
    "page", ["<div>" * 20_000, "<div>" * 40_000, "<p " + "a=1 " * 30_000, "<" * 100_000, "\x00\ud800<p>"]
)
def test_hostile_pages_end_in_time(page: str) -> None:
    start = time.process_time()
    assert 0.0 <= _html(page) <= 1.0
    assert time.process_time() - start < 8.0


def test_a_blank_drawing_is_worth_nothing_and_the_published_one_half() -> None:
    blank = '<svg xmlns="http://www.w3.org/2000/svg" width="24" height="24" viewBox="0 0 24 24"></svg>'
    assert _svg(blank, ICON) == 0.0
    assert _svg(blank, ICON, compat="ov15") > 0.45
    assert _svg(HEAD + "<rect/></svg>", ICON) == 0.0
    assert _svg(HEAD + '<rect width="64" height="64" fill="white"/></svg>', ICON) == 0.0


def test_nearer_drawings_score_more() -> None:
    moved = SQUARE.replace('x="8"', 'x="11"')
    other = HEAD + '<circle cx="32" cy="32" r="4" fill="#2255aa"/></svg>'
    assert _svg(SQUARE) == pytest.approx(1.0)
    assert 0.99 > _svg(moved) > _svg(other) > 0.0


def test_only_shapes_are_left_of_a_drawing() -> None:
    hostile = (
        "<?xml version='1.0'?><!DOCTYPE svg [<!ENTITY a 'x'><!ENTITY f SYSTEM 'file:///etc/passwd'>]>"
        + HEAD
        + '<script>alert(1)</script><foreignObject><p/></foreignObject><image xlink:href="file:///etc/passwd"/>'
        + '<feImage xlink:href="http://127.0.0.1:9/a"/><style>@import url(http://127.0.0.1:9/b);</style><text>&a;&f;</text>'
        + '<use xlink:href="http://127.0.0.1:9/c#d"/><rect onload="x()" fill="url(http://127.0.0.1:9/e)" width="9"/></svg>'
    )
    root = drawing.parse(hostile)
    assert root is not None
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert names == ["svg", "text", "use", "rect"]
    assert not [value for element in root.iter() for value in element.attrib.values() if "127" in value or "(" in value]
    assert "root:" not in "".join(root.itertext())


def test_a_file_that_a_drawing_names_is_not_drawn(tmp_path: Any) -> None:
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    for reference in (f"file://{tmp_path}/red.png", f"{tmp_path}/red.png", "red.png"):
        root = drawing.parse(
            HEAD + f'<image xlink:href="{reference}" href="{reference}" width="64" height="64"/></svg>'
        )
        pixels = drawing.render(root, (64, 64))
        assert pixels is None or np.all(pixels == 255)


CLIPS = "".join(
    f'<clipPath id="c{i}"><g>' + f'<rect width="9" height="9" clip-path="url(#c{i + 1})"/>' * 10 + "</g></clipPath>"
    for i in range(8)
)


@pytest.mark.parametrize(
    "body",
    [
        '<g id="a"><use xlink:href="#a"/></g>',
        "".join(f'<g id="u{i}"><use xlink:href="#u{i + 1}"/></g>' for i in range(1500)),
        "".join(f'<g id="u{i}">' + f'<use xlink:href="#u{i + 1}"/>' * 10 + "</g>" for i in range(9)),
        CLIPS + '<rect width="64" height="64" clip-path="url(#c0)"/>',
        '<g opacity=".9"><rect width="64" height="64"/></g>' * 1900,
        "<g>" * 3000,
        '<path d="M0 0 L64 64" stroke="black" stroke-dasharray="0.00001"/>',
        '<path d="M0 0 ' + "L1 9 L64 64 " * 8000 + '" stroke-width="1e9" stroke-linejoin="round" stroke="red"/>',
        '<marker id="m"><circle r="3"/></marker><path d="M0 0 ' + "L1 9 L64 64 " * 8000 + '" marker-mid="url(#m)"/>',
        '<rect width="64" height="64" transform="scale(1e30)"/>',
        '<rect width="NaN" height="1e999" x="-1e39"/>',
        "<style>" + ".a.b > f + g{fill:red}" * 400 + "</style>" + '<rect class="a" width="9" height="9"/>' * 1500,
        "<rect/>" * 30_000,
    ],
)
def test_costly_drawings_end_in_time(body: str) -> None:
    start = time.process_time()
    assert 0.0 <= _svg(HEAD + body + "</svg>") <= 1.0
    assert time.process_time() - start < 8.0


def test_a_gold_that_is_no_drawing_is_an_error() -> None:
    with pytest.raises(RewardError, match="no SVG drawing"):
        svg(SQUARE, "", "a red square")


HIDDEN = ('width="0" height="0"', 'width="0" height="0" viewBox="0 0 64 64"', 'width="-8" height="8"')
OUT_OF_SIGHT = tuple(f'viewBox="{box}"' for box in ("0 0 -5 -5", "0 0 0 0", "0 0 1e9 1e9", "0 0 900000 900000"))


@pytest.mark.parametrize("frame", HIDDEN + OUT_OF_SIGHT)
def test_a_drawing_that_shows_nothing_scores_nothing_and_is_no_gold(frame: str) -> None:
    hidden = f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>' + SQUARE.partition(">")[2]
    assert _svg(hidden) == 0.0
    with pytest.raises(RewardError, match="shows nothing"):
        svg("", "", hidden)


def test_a_gold_of_text_alone_is_compared_by_its_source() -> None:
    words = HEAD + "<text>two words</text></svg>"
    assert _svg(words, words) == 1.0


@pytest.mark.parametrize("answer", ["", SQUARE])
def test_a_gold_that_nothing_can_match_is_told_before_the_answer_is_read(answer: str) -> None:
    with pytest.raises(RewardError, match="no SVG drawing"):
        svg(answer, "", "a red square")
    with pytest.raises(RewardError, match="no SVG drawing"):
        svg(answer, "", "a red square", compat="ov15")
    with pytest.raises(RewardError, match="shows nothing"):
        svg(answer, "", "<svg></svg>")
    with pytest.raises(RewardError, match="no page"):
        html(answer, "", "<!-- to do -->")


def test_sequences_are_compared_with_order_and_number() -> None:
    assert sequence_similarity("abcd", "abcd") == 1.0
    assert sequence_similarity("abcd", "dcba") == 0.25
    assert sequence_similarity("ab", "abababab") == pytest.approx(2 * 2 / 10)
    assert sequence_similarity("", "") == 0.0


def test_published_helpers_are_linear_where_their_patterns_are_not() -> None:
    start = time.process_time()
    assert opened_tags("<a" * 100_000) == []
    assert opened_tags("<a <b> <c>") == ["a", "c"]
    assert not same_markup("<p>", "<!--" * 100_000)
    assert same_markup("<p class='a'>x</p>", '<p  class="a"><!-- note -->x</p>'.replace("  ", " "))
    assert time.process_time() - start < 2.0


UNITS = 'patternUnits="userSpaceOnUse"'
DOT, CORNERS = '<marker id="p"><circle r="40"/></marker>', "h1v1" * 20_000
DRAWINGS_THAT_COST = {
    "a pattern of nearly a million units": f'<pattern id="p" width="900000" height="900000" {UNITS}><rect width="9" height="9"/></pattern>'
    '<rect width="64" height="64" fill="url(#p)"/>',
    "a marker on every line of a group": f'{DOT}<g marker-mid="url(#p)"><path stroke="red" d="M0 0{CORNERS}"/></g>',
    "a marker from a style sheet": f'<style>path{{marker-mid:url(#p)}}</style>{DOT}<path stroke="red" d="M0 0{CORNERS}"/>',
    "a marker by a style": f'{DOT}<path style="stroke:red;marker:url(#p)" d="M0 0{CORNERS}"/>',
}


@pytest.mark.parametrize("name", DRAWINGS_THAT_COST)
def test_a_drawing_that_costs_too_much_scores_0_and_ends_nothing(name: str) -> None:
    assert _svg(f"{HEAD}{DRAWINGS_THAT_COST[name]}</svg>") == 0.0
    assert _svg(SQUARE) == 1.0


def test_lines_with_a_few_markers_are_drawn() -> None:
    arrow = '<marker id="a" orient="auto"><path d="M0 0l3 1"/></marker><g marker-end="url(#a)"><path d="M9 9h40" stroke="red"/></g>'
    assert _svg(f"{HEAD}{arrow}</svg>", f"{HEAD}{arrow}</svg>") == 1.0


@pytest.mark.parametrize("pattern", ['width="4" height="4"', 'width="60" height="60"'])
def test_patterns_of_a_drawings_size_are_drawn(pattern: str) -> None:
    dots = f'<pattern id="p" {pattern} {UNITS}><circle r="2"/></pattern><rect width="64" height="64" fill="url(#p)"/>'
    assert _svg(f"{HEAD}{dots}</svg>", f"{HEAD}{dots}</svg>") == 1.0


SHOWN = "<h1>Soup of the day</h1><p>Leek and potato soup, with bread and butter, for six</p>"
TEXT = "Soup of the day Leek and potato soup, with bread and butter, for six"


@pytest.mark.parametrize(
    "page",
    [
        f"<script>{TEXT}</script>",
        f"<style>{TEXT}</style>",
        f"<template>{TEXT}</template>",
        f"<div hidden>{TEXT}</div>",
        f"<div style='display:none'>{TEXT}</div>",
        f"<div style='color:red; DISPLAY : none !important'>{TEXT}</div>",
        f"<div style='visibility: hidden;'><b><i>{TEXT}</i></b></div>",
        f"<div style='opacity:0'>{TEXT}</div>",
        f"<!-- {TEXT} -->",
    ],
)
def test_words_that_a_page_does_not_show_are_not_paid_for(page: str) -> None:
    assert _html(page, SHOWN) < 0.2
    shown = f"<div>{TEXT}</div>"
    assert _html(shown, SHOWN) > 0.5


def test_a_script_and_a_hidden_part_of_the_gold_are_compared_with_their_like() -> None:
    gold = "<style>p { color: red }</style><p>Soup</p><p hidden>Leek</p><script>let a = 1;</script>"
    assert _html(gold, gold) == 1.0
    other = gold.replace("let a = 1;", "let b = 2;")
    assert 0.5 < _html(other, gold) < 1.0
    assert _html(gold.replace(" hidden", ""), gold) < 1.0
