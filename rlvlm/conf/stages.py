"""Stages: what each lays over the recipe's tree, and the complete stages that a recipe resolves to.

An entry of ``stages`` holds keys of its own (``name``, ``pipeline``, ``init``, ``cache``) and any part of the recipe's
tree but ``plugins`` and ``stages``, laid over the recipe as a child recipe would be.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from rlvlm.conf.merge import merge
from rlvlm.conf.problems import RecipeError
from rlvlm.conf.schema import Recipe
from rlvlm.conf.tree import Tree, annotations_of, build, find_problems, in_lists, known_paths, suggest
from rlvlm.pipelines.config import Stage

OWN = tuple(name for name in annotations_of(Stage) if name not in annotations_of(Recipe))
"""Keys that a stage has and a recipe has not."""

OF_THE_RUN = ("plugins", "run.dir", "run.name", "run.trackers", "run.threads")
"""Keys that are settled once for all stages."""


def layer_problems(layer: Mapping[str, Any]) -> list[str]:
    """What the schema has against a layer of a recipe, stages included, each as a sentence without its full stop."""
    problems = find_problems(layer, Recipe)
    stages = layer.get("stages")
    for index, stage in enumerate(stages if isinstance(stages, list) else []):
        where = f"stages.{stage['name'] if isinstance(stage, Mapping) and stage.get('name') else index}"
        if not isinstance(stage, Mapping):
            problems.append(
                f"the key '{where}' is a group of keys ({', '.join(OWN)}, and any of the recipe), got {stage!r}"
            )
            continue
        known = [path for path in known_paths(Stage) if path not in OF_THE_RUN]
        problems += [_below(where, problem) for problem in find_problems(stage, Stage, known)]
        problems += [
            f"the key '{where}.{key}' is of the whole run; set {key} beside the stages"
            for key in OF_THE_RUN
            if _has(stage, key)
        ]
    return problems


def with_lists(layer: Mapping[str, Any]) -> Tree:
    """A layer of a recipe with single values in lists where the schema asks for lists, in the stages too."""
    done = in_lists({key: value for key, value in layer.items() if key != "stages"}, Recipe)
    if "stages" in layer:
        stages = layer["stages"]
        entries = stages if isinstance(stages, list) else []
        done["stages"] = [in_lists(one, Stage) if isinstance(one, Mapping) else one for one in entries] or stages
    return {key: done[key] for key in map(str, layer)}


def resolve_tree(tree: Mapping[str, Any]) -> list[Tree]:
    """The complete tree of each stage, in order; without ``stages`` the recipe is one ``rlvr`` stage."""
    base = {key: value for key, value in tree.items() if key != "stages"}
    layers = list(tree.get("stages") or [{}])
    resolved = []
    for layer in layers:
        own = {key: value for key, value in layer.items() if key in OWN}
        own.setdefault("name", own.get("pipeline") or "rlvr")
        resolved.append({**merge(base, {key: value for key, value in layer.items() if key not in OWN}), **own})
    return resolved


def resolve_stages(recipe: Recipe) -> list[Stage]:
    """The stages of a recipe, each complete; raises ``RecipeError`` with all that is wrong with them."""
    problems: list[str] = []
    stages = build_stages(recipe, problems)
    if problems:
        raise RecipeError(problems)
    return stages


def build_stages(recipe: Recipe, problems: list[str]) -> list[Stage]:
    """The stages as far as they can be built; what is wrong is added to ``problems``.

    That is a name used twice, ``init: previous`` at the start, and settings that a component refuses.
    """
    stages = [build(Stage, tree, problems) for tree in resolve_tree(dataclasses.asdict(recipe))]
    names = [stage.name for stage in stages]
    for index, stage in enumerate(stages):
        if not _names_a_folder(stage.name):
            problems.append(
                f"stages.{index}.name is '{stage.name}', and a folder is called by it; it takes no slash and begins with a letter, "
                "a digit or an underscore."
            )
        if names.index(stage.name) != index:
            problems.append(
                f"stages.{index} is called '{stage.name}' like an earlier stage; give each a 'name' of its own."
            )
        if stage.init not in (None, "previous"):
            problems.append(
                f"stages.{stage.name}.init is 'previous' or null, got {stage.init!r}{suggest(str(stage.init), ['previous'])}; "
                f"another model to start from goes into model.path."
            )
        if stage.init == "previous" and index == 0:
            problems.append(f"stages.{stage.name} has init: previous, but it is the first stage; take that key out.")
    return stages


def _names_a_folder(name: str) -> bool:
    return bool(re.match(r"\w", name)) and not re.search(r"[/\\\x00-\x1f]", name) and len(name.encode()) <= 100


def _below(where: str, problem: str) -> str:
    for phrase in ("the key '", "did you mean '"):
        problem = problem.replace(phrase, f"{phrase}{where}.", 1)
    return problem


def _has(tree: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = tree[name]
    return True
