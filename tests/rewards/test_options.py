"""A numeric option out of its range is refused when the rule is built, for every rule that has one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlvlm.errors import ConfigError, RewardError
from rlvlm.registry import Option
from rlvlm.rewards import REWARDS, score
from rlvlm.rewards.compose import build_rules
from rlvlm.rewards.config import RewardConfig

NEEDED = {"path": "some/model", "base_url": "http://localhost:1/v1", "model": "m", "buffer": 8}
WRONG: list[tuple[str, str, float]] = [
    ("number", "tolerance", -1),
    ("number", "relative", math.inf),
    ("number", "tolerance", math.nan),
    ("length", "at_least", -1),
    ("length", "at_most", 0),
    ("overlong", "buffer", 0),
    ("overlong", "limit", 0),
    ("repetition", "ngram", 0),
    ("repetition", "penalty", -0.5),
    ("bbox", "iou_threshold", 0.0),
    ("bbox", "iou_threshold", 1.5),
    ("point", "radius", -1.0),
    ("format", "max_share", 0.0),
    ("format", "max_share", 1.1),
    ("code", "seconds", 0.0),
    ("code", "memory_mb", 1),
    ("llm_judge", "concurrency", 0),
    ("llm_judge", "retries", -1),
    ("llm_judge", "request_timeout", 0.0),
    ("llm_judge", "per_minute", 0.0),
    ("llm_judge", "top", 0.0),
    ("reward_model", "batch_size", 0),
    ("reward_model", "max_length", 0),
    ("reward_model", "label", -1),
    ("clip_similarity", "batch_size", 0),
    ("clip_retrieval", "batch_size", 0),
    ("vqa_consistency", "batch_size", 0),
]


def _node(name: str, option: str, value: float) -> dict[str, Any]:
    entry = REWARDS.get(name)
    needed = {key: NEEDED[key] for key, one in entry.options.items() if one.default is Option.REQUIRED}
    return {"name": name, **needed, option: value}


@pytest.mark.parametrize(("name", "option", "value"), WRONG)
def test_an_option_out_of_its_range_is_one_sentence(name: str, option: str, value: float) -> None:
    node = _node(name, option, value)
    with pytest.raises(ConfigError, match=f"^option '{option}' of reward '{name}' is .*got {value}.$"):
        build_rules(RewardConfig(rules={"mine": node}))
    with pytest.raises(ConfigError, match=f"option '{option}'"):
        build_rules(RewardConfig(rules={"mine": {"by": "kind", "table": {"x": node}}}))


def test_every_number_that_a_rule_takes_has_a_range() -> None:
    for entry in REWARDS.own_entries():
        declared = {name for allowed in entry.traits["ranges"] for name in allowed.names}
        numeric = {name for name, one in entry.options.items() if str(one.annotation).split(" |")[0] in NUMBERS}
        assert numeric == declared, entry.name


NUMBERS = ("<class 'int'>", "<class 'float'>", "int", "float")


def test_bounds_must_be_in_order_and_none_sets_no_bound() -> None:
    with pytest.raises(ConfigError, match=r"'at_most' of reward 'length' is at least 'at_least' \(5\), got 3"):
        build_rules(RewardConfig(rules={"length": {"at_least": 5, "at_most": 3}}))
    build_rules(RewardConfig(rules={"length": {"at_least": 5, "at_most": None}, "bbox": {"iou_threshold": None}}))


def test_one_completion_is_scored_with_the_same_check() -> None:
    with pytest.raises(ConfigError, match=r"option 'tolerance' of reward 'number' is at least 0, got -1\."):
        score("number", "<answer>3</answer>", "3", tolerance=-1)


@pytest.mark.parametrize("timeout", [0, -1.0, math.nan, "soon", True])
def test_a_rules_own_timeout_is_positive_wherever_it_stands(timeout: Any) -> None:
    for node in ({"timeout": timeout}, {"by": "kind", "table": {"x": {"name": "number", "timeout": timeout}}}):
        with pytest.raises(ConfigError, match="is a positive number of seconds"):
            build_rules(RewardConfig(rules={"number": node}))


@pytest.mark.parametrize("completion", [None, 3, b"3", ["3"], {"content": "3"}])
def test_a_completion_that_is_no_text_is_an_error_of_one_sentence(completion: Any) -> None:
    for name in ("math", "number", "format"):
        with pytest.raises(
            RewardError, match=f"^a completion is text, got {type(completion).__name__} as completion 0.$"
        ):
            score(name, completion, "3")
