"""Names of rewards that an algorithm gives: rules, declared details, and what can't be known before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.conf.check import check_stage
from rlvlm.errors import SettingsError
from rlvlm.pipelines.reward_names import check_reward_names
from rlvlm.pipelines.run import train
from rlvlm.rewards import register_reward
from rlvlm.rewards.compose import build_rules
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.rule import REWARDS
from tests.pipelines.miniature import read_metrics, rlvr_stage

PEER = Path(__file__).with_name("peer_rewards.py")


@pytest.fixture(autouse=True)
def own_rules():
    before = set(REWARDS.names())

    @register_reward("says_number")
    def says_number(completion: str) -> float:
        return 0.0

    @register_reward("declares", details=("accuracy", "steps"))
    def declares(completion: str):
        return {"score": 1.0, "accuracy": 0.5}

    @register_reward("says_nothing")
    def says_nothing(completion: str):
        return {"score": 1.0, "accuracy": 0.5}

    yield
    for name in set(REWARDS.names()) - before:
        del REWARDS._entries[name]


def notes(of: str, rules: dict[str, Any], name: str = "reward_spread") -> list[str]:
    config = AlgorithmConfig(filters=[{"name": name, "of": of}])
    return check_reward_names(config, build_rules(RewardConfig(rules=rules)))


@pytest.mark.parametrize("name", ["reward_spread", "mean_window"])
@pytest.mark.parametrize(
    ("of", "rules"),
    [
        ("rewards", {"number": 1.0}),
        ("scores", {"number": 1.0}),
        ("number", {"number": 1.0}),
        ("mine", {"mine": {"name": "number"}}),
        ("accuracy", {"declares": 1.0}),
        ("declares.steps", {"declares": 1.0}),
        ("passed", {"code": 1.0}),
    ],
)
def test_rules_and_what_they_declare_can_be_looked_at(name: str, of: str, rules: dict[str, Any]) -> None:
    assert notes(of, rules, name) == []


@pytest.mark.parametrize("name", ["reward_spread", "mean_window"])
@pytest.mark.parametrize(
    ("of", "rules", "meant"),
    [
        ("accuracy", {"number": 1.0, "format": 0.1}, ""),
        ("numbr", {"number": 1.0}, "number"),
        ("reward", {"number": 1.0}, "rewards"),
        ("acuracy", {"declares": 1.0}, "accuracy"),
        ("accuracy", {"says_number": 1.0}, ""),
        ("pased", {"code": 1.0}, "passed"),
    ],
)
def test_a_name_that_nothing_gives_is_refused_with_the_nearest(name: str, of: str, rules: Any, meant: str) -> None:
    with pytest.raises(
        SettingsError, match=f"filter '{name}' looks at '{of}', which no rule of reward.rules gives"
    ) as told:
        notes(of, rules, name)
    assert (f"did you mean '{meant}'?" in str(told.value)) or not meant


def test_what_a_rule_does_not_declare_is_said_to_be_open() -> None:
    (note,) = notes("accuracy", {"says_nothing": 1.0, "number": 1.0})
    assert "whether rule 'says_nothing' tells it" in note
    (note,) = notes("accuracy", {"theirs": {"style": "easyr1", "path": str(PEER), "function": "graded"}})
    assert "rule 'theirs'" in note


def test_weights_of_gdpo_name_rules() -> None:
    rules = build_rules(RewardConfig(rules={"number": 1.0, "format": 0.1}))
    good = AlgorithmConfig(advantage={"name": "gdpo", "weights": {"number": 1.0}})
    assert check_reward_names(good, rules) == []
    bad = AlgorithmConfig(advantage={"name": "gdpo", "weights": {"numbre": 1.0}})
    with pytest.raises(SettingsError, match=r"weighs the rule 'numbre', .*\(did you mean 'number'\?\)"):
        check_reward_names(bad, rules)


def test_a_check_of_the_recipe_tells_both() -> None:
    stage = rlvr_stage()
    stage.reward.rules = {"number": 1.0, "says_nothing": 0.0}
    stage.algorithm.filters = [{"name": "mean_window", "of": "accuracy"}]
    assert any("shows when it runs" in note for note in check_stage(stage).notes)
    del stage.reward.rules["says_nothing"]
    assert any("looks at 'accuracy'" in problem for problem in check_stage(stage).problems)
    stage.algorithm.filters.append("spred")
    stage.algorithm.max_refills = -1
    told = " ".join(check_stage(stage).problems)
    assert all(piece in told for piece in ("looks at 'accuracy'", "no filter called 'spred'"))


def test_a_run_filters_by_a_key_that_a_peers_function_returns(tmp_path) -> None:
    stage = rlvr_stage(steps=2)
    stage.data.eval = None
    stage.plugins = []
    stage.reward.rules = {"theirs": {"style": "easyr1", "path": str(PEER), "function": "graded"}}
    stage.algorithm.filters = [{"name": "mean_window", "of": "accuracy", "low": 0.4, "high": 0.6}]
    train([stage], tmp_path / "kept", show=False)
    assert all(entry["sum/filter/mean_window/dropped_groups"] == 0 for entry in read_metrics(tmp_path / "kept"))
    stage.algorithm.filters = [{"name": "mean_window", "of": "theirs.accuracy", "low": 0.6, "high": 0.9}]
    stage.algorithm.max_refills = 0
    train([stage], tmp_path / "dropped", show=False)
    assert all(entry["sum/skipped_batches"] == 1 for entry in read_metrics(tmp_path / "dropped"))
