"""From ``reward.rules`` to rules: weights, options, gates, choices, and every wrong key in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from rlvlm.errors import ConfigError
from rlvlm.rewards import Runner
from rlvlm.rewards.compose import build_rules
from rlvlm.rewards.config import RewardConfig
from tests.rewards import rules_of_tests  # noqa: F401 (registers the rules)


def _score(rules: dict[str, Any], completions: list[str], records: list[dict[str, Any]], **config: Any) -> Any:
    runner = Runner(RewardConfig(rules=rules, **config))
    try:
        return runner.score(runner.samples(completions, records))
    finally:
        runner.close()


def test_the_score_is_the_weighted_sum_and_parts_keep_their_names() -> None:
    found = _score(
        {"number": 0.9, "format": {"weight": 0.1, "style": "answer", "think": False}},
        ["<answer>3</answer>", "<answer>4</answer>", "3"],
        [{"answer": "3"}] * 3,
    )
    assert found.scores == pytest.approx([1.0, 0.1, 0.9])
    assert found.parts == {"number": [1.0, 0.0, 1.0], "format": [1.0, 1.0, 0.0]}


def test_one_rule_can_be_used_twice_under_two_labels() -> None:
    rules = {"iou": {"name": "bbox", "weight": 0.5}, "hit": {"name": "bbox", "weight": 0.5, "iou_threshold": 0.5}}
    found = _score(rules, ["<answer>[0,0,10,6]</answer>"], [{"answer": [0, 0, 10, 10]}])
    assert found.parts == {"iou": [pytest.approx(0.6)], "hit": [1.0]}


def test_a_gate_that_does_not_hold_makes_the_rule_zero_without_running_it() -> None:
    rules = {
        "test_stateful": {"weight": 1.0, "gate": "format"},
        "format": {"weight": 0.0, "style": "answer", "think": False},
    }
    found = _score(rules, ["no", "<answer>yes</answer>", "no", "<answer>yes</answer>"], [{}] * 4)
    assert found.parts["test_stateful"] == [0.0, 1.0, 0.0, 2.0]


def test_a_column_picks_the_rule_by_known_types_own_table_and_default() -> None:
    rules = {
        "answer": {
            "weight": 1.0,
            "by": "answer_type",
            "table": {"colour": {"name": "string", "case_sensitive": True}},
            "default": "ocr",
        }
    }
    records = [
        {"answer_type": "number", "answer": "3"},
        {"answer_type": "multiple-choice", "answer": "B"},
        {"answer_type": "colour", "answer": "Red"},
        {"answer_type": "unheard of", "answer": "abcd"},
        {"answer": "abcd"},
    ]
    texts = [
        "<answer>3.0</answer>",
        "<answer>(b)</answer>",
        "<answer>red</answer>",
        "<answer>abcx</answer>",
        "<answer>abcd</answer>",
    ]
    assert _score(rules, texts, records).parts["answer"] == [1.0, 1.0, 0.0, 0.75, 1.0]


def test_a_type_without_a_rule_fails_its_row_with_the_nearest_one() -> None:
    found = _score(
        {"a": {"by": "kind"}},
        ["<answer>3</answer>"] * 2,
        [{"kind": "numbr", "answer": "3"}, {"kind": "number", "answer": "3"}],
    )
    assert found.scores == [None, 1.0]
    assert "has 'numbr'" in found.failures[0].message
    assert "did you mean 'number'" in found.failures[0].message


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({}, "reward.rules is empty"),
        ({"mth": 1.0}, "did you mean 'math'"),
        ({"number": {"weight": 1.0, "tolernce": 1.0}}, "did you mean 'tolerance'"),
        ({"number": "much"}, "a weight or a mapping"),
        ({"number": {"weight": float("nan")}}, "finite number"),
        ({"number": True}, "a weight or a mapping"),
        ({"number": {"timeout": 0}}, "positive number of seconds"),
        ({"number": {"gate": "format"}}, "is no other rule"),
        ({"number": {"gate": "number"}}, "is no other rule"),
        ({"number": {"gate": "bool"}, "bool": {"gate": "number"}}, "in a circle"),
        ({"number": {"table": {}}}, "without 'by'"),
        ({"a": {"by": "kind", "tolerance": 1}}, "give that to a rule in 'table'"),
        ({"a": {"by": "kind", "table": {"x": {"tolerance": 1}}}}, "a name or a mapping with 'name'"),
        ({"a": {"by": "kind", "table": {"x": "numbr"}}}, "did you mean 'number'"),
        ({"overlong": 1.0}, "needs the option 'buffer'"),
        ({"clip_similarity": {"path": "./no/such/model"}}, "does not exist"),
    ],
)
def test_a_wrong_config_is_one_sentence(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_rules(RewardConfig(rules=rules))


@pytest.mark.parametrize(
    "wrong",
    [{"rules": []}, {"unmarked": "all"}, {"max_error_rate": 2.0}, {"timeout": 0}, {"workers": 0}, {"memory_mb": 10}],
)
def test_a_wrong_setting_is_told_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="reward\\."):
        RewardConfig(**wrong)


def test_a_missing_package_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlvlm.rewards import extras

    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"reward 'math' needs the package 'math_verify'.*rlvlm\[rewards\]"):
        build_rules(RewardConfig(rules={"math": 1.0}))


def test_settings_and_rules_load_without_torch_or_sympy() -> None:
    import subprocess
    import sys

    program = (
        "import sys; from rlvlm.rewards import Runner, RewardConfig; Runner(RewardConfig(rules={'number': 1.0, 'svg': 1.0, 'math': 1.0}));"
        "print([m for m in ('torch', 'transformers', 'sympy', 'scipy', 'skimage', 'httpx') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        == "[]"
    )
