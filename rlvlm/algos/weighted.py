"""A part with a weight, and the controller that may move the weight between steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlvlm.algos.registries import CONTROLLERS, KL_ESTIMATORS, VALUE_LOSSES
from rlvlm.errors import ConfigError, nearest
from rlvlm.registry import Part, Registry, split_node


class Weighted:
    """A part, its weight now, and how the weight moves.

    Attributes:
        name: the key under which it stands in the settings, and in metrics.
        part: what is weighted.
        weight: its weight in the current step.
        controller: what moves the weight between steps.
    """

    def __init__(self, name: str, part: Part, weight: float, controller: Part) -> None:
        self.name, self.part, self.weight = name, part, weight
        self.controller = controller

    @property
    def is_controlled(self) -> bool:
        """True when the next weight depends on what is measured."""
        return "measured" in (*self.controller.needs, *self.controller.optional)

    def update(self, measured: float, num_samples: int) -> None:
        """Moves the weight after a step of ``num_samples`` samples in which the mean of the part was ``measured``."""
        given = {"weight": self.weight, "measured": measured, "num_samples": num_samples}
        self.weight = float(self.controller(given))


def build_weighted(registry: Registry, key: str, node: Any, where: str, default: float | None = None) -> Weighted:
    """Builds ``key: number`` or ``key: {weight, controller, name, …options}`` of a settings mapping.

    Args:
        where: path of the mapping in the settings, for messages.
        default: weight where the node gives none; without it a missing weight is an error.

    Raises ``ConfigError`` for a missing weight or one that is not a number, and what the registry raises.
    """
    if isinstance(node, Mapping):
        options = {str(name): value for name, value in node.items()}
    elif isinstance(node, (int, float)) and not isinstance(node, bool):
        options = {"weight": node}
    else:
        raise ConfigError(f"'{where}.{key}' is a weight or a mapping with 'weight', got {node!r}.")
    weight = options.pop("weight", default)
    if weight is None:
        raise ConfigError(f"'{where}.{key}' has no weight; give '{where}.{key}.weight' a number.")
    if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not math.isfinite(weight):
        raise ConfigError(f"'{where}.{key}.weight' is a finite number, got {weight!r}.")
    controller = CONTROLLERS.build(options.pop("controller", None) or "fixed")
    return Weighted(key, registry.build({"name": key, **options}), float(weight), controller)


def build_value_loss(node: Any) -> Weighted | None:
    """Builds ``algorithm.value_loss``: a name, or a mapping with ``name``, options and ``weight`` (1 where it gives none)."""
    if node is None:
        return None
    name, options = split_node("value loss", node)
    return build_weighted(VALUE_LOSSES, "value_loss", {**options, "name": name}, "algorithm", default=1.0)


def build_kl_in_reward(node: Any) -> Weighted | None:
    """Builds ``algorithm.kl_in_reward``: a weight, or a mapping with ``weight``, ``estimator`` (``k1``) and ``controller``."""
    if node is None:
        return None
    if not isinstance(node, Mapping):
        node = {"weight": node}
    options = {str(name): value for name, value in node.items()}
    known = ("weight", "estimator", "controller")
    for name in options:
        if name not in known:
            raise ConfigError(f"algorithm.kl_in_reward has no key '{name}'{nearest(name, known)}.")
    estimator, estimator_options = split_node("KL estimator", options.pop("estimator", None) or "k1")
    return build_weighted(
        KL_ESTIMATORS, "kl_in_reward", {**options, **estimator_options, "name": estimator}, "algorithm"
    )
