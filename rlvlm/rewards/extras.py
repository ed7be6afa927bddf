"""Packages of the extra ``rewards``, imported when a rule uses them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from types import ModuleType

from rlvlm.errors import ConfigError


def require(module: str) -> ModuleType:
    """Imports a module of the extra; raises ``ConfigError`` that names the extra when it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name.split(".")[0]):
            raise
        raise missing(module) from error


def check_installed(rule: str, modules: Iterable[str]) -> None:
    """Raises ``ConfigError`` for the first module that is not installed, without importing any."""
    for module in modules:
        if importlib.util.find_spec(module.split(".")[0]) is None:
            raise missing(module, f"reward '{rule}'")


def missing(module: str, user: str = "this reward") -> ConfigError:
    """The error for a module that is not installed."""
    return ConfigError(
        f"{user} needs the package '{module.split('.')[0]}', which is not installed; pip install 'rlvlm[rewards]'."
    )
