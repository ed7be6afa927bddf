"""The check of an algorithm's settings that are no parts, wherever they come from: a recipe, or Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlvlm.errors import SettingsError

_SEEDS = range(-(2**63), 2**64)  # what a torch.Generator takes


def check_settings(config: object) -> None:
    """Raises ``SettingsError`` with a sentence for each setting of an ``AlgorithmConfig`` that is of the wrong kind."""
    problems = []
    for name, (holds, expected) in _EXPECTED.items():
        value = getattr(config, name)
        if not holds(value):
            problems.append(f"algorithm.{name} is {expected}, got {value!r}.")
    if problems:
        raise SettingsError(problems)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_one_or_several(value: Any) -> bool:
    return value is None or isinstance(value, (str, Mapping, list, tuple))


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _SEEDS


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "regularizers": (_is_mapping, "a mapping from a name to a weight"),
    "conventions": (_is_mapping, "a mapping of options by kind and name of part"),
    "correction": (_is_one_or_several, "a node, a list of nodes, or null"),
    "filters": (_is_list, "a list of nodes"),
    "max_refills": (_is_count, "a whole number of at least 0"),
    "mask_truncated": (lambda value: isinstance(value, bool), "true or false"),
    "seed": (_is_seed, "a whole number of at most 64 bits"),
}
