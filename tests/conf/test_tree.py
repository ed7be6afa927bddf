"""Plain trees against dataclasses: wrong keys, wrong values, and what was meant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf

from rlvlm.conf.schema import PARTS, SOURCES, WEIGHTED, Recipe
from rlvlm.conf.tree import (
    build,
    convert,
    find_problems,
    fits,
    in_lists,
    known_paths,
    leaves,
    missing_keys,
    spell,
    strip_unknown,
    suggest,
)
from rlvlm.errors import ConfigError


@dataclass
class Inner:
    lr: float = 1.0
    names: list[str] = field(default_factory=list)
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ConfigError(f"inner.lr is 0 or more, got {self.lr}.")


@dataclass
class Outer:
    steps: int = 1
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    node: Any = None


def test_known_paths_and_leaves_list_the_whole_tree():
    assert known_paths(Outer)[:3] == ["steps", "inner", "inner.lr"]
    assert list(leaves(Outer)) == [
        "steps", "inner.lr", "inner.names", "inner.kind", "maybe.lr", "maybe.names", "maybe.kind", "node",
    ]  # fmt: skip


def test_every_wrong_key_and_value_is_found_at_once():
    tree = {"stesp": 1, "steps": True, "inner": {"lrr": 1, "names": ["a", [3]], "kind": "c"}, "maybe": 3, "node": [1]}
    problems = find_problems(tree, Outer)
    assert len(problems) == 6
    assert problems[0] == "the key 'stesp' does not exist (did you mean 'steps'?)"
    assert problems[1] == "the key 'steps' takes a whole number, got True"
    assert problems[2] == "the key 'inner.lrr' does not exist (did you mean 'inner.lr'?)"
    assert "takes a list ([text, …]), got ['a', [3]]" in problems[3]
    assert problems[4] == "the key 'inner.kind' takes one of a, b, got 'c'"
    assert problems[5] == "the key 'maybe' is a group of keys (lr, names, kind), got 3"


def test_values_that_are_not_known_yet_pass():
    assert (
        find_problems({"steps": "${inner.lr}", "inner": {"lr": "???", "names": ["${steps}"]}, "maybe": None}, Outer)
        == []
    )
    assert missing_keys({"a": {"b": "???", "c": 1}, "d": "???"}) == ["a.b", "d"]


def test_strip_unknown_keeps_what_can_stay():
    tree = {"stesp": 1, "steps": "x", "inner": {"lrr": 1, "lr": 2}, "maybe": 3}
    assert strip_unknown(tree, Outer) == {"inner": {"lr": 2}}


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("actor.epchs", "actor.epochs"),  # a sibling
        ("epochs", "actor.epochs"),  # the right name elsewhere
        ("actor.lr", "actor.optimizer.lr"),
        ("rollout.temperture", "rollout.temperature"),
        ("acter.epochs", "actor.epochs"),
        ("lerning_rate", None),
    ],
)
def test_suggest_finds_what_was_meant(wrong, meant):
    hint = suggest(wrong, known_paths(Recipe))
    assert hint == f" (did you mean '{meant}'?)" if meant else "did you mean" not in hint


def test_build_makes_dataclasses_and_gathers_what_they_refuse():
    problems: list[str] = []
    outer = build(Outer, {"steps": 3, "inner": {"lr": 2}, "maybe": {"lr": 1}}, problems)
    assert problems == []
    assert outer == Outer(steps=3, inner=Inner(lr=2.0), maybe=Inner(lr=1.0))
    assert isinstance(outer.inner.lr, float)
    build(Outer, {"inner": {"lr": -1.0}, "maybe": {"lr": -2.0}}, problems)
    assert problems == ["inner.lr is 0 or more, got -1.0.", "inner.lr is 0 or more, got -2.0."]


@pytest.mark.parametrize(
    ("value", "annotation", "good"),
    [
        (1, float, True), (1.5, int, False), (True, int, False), (True, float, False), (1, bool, False), ("1", int, False), (7, str, True),
        (7.5, str, False),
        (None, int | None, True), (None, int, False), ([1, 2.5], list[float], True), ("ab", list[str], False),
        ({"a": 1}, dict[str, float], True), ({"a": "x"}, dict[str, float], False), (object(), Any, True), ("a", Literal["a"], True),
    ],
)  # fmt: skip
def test_fits(value, annotation, good):
    assert fits(value, annotation) is good


@pytest.mark.parametrize(
    ("value", "annotation", "converted"),
    [
        (1, float, 1.0), (1, int | None, 1), (7, str | None, "7"), ([1, 2], list[float], [1.0, 2.0]),
        (True, bool, True), (3, Any, 3), (1, float | None, 1.0),
    ],
)  # fmt: skip
def test_convert(value, annotation, converted):
    made = convert(value, annotation)
    assert made == converted
    assert repr(made) == repr(converted)


def test_annotations_are_spelled_in_words():
    assert spell(int | None) == "a whole number or null"
    assert spell(list[str]) == "a list ([text, …])"
    assert spell(dict[str, Any]) == "a mapping ({key: value})"


def test_the_schema_is_one_that_hydra_can_type():
    typed = OmegaConf.structured(Recipe)
    assert typed.actor.epochs == 1


def test_the_tables_of_parts_name_keys_that_exist():
    for key in (*PARTS, *SOURCES, *WEIGHTED):
        assert key in known_paths(Recipe)


def test_a_single_value_stands_for_a_list_of_one():
    tree = {"plugins": "mine.py", "run": {"trackers": "wandb", "dir": "runs"}, "rollout": {"stop_ids": 7}, "model": {}}
    listed = in_lists(tree, Recipe)
    assert listed == {
        "plugins": ["mine.py"],
        "run": {"trackers": ["wandb"], "dir": "runs"},
        "rollout": {"stop_ids": [7]},
        "model": {},
    }
    assert in_lists({"plugins": "${run.name}", "rollout": {"stop": None, "stop_ids": "x"}}, Recipe) == {
        "plugins": "${run.name}",
        "rollout": {"stop": None, "stop_ids": "x"},
    }
