"""Which parameters train, by part or by pattern."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from rlvlm.errors import ConfigError, nearest
from rlvlm.models.config import PARTS
from rlvlm.models.families.base import Family


def set_trainable(model: nn.Module, family: Family, patterns: Sequence[str]) -> None:
    """Lets exactly the parameters train that a pattern names, and freezes the rest.

    Args:
        patterns: parts (vision, connector, language) or shell patterns of parameter names, such as ``*.layers.0.*``.

    Raises ``ConfigError`` for a pattern that names nothing.
    """
    parameters = dict(model.named_parameters())
    chosen: set[str] = set()
    for pattern in patterns:
        fitting = {
            name
            for name in parameters
            if (family.parameter_part(name) == pattern if pattern in PARTS else fnmatchcase(name, pattern))
        }
        if not fitting:
            raise ConfigError(
                f"model.trainable names '{pattern}', which fits no parameter{nearest(pattern, [*PARTS, *parameters])}."
            )
        chosen |= fitting
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in chosen)
