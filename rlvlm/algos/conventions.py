"""Conventions: options that a part takes where its node gives none, in place of the part's own defaults.

They say how one peer does things, for every part at once and whichever of them is chosen: ``{"advantages": {"grpo":
{"eps": 1e-4}, "rloo": {"singleton": "reward"}}, "policy_losses": {"gspo": {"form": "token"}}}``. The presets
(``rlvlm/conf/preset``) are made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvlm.algos.registries import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    FILTERS,
    POLICY_LOSSES,
    REGULARIZERS,
    VALUE_LOSSES,
)
from rlvlm.errors import ConfigError, nearest
from rlvlm.registry import Registry, fits, split_node

_KINDS = {
    registry.group: registry
    for registry in (ADVANTAGES, POLICY_LOSSES, VALUE_LOSSES, REGULARIZERS, AGGREGATIONS, CORRECTIONS, FILTERS)
}


class Conventions:
    """Default options by kind of part and by part.

    Raises ``ConfigError`` for a kind, a part or an option that there is not, whether the part is chosen or not.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        for kind, parts in options.items():
            if kind not in _KINDS:
                raise ConfigError(f"algorithm.conventions has no kind of part '{kind}'{nearest(kind, _KINDS)}.")
            if not isinstance(parts, Mapping):
                raise ConfigError(f"algorithm.conventions.{kind} is a mapping of parts, got {parts!r}.")
            for name, given in parts.items():
                _check(_KINDS[kind], name, given)

    def fill(self, registry: Registry, node: Any, key: str | None = None) -> Any:
        """The node with the options that its part has by convention and it does not give.

        Args:
            key: the part's name where the node is a weight or a mapping without one.
        """
        known = self._options.get(registry.group, {})
        if node is None or not known:
            return node
        if key is None:
            name, options = split_node(registry.kind, node)
        else:
            options = dict(node) if isinstance(node, Mapping) else {"weight": node}
            name = options.pop("name", key)
        return {"name": name, **known.get(name, {}), **options}


def _check(registry: Registry, name: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"algorithm.conventions.{registry.group}.{name} is a mapping of options, got {given!r}.")
    known = registry.get(name).options
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"{registry.kind} '{name}' has no option '{key}'{nearest(key, known)}.")
        if not fits(value, known[key].annotation):
            raise ConfigError(f"option '{key}' of {registry.kind} '{name}' can't be {value!r}.")
