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
    KL_ESTIMATORS,
    POLICY_LOSSES,
    REGULARIZERS,
    VALUE_LOSSES,
)
from rlvlm.errors import ConfigError, nearest
from rlvlm.registry import Entry, Registry, fits, split_node

_KINDS = {
    registry.group: registry
    for registry in (
        ADVANTAGES,
        POLICY_LOSSES,
        VALUE_LOSSES,
        REGULARIZERS,
        KL_ESTIMATORS,
        AGGREGATIONS,
        CORRECTIONS,
        FILTERS,
    )
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
        if node is None or not (known or "kl_estimators" in self._options):
            return node
        if key is None:
            name, options = split_node(registry.kind, node)
        else:
            options = dict(node) if isinstance(node, Mapping) else {"weight": node}
            name = options.pop("name", key)
        given = known.get(name, {})
        filled = {"name": name, **given, **options}
        for option, group in self._held(registry, name).items():
            filled[option] = self._fill_held(_KINDS[group], registry.get(name), option, given, options)
        return filled if known or set(filled) != {"name"} else node

    def _held(self, registry: Registry, name: str) -> Mapping[str, str]:
        """The options of a part that hold parts themselves and have conventions, and the kind of each."""
        held = registry.get(name).traits.get("holds", {}) if name in registry.names() else {}
        return {option: group for option, group in held.items() if group in self._options}

    def _fill_held(
        self, kind: Registry, entry: Entry, option: str, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Any:
        node = options.get(option, given.get(option, entry.options[option].default))
        if option in options and option in given:
            name, own = split_node(kind.kind, node)
            usual, more = split_node(kind.kind, given[option])
            node = {"name": name, **(more if name == usual else {}), **own}
        return self.fill(kind, node)


def _check(registry: Registry, name: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"algorithm.conventions.{registry.group}.{name} is a mapping of options, got {given!r}.")
    known = registry.get(name).options
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"{registry.kind} '{name}' has no option '{key}'{nearest(key, known)}.")
        if not fits(value, known[key].annotation):
            raise ConfigError(f"option '{key}' of {registry.kind} '{name}' can't be {value!r}.")
