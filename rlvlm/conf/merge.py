"""How one layer of a recipe is laid over another: mappings key by key, parts by their names.

A part's options belong to its name. Laying ``{name: gspo}`` over ``{name: ppo_clip, clip_high: 0.28}`` gives ``gspo``
alone; ``{clip_high: 0.3}`` over ``ppo_clip`` sets that option. A weighted part keeps its options when only its weight
is given, and goes when it is set to null; null for all of them takes all out. Lists are replaced whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlvlm.conf.schema import PARTS, SOURCES, WEIGHTED
from rlvlm.conf.tree import Tree
from rlvlm.data.config import read_sources
from rlvlm.errors import ConfigError

Merge = Callable[[Any, Any], Any]


def merge(under: Mapping[str, Any], over: Mapping[str, Any], path: str = "") -> Tree:
    """The tree ``under`` with ``over`` laid on it; neither is changed."""
    merged = dict(under)
    for name, value in over.items():
        key = f"{path}{name}"
        if key in WEIGHTED and (value is None or isinstance(value, Mapping)):
            merged[name] = {} if value is None else _merge_weighted(_mapping(merged.get(name)), value)
        elif name in merged and key in _RULES:
            merged[name] = _RULES[key](merged[name], value)
        elif isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = merge(merged[name], value, f"{key}.")
        else:
            merged[name] = value
    return merged


def merge_part(under: Any, over: Any) -> Any:
    """Lays a node over a node of the same key: options of another name are discarded."""
    old, new = _named(under), _named(over)
    if old is None or new is None:
        return over
    if "name" in new and new["name"] != old.get("name"):
        return over
    return _short({**old, **new})


def merge_source(under: Any, over: Any) -> Any:
    """As :func:`merge_part`, where a source goes by ``name`` or by ``path``."""
    old, new = _identified(under), _identified(over)
    if old is None or new is None or not _identity(old).items() >= _identity(new).items():
        return over
    return over if new == old else {**old, **new}


def merge_weight(under: Any, over: Any) -> Any:
    """Lays a weight, or a mapping with or without ``weight``, over another; a label that gets another ``name`` starts anew."""
    old, new = _weighed(under), _weighed(over)
    if old is None or new is None:
        return over
    if new.get("name", old.get("name")) != old.get("name"):
        return over
    both = {**old, **new}
    return both["weight"] if set(both) == {"weight"} else both


def _merge_weighted(under: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    merged = dict(under)
    for name, value in over.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_weight(merged[name], value) if name in merged else value
    return merged


def _mapping(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else {}


def _named(node: Any) -> Tree | None:
    if isinstance(node, str):
        return {"name": node}
    return dict(node) if isinstance(node, Mapping) else None


def _weighed(node: Any) -> Tree | None:
    if isinstance(node, (int, float)) and not isinstance(node, bool):
        return {"weight": node}
    return dict(node) if isinstance(node, Mapping) else None


def _identified(node: Any) -> Tree | None:
    if isinstance(node, Mapping):
        return dict(node)
    if not isinstance(node, str):
        return None
    try:
        (source,) = read_sources(node)
    except ConfigError:
        return None
    return {"name": source.name} if source.path is None else {"path": source.path}


def _identity(node: Mapping[str, Any]) -> Tree:
    return {key: node[key] for key in ("name", "path") if node.get(key) is not None}


def _short(node: Tree) -> Any:
    return node["name"] if set(node) == {"name"} else node


_RULES: dict[str, Merge] = {
    **dict.fromkeys(PARTS, merge_part),
    **dict.fromkeys(SOURCES, merge_source),
    "algorithm.kl_in_reward": merge_weight,
}
