"""Command-line overrides, in hydra's grammar: ``key=value``, ``+key=value``, ``~key``; each one laid over the tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from rlvlm.conf.merge import merge
from rlvlm.conf.tree import Tree
from rlvlm.errors import ConfigError, nearest

STAGES = "stages"


@dataclass(frozen=True)
class Setting:
    """One override of a value: its dotted key, the value, whether it deletes, and the text it was read from."""

    key: str
    value: Any
    delete: bool
    text: str


def parse(text: str) -> Override:
    """Reads one override; raises ``ConfigError`` where hydra's grammar can't."""
    if "=" not in text and not text.startswith("~"):
        raise ConfigError(f"override '{text}' sets nothing; write it as key=value (or ~key to take a key out).")
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        first = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"override '{text}' can't be read ({first}); put a value with commas, spaces, = or brackets of its own "
            f"in quotes: 'key=\"value\"'."
        ) from error


def to_setting(override: Override) -> Setting:
    """The setting that an override of a value is."""
    value = None if override.is_delete() else override.value()
    return Setting(str(override.key_or_group), value, bool(override.is_delete()), str(override.input_line))


def as_layer(setting: Setting, tree: Mapping[str, Any]) -> Tree:
    """The tree with nothing but this setting; ``stages.<name or number>.…`` gives the whole list with that stage changed.

    Raises ``ConfigError`` for a stage that is not there.
    """
    head, _, rest = setting.key.partition(".")
    if head != STAGES or not rest:
        return _nest(setting.key, setting.value)
    stages = [dict(stage) for stage in tree.get(STAGES) or []]
    which, _, below = rest.partition(".")
    index = _find_stage(stages, which, setting.text)
    stages[index] = merge(stages[index], _nest(below, setting.value)) if below else setting.value
    return {STAGES: stages}


def apply(setting: Setting, tree: Tree, layer: Tree) -> Tree:
    """The tree with a setting, as its layer, laid over it; raises ``ConfigError`` for a deletion of what is not there."""
    return _delete(tree, setting.key.split("."), setting.text) if setting.delete else merge(tree, layer)


def names_of(stages: list[Any]) -> list[str]:
    """The names of stages as the recipe gives them: ``name``, else the pipeline."""
    return [
        str(stage.get("name") or stage.get("pipeline") or "rlvr") if isinstance(stage, Mapping) else "?"
        for stage in stages
    ]


def _find_stage(stages: list[Tree], which: str, text: str) -> int:
    names = names_of(stages)
    if which in names:
        return names.index(which)
    if which.isdigit() and int(which) < len(stages):
        return int(which)
    raise ConfigError(f"override '{text}' names the stage '{which}', which this recipe has not{nearest(which, names)}.")


def _nest(key: str, value: Any) -> Tree:
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def _delete(tree: Mapping[str, Any], path: list[str], text: str) -> Tree:
    name, rest = path[0], path[1:]
    if not isinstance(tree, Mapping) or name not in tree:
        there = list(tree) if isinstance(tree, Mapping) else []
        raise ConfigError(f"override '{text}' takes out '{name}', which is not there{nearest(name, there)}.")
    if rest:
        return {**tree, name: _delete(tree[name], rest, text)}
    return {key: value for key, value in tree.items() if key != name}
