"""Finding the answer: thinking, tags, boxes, fences, what the prompt opened, what was cut off."""

from __future__ import annotations

import time

import pytest

from rlvlm.rewards.extract import extract, fenced_blocks, find_boxes, strip_fence


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<think>no</think><answer>5</answer>", "5"),
        ("<think>no</think>\\boxed{5}", "5"),
        ("<answer>so \\boxed{\\frac{1}{2}} it is</answer>", "\\frac{1}{2}"),
        ("\\boxed{\\boxed{7}}", "7"),
        ("\\boxed{x = \\boxed{7}}", "7"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{a_{1}} and \\boxed{ a_{1} }", "a_{1}"),
        ("\\fbox{9}", "9"),
        ("<answer>\n5\n</answer>", "5"),
        ("<answer><answer>5</answer>", "5"),
        ("<answer></answer><answer>5</answer>", "5"),
        ("<answer>```json\n[1]\n```</answer>", "[1]"),
    ],
)
def test_the_one_marked_answer_is_found(completion: str, answer: str) -> None:
    assert extract(completion).answer == answer


@pytest.mark.parametrize(
    "completion",
    [
        "<think>\\boxed{5}</think>",
        "<think><answer>5</answer>",
        "<think>a <answer>5</answer></think> none of these fits",
        "<answer>5",
        "<answer>\\boxed{5",
        "\\boxed{4} then \\boxed{5",
        "<answer>4</answer> no, <answer>5",
        "<answer>4</answer><answer>5</answer>",
        "\\boxed{A} or \\boxed{B}",
        "<answer></answer>",
        "\\boxed{}",
        "<think>a<think>b</think>\\boxed{5}",
        "",
    ],
)
def test_thought_cut_off_ambiguous_or_empty_text_is_no_answer(completion: str) -> None:
    assert extract(completion).answer == ""


def test_candidates_are_counted_once_each_whatever_their_case_and_space() -> None:
    assert extract("\\boxed{Two  Dogs} \\boxed{two dogs}").candidates == ("Two  Dogs",)
    assert extract("<answer>4</answer><answer>5</answer>").candidates == ("4", "5")
    assert extract("<answer>4</answer><answer>5").candidates == ()


def test_a_tag_that_the_prompt_opened_is_seen_by_its_end() -> None:
    assert extract("I count.</think><answer>5</answer>").answer == "5"
    assert extract("\\boxed{4} I count.</think>\\boxed{5}").answer == "5"
    assert extract("5</answer>").answer == "5"


def test_a_declared_prompt_tag_makes_text_without_tags_thinking() -> None:
    assert extract("it is 5", think_prefilled=True).answer == ""
    assert extract("<think>twice opened</think>\\boxed{5}", think_prefilled=True).answer == "5"


@pytest.mark.parametrize(("text", "bare"), [("12", "12"), ("12 apples", "12 apples"), ("\\frac{1}{2}", "\\frac{1}{2}")])
def test_a_bare_answer_counts_unless_marks_are_asked_for(text: str, bare: str) -> None:
    assert extract(text).answer == bare
    assert extract(text, unmarked="none").answer == ""


def test_a_sentence_is_no_bare_answer_but_may_be_allowed() -> None:
    assert extract("There are 12.").answer == ""
    assert extract("12\n13").answer == ""
    assert extract("There are 12.", unmarked="text").answer == "There are 12."
    assert extract("There are 12.").unmarked == "There are 12."
    assert extract("There <answer>12</answer>").unmarked == ""


def test_boxes_know_their_neighbours() -> None:
    boxes, cut = find_boxes("\\boxed{a \\boxed{b}} \\boxed{c")
    assert cut
    assert [(box.holds_box, box.in_box) for box in boxes] == [(False, True), (True, False)]


def test_only_a_whole_fence_is_taken_off() -> None:
    assert strip_fence("```html\n<p>a</p>\n```") == "<p>a</p>"
    assert strip_fence("```\na\n```\nand text").startswith("```")
    assert fenced_blocks("~~~py\na\n~~~\n```js\nb\n```") == [("py", "a\n"), ("js", "b\n")]
    assert fenced_blocks("```py\nnever closed") == []


@pytest.mark.parametrize(
    "unit",
    ["<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "\\boxed{}", "```\n", "<answer></answer>", "\\{"],
)
def test_time_is_linear_in_hostile_text(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()
    extract(text)
    assert time.process_time() - start < 5.0
