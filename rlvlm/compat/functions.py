"""Finds what a reward node names in another library's file: a function, a static method, a class, or what a factory gives."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlvlm.errors import ConfigError, nearest
from rlvlm.registry import load_plugins

Construct = Callable[[type, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Found:
    """A function, the module it was found in, and whether it has state: an object, or made by a class or a factory."""

    function: Callable[..., Any]
    module: types.ModuleType
    stateful: bool


def find_function(label: str, node: Mapping[str, Any], defaults: tuple[str, ...], construct: Construct) -> Found:
    """Loads ``path`` and takes from it what ``function``, or the end of the path after a colon, names.

    A name may be dotted (``Class.method``); a class is built, and a method of an object is taken of one. With ``build``, keyword
    arguments, a class is built by them and a function is called with them once: it is a factory, which gives the reward function.

    Args:
        defaults: names that are tried in turn where the node has none.
        construct: builds a class with the ``build`` arguments.

    Raises ``ConfigError`` when there is no such name, or it can't be built or called.
    """
    where = f"reward.rules.{label}"
    path, name = _path_and_name(where, node)
    (module,) = load_plugins([path])
    name = name or next((one for one in defaults if hasattr(module, one)), defaults[-1] if defaults else "")
    if not name:
        raise ConfigError(
            f"{where} with style '{node.get('style')}' needs 'function', the name of the function in '{path}'."
        )
    build = node.get("build")
    if build is not None and not isinstance(build, Mapping):
        raise ConfigError(
            f"{where}.build is a mapping of the arguments that '{name}' is built with, such as {{max_len: 512}}, got {build!r}."
        )
    holder, found = _walk(where, path, module, name)
    function, stateful = _built(where, name, holder, found, build, construct)
    if not callable(function):
        raise ConfigError(
            f"{where} names '{name}' in '{path}', which gives no function, but {type(function).__name__}."
        )
    return Found(function, module, stateful)


def _path_and_name(where: str, node: Mapping[str, Any]) -> tuple[str, str]:
    if not isinstance(node.get("path"), str):
        raise ConfigError(
            f"{where} with style '{node.get('style')}' names its function by 'path' (a .py file or a module) and 'function'."
        )
    path, colon, inside = str(node["path"]).rpartition(":")
    if not colon or "/" in inside or "\\" in inside:  # no name at the end: a drive letter, or nothing
        path, inside = str(node["path"]), ""
    name = str(node.get("function") or "")
    if inside and name and inside != name:
        raise ConfigError(f"{where} names '{inside}' in 'path' and '{name}' in 'function'; keep one.")
    return path, inside or name


def _walk(where: str, path: str, module: types.ModuleType, name: str) -> tuple[Any, Any]:
    """What the dotted name stands for, and what holds it."""
    holder: Any = module
    found: Any = module
    for part in name.split("."):
        holder = found
        if not hasattr(holder, part):
            own = [key for key, value in vars(holder).items() if callable(value) and not key.startswith("_")]
            inside = "" if holder is module else f" in '{name.rpartition('.')[0]}'"
            raise ConfigError(f"'{path}' has no function '{part}'{inside}{nearest(part, own)}, which {where} names.")
        found = getattr(holder, part)
    return holder, found


def _built(
    where: str, name: str, holder: Any, found: Any, build: Mapping[str, Any] | None, construct: Construct
) -> tuple[Any, bool]:
    """The function itself, and whether it has state."""
    try:
        if inspect.isclass(found):
            return construct(found, build or {}), True
        if inspect.isclass(holder) and inspect.isfunction(inspect.getattr_static(holder, name.rpartition(".")[2])):
            return getattr(construct(holder, build or {}), name.rpartition(".")[2]), True  # a method needs an object
        if build is not None:
            return found(**build), True
    except Exception as error:  # whatever another library's code raises when it is built
        raise ConfigError(
            f"'{name}', which {where} names, can't be built ({type(error).__name__}: {error}); "
            "'build' gives the arguments of a class or a factory."
        ) from error
    return found, not inspect.isroutine(found)
