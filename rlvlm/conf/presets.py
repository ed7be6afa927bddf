"""Presets: how one is laid over a recipe, and what it changed of the recipe's algorithm.

What a preset says holds against the recipe that it is laid over: a part that it names stands with the preset's options
alone, and an option that its conventions give is taken out of the recipe's own parts, so that the convention fills it.
What comes later, a recipe that inherits the preset or an override, holds against the preset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.conf.merge import merge
from rlvlm.conf.schema import PARTS
from rlvlm.conf.tree import Tree

FOLDER = "preset/"
"""Config paths of presets begin with this."""

_KINDS = {key.removeprefix("algorithm."): group for key, group in PARTS.items() if key.startswith("algorithm.")}
_KINDS["filters"] = "filters"


def lay_preset(under: Mapping[str, Any], preset: Mapping[str, Any]) -> Tree:
    """The tree with a preset laid over it and over what its stages say of the algorithm."""
    said: Mapping[str, Any] = preset.get("algorithm") or {}
    tree = merge({**under, "algorithm": _making_room(under.get("algorithm") or {}, said)}, preset)
    stages = tree.get("stages") or []
    if any(isinstance(stage, Mapping) and stage.get("algorithm") for stage in stages):
        tree["stages"] = [_lay_over_stage(stage, said) for stage in stages]
    return tree


def _lay_over_stage(stage: Any, said: Mapping[str, Any]) -> Any:
    own = stage.get("algorithm") if isinstance(stage, Mapping) else None
    if not isinstance(own, Mapping):
        return stage
    again = {key: value for key, value in said.items() if key in own and key != "conventions"}
    laid = merge({"algorithm": _making_room(own, said)}, {"algorithm": again})
    return {**stage, "algorithm": laid["algorithm"]}


def _making_room(own: Mapping[str, Any], said: Mapping[str, Any]) -> Tree:
    """A recipe's algorithm without the parts that the preset names and the options that its conventions give."""
    conventions: Mapping[str, Any] = said.get("conventions") or {}
    room: Tree = {}
    for key, node in own.items():
        if key in _KINDS and _name_of(said.get(key)) is not None:
            continue
        room[key] = _without(key, node, conventions)
    return room


def _without(key: str, node: Any, conventions: Mapping[str, Any]) -> Any:
    if key == "regularizers" and isinstance(node, Mapping):
        given = conventions.get("regularizers", {})
        return {label: _of_term(label, term, given, conventions) for label, term in node.items()}
    if key == "kl_in_reward":
        return _of_estimator(node, conventions)
    if key not in _KINDS:
        return node
    if isinstance(node, (list, tuple)):
        return [_of_part(one, conventions.get(_KINDS[key], {})) for one in node]
    return _of_part(node, conventions.get(_KINDS[key], {}))


def _of_part(node: Any, given: Mapping[str, Any]) -> Any:
    """A node without the options that conventions of its kind give its part."""
    name = _name_of(node)
    if name is None or not isinstance(node, Mapping):
        return node
    left = {option: value for option, value in node.items() if option not in given.get(name, {})}
    return name if set(left) == {"name"} else left


def _of_term(label: str, term: Any, given: Mapping[str, Any], conventions: Mapping[str, Any]) -> Any:
    if not isinstance(term, Mapping):
        return term
    known = given.get(str(term.get("name", label)), {})
    left = _of_estimator({option: value for option, value in term.items() if option not in known}, conventions)
    return left["weight"] if set(left) == {"weight"} else left


def _of_estimator(node: Any, conventions: Mapping[str, Any]) -> Any:
    if not isinstance(node, Mapping) or "estimator" not in node:
        return node
    return {**node, "estimator": _of_part(node["estimator"], conventions.get("kl_estimators", {}))}


def _name_of(node: Any) -> str | None:
    if isinstance(node, Mapping):
        node = node.get("name")
    return node if isinstance(node, str) else None


def preset_changes(given: AlgorithmConfig, without: AlgorithmConfig) -> list[str]:
    """What a preset changed of an algorithm, one line for each part or option: ``given`` has it, ``without`` has it not.

    Raises ``ConfigError`` for an algorithm that can't be made.
    """
    now, before = dict(_effective(given)), dict(_effective(without))
    changes = []
    for key in {**now, **before}:
        parent = key.rpartition(".")[0]
        if key in now and now.get(key) != before.get(key, _ABSENT):
            if key in before:
                changes.append(f"algorithm.{key} is {_spell(now[key])} ({_spell(before[key])} without it)")
            elif now.get(parent) == before.get(parent, _ABSENT) or not isinstance(now.get(parent), str):
                changes.append(f"algorithm.{key} is {_spell(now[key])} (not there without it)")
            else:
                changes.append(f"algorithm.{key} is {_spell(now[key])}")
        elif key not in now and parent not in before:
            changes.append(f"algorithm.{key} is taken out ({_spell(before[key])} without it)")
    return changes


_ABSENT = object()


def _spell(value: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}.get(value, str(value))
        if not isinstance(value, float)
        else f"{value:g}"
    )


def _effective(config: AlgorithmConfig) -> Iterator[tuple[str, Any]]:
    """Each part's name and all its options as they are in force, by dotted key; and the settings that are no parts."""
    from rlvlm.algos.composition import compose
    from rlvlm.algos.regularizers import KLToReference
    from rlvlm.registry import Part

    nodes = {name: getattr(config, name) for name in _COMPOSED}
    made = compose(**nodes)

    def part(key: str, of: Part) -> Iterator[tuple[str, Any]]:
        yield key, of.name
        held = {"estimator": of.call.estimator} if isinstance(of.call, KLToReference) else {}
        for name, option in of.entry.options.items():
            if name in held:
                yield from part(f"{key}.{name}", held[name])
            else:
                yield f"{key}.{name}", of.options.get(name, option.default)

    yield from part("advantage", made.advantage)
    yield from part("policy_loss", made.policy_loss)
    yield from part("aggregation", made.aggregation)
    for kind, parts in (("correction", made.corrections), ("filters", made.filters)):
        for number, one in enumerate(parts):
            yield from part(f"{kind}.{number}", one)
    for term in made.weighted():
        where = term.name if term.name in ("kl_in_reward", "value_loss") else f"regularizers.{term.name}"
        yield from part(f"{where}.estimator" if term is made.kl_in_reward else where, term.part)
        yield f"{where}.weight", term.weight
    for name in ("mask_truncated", "max_refills"):
        yield name, getattr(config, name)


_COMPOSED = (
    "advantage",
    "policy_loss",
    "value_loss",
    "regularizers",
    "kl_in_reward",
    "correction",
    "aggregation",
    "filters",
    "conventions",
)
