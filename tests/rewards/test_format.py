"""The form that the prompt template asks for."""

from __future__ import annotations

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
