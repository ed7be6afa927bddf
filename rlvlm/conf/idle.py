"""Settings that were asked for and that no stage reads: each is a mistake, told before a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.conf.presets import FOLDER
from rlvlm.conf.schema import Recipe
from rlvlm.conf.stages import OWN, build_stages
from rlvlm.pipelines.reads import ALWAYS, SAMPLING, is_below, unread

_TOLD_ELSEWHERE = ("actor.epochs", "actor.mini_batches")
"""Refused where their value asks for something, wherever it comes from (``pipelines/contradictions.py``)."""


def idle_settings(recipe: Recipe, given: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A sentence for each setting that nothing reads.

    Args:
        given: what was asked for itself, as trees, with words for where.
    """
    from rlvlm.pipelines.stages import is_supervised

    stages = build_stages(recipe, [])
    groups = [unread(one, supervised=is_supervised(one)) for one in stages]
    problems = []
    defaults = {**dataclasses.asdict(Recipe()), "algorithm": {**vars(AlgorithmConfig()), "seed": recipe.run.seed}}
    for where, tree in given:
        keys = [key for key in _keys(tree) if all(is_below(key, of_stage) for of_stage in groups)]
        if not where.startswith("override"):  # the file of a run holds every key
            keys = [key for key in keys if _at(tree, key) != _at(defaults, key)]
        if keys and where.startswith(f"'{FOLDER}"):
            problems.append(f"{where} has no effect, since {_why(keys[0], 'no stage of this recipe')}; take it out.")
        else:
            problems += [
                f"in {where}, '{key}' has no effect, since {_why(key, 'no stage of this recipe')}; take it out."
                for key in keys
            ]
    for stage, entry, of_stage in zip(stages, recipe.stages, groups, strict=False):
        own = {name: value for name, value in entry.items() if name not in OWN}
        problems += [
            f"'stages.{stage.name}.{key}' has no effect, since {_why(key, 'no supervised stage')}; take it out."
            for key in _keys(own)
            if is_below(key, of_stage)
        ]
    return problems


def _why(key: str, who: str) -> str:
    if is_below(key, SAMPLING) and not is_below(key, ALWAYS):
        return f"{who} samples answers (a supervised one does with run.eval_every)"
    return f"{who} reads it"


def _at(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys of all that has a value."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _keys(value, f"{key}.")
        elif value is not None and value != {} and key not in _TOLD_ELSEWHERE:
            yield key
