"""Peers' reward functions, written as their projects write them, taken unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlvlm.compat.rewards import adapt
from rlvlm.errors import ConfigError
from rlvlm.rewards import Runner
from rlvlm.rewards.config import RewardConfig

VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    assert data_source == "geo"
    return {"score": float(ground_truth in solution_str) + bonus, "acc": 1, "split": extra_info["split"]}

def plain(data_source, solution_str, ground_truth, extra_info):
    return 0.25

async def later(data_source, solution_str, ground_truth, extra_info):
    return 0.75

def hang(data_source, solution_str, ground_truth, extra_info):
    while True:
        pass
"""

EASYR1 = """
REWARD_NAME = "count"
REWARD_TYPE = "batch"

def compute_score(reward_inputs, format_weight=0.1):
    return [
        {"overall": float(one["ground_truth"] in one["response"]) + format_weight, "accuracy": 1.0, "tokens": one["response_length"]}
        for one in reward_inputs
    ]

def one(reward_input):
    return {"overall": float(reward_input["ground_truth"] in reward_input["response"])}

def broken(reward_inputs):
    return [{"accuracy": 1.0} for _ in reward_inputs]
"""

TRL = """
def matches(completions, ground_truth, prompts=None, **kwargs):
    return [1.0 if truth in text else None for text, truth in zip(completions, ground_truth)]

async def later(completions, ground_truth, **kwargs):
    return [1.0 if truth in text else None for text, truth in zip(completions, ground_truth)]

def messages(completions, **kwargs):
    return [float(len(one[0]["content"])) + len(kwargs["extra"]) for one in completions]
"""

RECORDS = [
    {
        "reward_model": {"ground_truth": "3", "style": "rule"},
        "data_source": "geo",
        "extra_info": {"split": "train"},
        "ground_truth": "3",
    },
    {"answer": "4", "data_source": "geo", "extra_info": {"split": "test"}, "ground_truth": "4"},
]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for name, source in (("verl", VERL), ("easyr1", EASYR1), ("trl", TRL)):
        (tmp_path / f"{name}_reward.py").write_text(source, encoding="utf-8")
    return {name: str(tmp_path / f"{name}_reward.py") for name in ("verl", "easyr1", "trl")}


def _run(node: dict[str, Any], completions: tuple[str, ...] = ("it is 3", "it is 5"), **config: Any) -> Any:
    runner = Runner(RewardConfig(rules={"mine": node}, workers=1, **config))
    try:
        return runner.score(runner.samples(completions, RECORDS, response_length=[7, 8]))
    finally:
        runner.close()


def test_verl_gets_its_four_arguments_and_keyword_arguments_of_the_node(files: dict[str, str]) -> None:
    found = _run({"style": "verl", "path": files["verl"], "weight": 2.0, "bonus": 0.5})
    assert found.scores == [3.0, 1.0]
    assert found.details["mine"] == {0: {"acc": 1, "split": "train"}, 1: {"acc": 1, "split": "test"}}


def test_verl_may_give_a_number_or_be_async_and_is_killed_when_it_hangs(files: dict[str, str]) -> None:
    assert _run({"style": "verl", "path": files["verl"], "function": "plain"}).scores == [0.25, 0.25]
    assert _run({"style": "verl", "path": files["verl"], "function": "later"}).scores == [0.75, 0.75]
    found = _run({"style": "verl", "path": files["verl"], "function": "hang"}, timeout=0.5)
    assert [failure.kind for failure in found.failures.values()] == ["timeout", "timeout"]


def test_easyr1_takes_the_batch_or_one_dict_by_its_reward_type(files: dict[str, str]) -> None:
    found = _run({"style": "easyr1", "path": files["easyr1"], "format_weight": 0.25})
    assert found.scores == [1.25, 0.25]
    assert found.details["mine"][1] == {"accuracy": 1.0, "tokens": 8}
    single = {"style": "easyr1", "path": files["easyr1"], "function": "one", "reward_type": "sequential"}
    assert _run(single).scores == [1.0, 0.0]


def test_easyr1_without_overall_fails_its_rows(files: dict[str, str]) -> None:
    found = _run({"style": "easyr1", "path": files["easyr1"], "function": "broken"})
    assert found.scores == [None, None]
    assert "'overall'" in found.failures[0].message


def test_trl_gets_columns_and_its_none_adds_nothing(files: dict[str, str]) -> None:
    found = _run({"style": "trl", "path": files["trl"], "function": "matches"})
    assert found.scores == [1.0, 0.0]
    assert found.details["mine"] == {1: {"applies": False}}


def test_trl_functions_may_be_async(files: dict[str, str]) -> None:
    found = _run({"style": "trl", "path": files["trl"], "function": "later"})
    assert found.scores == [1.0, 0.0]
    assert found.details["mine"] == {1: {"applies": False}}


def test_trl_completions_can_be_messages(files: dict[str, str]) -> None:
    node = {"style": "trl", "path": files["trl"], "function": "messages", "conversational": True, "extra": [1, 2]}
    assert _run(node).scores == [9.0, 9.0]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"style": "verl"}, "names its function by 'path'"),
        ({"style": "trl", "path": "PATH"}, "needs 'function'"),
        ({"style": "verl", "path": "PATH", "function": "compute_scor"}, "did you mean 'compute_score'"),
        ({"style": "easyr1", "path": "PATH", "reward_type": "both"}, "'reward_type: batch'"),
        ({"style": "trl", "path": "PATH", "function": "plain", "conversational": "yes"}, "is true or false"),
        ({"style": "verl", "path": "PATH", "function": "plain", "build": 3}, "build is a mapping"),
        ({"style": "verl", "path": "PATH", "function": "plain", "build": {"a": 1}}, "can't be built .*'build' gives"),
        ({"style": "verl", "path": "PATH:plain", "function": "later"}, "keep one"),
        ({"style": "verl", "path": "PATH:plian"}, "did you mean 'plain'"),
        ({"style": "verl", "path": "/no/such/file.py"}, "does not exist"),
        ({"style": "vrl", "path": "PATH"}, "style of reward.rules.mine is one of verl, .*did you mean 'verl'"),
        ({"name": "number", "style": "trll"}, "style of reward.rules.mine is one of verl, .*did you mean 'trl'"),
    ],
)
def test_a_wrong_node_is_one_sentence(node: dict[str, Any], message: str, files: dict[str, str]) -> None:
    node = {
        key: value.replace("PATH", files["verl"]) if isinstance(value, str) else value for key, value in node.items()
    }
    with pytest.raises(ConfigError, match=message):
        _run(node)


def test_a_style_is_never_guessed() -> None:
    with pytest.raises(ConfigError, match="one of verl, easyr1, trl"):
        adapt(lambda: 0.0, "rllib")
