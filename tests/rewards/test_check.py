"""``check_reward``: what it finds in good and bad rewards before a run."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

import rlvlm
from rlvlm.errors import RewardError

_COUNT = itertools.count()


def good(answer_text: str, answer: str, *, bonus: float = 0.0) -> float:
    """Equality."""
    return float(answer_text == answer) + bonus


def crashes(answer_text: str, answer: str) -> float:
    return 1.0 if answer_text == answer else 1.0 / len(answer_text.replace(answer_text, ""))


def hangs(completion: str) -> float:
    if "word word" in completion:
        time.sleep(20)
    return float(len(completion))


def wavers(completion: str) -> float:
    return float(next(_COUNT))


def infinite(answer_text: str) -> float:
    return float("inf") if answer_text else 0.0


def reads_more(answer_text: str, colour: str) -> float:
    return float(answer_text == colour)


def pays_nothing(completion: str) -> float:
    return 1.0 if not completion.strip() else 0.5


def constant(completion: str) -> float:
    return 1.0


class Model:
    """A class with options."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, answer_text: str, answer: str) -> float:
        """Scaled equality."""
        return self.scale * float(answer_text == answer)


def test_a_good_reward_passes_and_is_described() -> None:
    report = rlvlm.check_reward(good, bonus=0.5).raise_for_problems()
    assert report.ok
    assert report.reads == ("answer_text", "answer")
    assert report.options == ("bonus",)
    scores = {trial.name: trial.score for trial in report.trials}
    assert scores["right, in a box"] == 1.5
    assert scores["only in thought"] == scores["cut off"] == scores["both"] == 0.5
    assert "passed" in str(report)


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        (crashes, "ZeroDivisionError"),
        (hangs, "took longer than 1 s"),
        (wavers, "another score"),
        (infinite, "finite number"),
        (reads_more, "reads 'colour'"),
        ("test_of_no_such_name", "there is no reward"),
    ],
)
def test_problems_are_found(reward: Any, problem: str) -> None:
    with pytest.raises((RewardError, rlvlm.errors.ConfigError), match=problem):
        rlvlm.check_reward(reward, timeout=1.0).raise_for_problems()


def test_one_problem_is_told_once_with_all_its_completions() -> None:
    problems = rlvlm.check_reward(crashes).problems
    assert len(problems) == 1
    assert "'wrong'" in problems[0]
    assert "'empty'" in problems[0]


def test_what_would_teach_the_wrong_thing_is_noted() -> None:
    assert "teaches nothing" in rlvlm.check_reward(constant).notes[0]
    assert any("'empty' scored more" in note for note in rlvlm.check_reward(pays_nothing).notes)


def test_columns_classes_names_nodes_and_peers_are_taken() -> None:
    assert rlvlm.check_reward(reads_more, answer="red", record={"colour": "red"}).ok
    assert rlvlm.check_reward(Model, scale=2.0).ok
    assert rlvlm.check_reward("number", tolerance=0.5).ok
    assert rlvlm.check_reward({"name": "number", "tolerance": 0.5}).ok

    def verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
        return {"score": float(ground_truth in solution_str)}

    assert rlvlm.check_reward(verl, style="verl").ok


@pytest.mark.parametrize(
    ("name", "gold"),
    [
        ("format", "42"),
        ("number", "42"),
        ("math", "42"),
        ("multiple_choice", "B"),
        ("bbox", "[10, 20, 110, 220]"),
        ("html", "<p>a</p>"),
    ],
)
def test_rules_of_the_library_pass(name: str, gold: str) -> None:
    report = rlvlm.check_reward(name, answer=gold, timeout=60.0)
    assert report.ok, str(report)
