"""The form that the prompt template asks for."""

from __future__ import annotations

import re

import pytest

from rlvlm.rewards import score, score_detail

THOUGHT = "<think>" + "A sentence about what the picture shows and how it is counted. " * 4 + "</think>"


def test_answer_style_takes_tags_instead_of_boxes() -> None:
    assert score("format", f"{THOUGHT}<answer>5</answer>", style="answer") == 1.0
    assert score("format", f"{THOUGHT}\\boxed{{5}}", style="answer") == 0.0
    assert score("format", f"{THOUGHT}<answer>5</answer>", style="boxed") == 0.0


@pytest.mark.parametrize(
    "text", ["<answer>5", "<answer><answer>5</answer></answer>", "</answer>5<answer>", "<answer> </answer>", ""]
)
def test_answer_style_needs_one_closed_block_with_something_in_it(text: str) -> None:
    assert score("format", THOUGHT + text, style="answer") == 0.0


def test_without_thinking_a_think_block_breaks_the_form() -> None:
    assert score("format", "<answer>5</answer>", style="answer", think=False) == 1.0
    assert score("format", f"{THOUGHT}<answer>5</answer>", style="answer", think=False) == 0.0


def test_the_answer_comes_after_thinking() -> None:
    assert score("format", f"\\boxed{{5}}{THOUGHT}") == 0.0
    assert score("format", "<think>\\boxed{5} is what I see</think>") == 0.0


def test_padding_with_blanks_or_nested_boxes_does_not_dilute_the_answer() -> None:
    assert score("format", "<think>a b</think>\\boxed{a longer answer than thought}" + " \n" * 500) == 0.0
    assert score("format", "<think>short</think>\\boxed{a long text that holds \\boxed{5}}") == 0.0


def test_the_share_can_be_set_and_the_reason_is_told() -> None:
    text = "<think>It is five.</think>\\boxed{five}"
    assert score("format", text, max_share=0.5) == 1.0
    assert "more than 10% of the response is answer" in score_detail("format", text, max_share=0.1)["detail"]["fault"]


PEERS = {
    "answer": re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL),  # R1-V, VLM-R1, EasyR1's r1v
    "boxed": re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL),  # EasyR1's math
}
"""What these libraries match with the whole completion."""


@pytest.mark.parametrize("style", ["answer", "boxed"])
@pytest.mark.parametrize("before", ["", " ", "\n", "Sure. ", "<answer>4</answer>"])
@pytest.mark.parametrize("between", ["", "\n", " \n ", "So: "])
@pytest.mark.parametrize("after", ["", "\n", " ", ".", " That is all.", "<answer>6</answer>"])
def test_the_whole_text_is_matched_as_other_libraries_do(style: str, before: str, between: str, after: str) -> None:
    if style == "boxed" and "answer" in before + after:
        return  # their pattern does not look at answer tags
    marked = "<answer>5</answer>" if style == "answer" else "\\boxed{5}"
    text = f"{before}{THOUGHT}{between}{marked}{after}"
    matched = PEERS[style].fullmatch(text) is not None and text.count("<answer>") <= 1
    assert score("format", text, style=style, whole_text=True, max_share=1.0) == float(matched)


def test_text_around_the_tags_costs_nothing_unless_the_whole_text_is_asked_for() -> None:
    text = f"Sure.\n{THOUGHT}\nSo: <answer>5</answer> That is all."
    assert score("format", text, style="answer") == 1.0
    told = score_detail("format", text, style="answer", whole_text=True)
    assert (told["score"], told["detail"]["fault"]) == (0.0, "text stands before the think block")


@pytest.mark.parametrize(
    ("text", "options", "kept"),
    [
        ("It is five.</think><answer>5</answer>", {"think_prefilled": True}, True),
        ("<think>It is five.</think><answer>5</answer>", {"think_prefilled": True}, True),
        ("It is five.</think> So <answer>5</answer>", {"think_prefilled": True}, False),
        ("<answer>5</answer>", {"think": False}, True),
        ("So <answer>5</answer>", {"think": False}, False),
        ("<answer>5</answer>.", {"think": False}, False),
        ("<answer>5</answer> or <answer>6</answer>", {"think": False}, False),
    ],
)
def test_the_whole_text_may_start_in_the_prompt_or_lack_thinking(
    text: str, options: dict[str, bool], kept: bool
) -> None:
    assert score("format", text, style="answer", whole_text=True, max_share=1.0, **options) == float(kept)


def test_without_thinking_the_box_is_the_whole_text() -> None:
    for text, kept in (("\\boxed{5}", 1.0), ("So \\boxed{5}", 0.0), ("\\boxed{5}.", 0.0)):
        assert score("format", text, think=False, whole_text=True) == kept
        assert score("format", text, think=False) == 1.0
