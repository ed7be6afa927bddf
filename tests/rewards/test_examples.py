"""The examples that rules show of themselves run, and score what they stand for."""

from __future__ import annotations

import pytest

from rlvlm.cli.rewards import example_call
from rlvlm.rewards import REWARDS, score, score_detail

SCORES = {
    "bbox": 1.0,
    "bool": 1.0,
    "code": 1.0,
    "critic": 1.0,
    "format": 1.0,
    "html": 0.7,
    "length": 1.0,
    "math": 1.0,
    "multiple_choice": 1.0,
    "number": 1.0,
    "ocr": 1.0,
    "overlong": -0.5,
    "point": 1.0,
    "repetition": -5 / 7,
    "string": 1.0,
    "svg": 0.8,
}


@pytest.mark.parametrize("name", SCORES)
def test_the_example_scores_as_it_reads(name: str) -> None:
    call = example_call(name, REWARDS.get(name).traits["example"])
    assert eval(call, {"score": score}) == pytest.approx(SCORES[name], abs=0.12 if name == "svg" else 1e-6)


def test_every_rule_shows_an_example_and_a_first_line() -> None:
    for entry in REWARDS.own_entries():
        assert entry.traits["example"], entry.name
        assert entry.summary.endswith("."), entry.name


def test_details_come_with_the_score() -> None:
    found = score_detail("math", "<answer>1</answer> or <answer>2</answer>", "1")
    assert found == {"score": 0.0, "detail": {}, "answer_text": "", "candidates": ["1", "2"]}
    parts = score_detail("html", "<answer><b>a</b></answer>", "<i>a</i>")
    assert parts["detail"] == {"tokens": 1.0, "structure": 0.0}
    assert parts["score"] == pytest.approx(0.6)
