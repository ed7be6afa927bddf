"""Ranges of rules' options: declared beside the rule, checked where it is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvlm.errors import ConfigError, RewardError
from rlvlm.ranges import Range, above
from rlvlm.registry import Entry


def share(*names: str) -> Range:
    """Numbers above 0, and at most 1."""
    positive = above(0)
    return Range(names, lambda value: positive.holds(value) and value <= 1, "above 0 and at most 1")


def check_options(entry: Entry, options: Mapping[str, Any]) -> None:
    """Checks the given options of a rule against its traits ``ranges`` and ``ordered`` (``None`` passes), and its ``ready``.

    Raises ``ConfigError`` for the first that is out of its range, or below the option that it must reach, or for a machine that can't
    run the rule.
    """
    for allowed in entry.traits["ranges"]:
        for name in allowed.names:
            value = options.get(name)
            if value is not None and not allowed.holds(value):
                raise ConfigError(f"option '{name}' of reward '{entry.name}' is {allowed.expected}, got {value!r}.")
    for low, high in entry.traits["ordered"]:
        least, most = (options.get(name, entry.options[name].default) for name in (low, high))
        if least is not None and most is not None and most < least:
            raise ConfigError(f"option '{high}' of reward '{entry.name}' is at least '{low}' ({least}), got {most!r}.")
    if entry.traits["ready"] is not None:
        try:
            entry.traits["ready"](options)
        except RewardError as error:
            raise ConfigError(f"reward '{entry.name}' can't run on this machine: {error}") from error
