"""Hands a package's names on when they are first used, so that importing the package loads nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from rlvlm.errors import nearest


def attach(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Gives ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names live in other modules.

    Args:
        package: the package's ``__name__``.
        homes: each public name and the module that defines it.
    """
    names = sorted(homes)

    def lookup(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'{nearest(name, names)}")

    return lookup, lambda: names, names
