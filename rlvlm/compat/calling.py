"""Calling functions of other libraries as those libraries do: by keyword where the signature has the names, else by position."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

Function = Callable[..., Any]
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def by_name(
    function: Function,
    names: Sequence[str],
    text: str,
    arguments: Mapping[str, Any],
    shorter: Mapping[int, Sequence[str]] | None = None,
) -> Callable[[Mapping[str, Any]], Any]:
    """What calls the function with values that are known by name.

    They go by keyword. A function with one required parameter of another name takes the completion by it. Where the signature
    has other names, or allows none, they go by position.

    Args:
        names: of the values, in the library's own order.
        text: the name of the completion; a function that can't be given it by keyword is called by position.
        arguments: keyword arguments that every call gets, and which come before values of the same name.
        shorter: the names that a function takes which requires so few positional parameters; the first of ``names`` otherwise.
    """
    parameters = _parameters(function)
    if parameters is None:
        return lambda given: function(*(given[name] for name in names), **arguments)
    named = {one.name for one in parameters if one.kind in _BY_NAME}
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    strange = [
        one.name for one in parameters if _is_required(one) and one.name not in names and one.name not in arguments
    ]
    only_places = any(one.kind is one.POSITIONAL_ONLY for one in parameters)
    if len(strange) == 1 and strange[0] in named and text not in named and not only_places:
        return _by_keyword(function, [name for name in names if name in named], {text: strange[0]}, arguments)
    if not strange and not only_places and (takes_all or text in named):
        return _by_keyword(function, [name for name in names if takes_all or name in named], {}, arguments)
    places = [one for one in parameters if one.kind in _BY_PLACE and one.name not in arguments]
    count = len(names) if any(one.kind is one.VAR_POSITIONAL for one in parameters) else len(places)
    required = sum(map(_is_required, places))
    if shorter and required in shorter and count > required:  # the rest are options of its own
        count = required
    order = (shorter or {}).get(count, names[:count])
    return lambda given: function(*(given[name] for name in order), **arguments)


def _by_keyword(
    function: Function, names: Sequence[str], renamed: Mapping[str, str], arguments: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], Any]:
    def call(given: Mapping[str, Any]) -> Any:
        values = {name: given[name] for name in names}
        return function(**values, **{new: given[old] for old, new in renamed.items()}, **arguments)

    names = [name for name in names if name not in arguments and name not in renamed]
    return call


def taken(function: Function, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the keyword arguments that the function takes; all where it takes any or can't be looked into."""
    parameters = _parameters(function)
    if parameters is None or any(one.kind is one.VAR_KEYWORD for one in parameters):
        return dict(given)
    named = {one.name for one in parameters if one.kind in _BY_NAME}
    return {name: value for name, value in given.items() if name in named}


def parameter_names(function: Function) -> Collection[str]:
    """The names of the function's parameters."""
    return [one.name for one in _parameters(function) or ()]


def with_pictures(score: Function, function: Function, batched: bool) -> Function:
    """The reward, with pictures in its records where the function names ``images`` or ``image`` and a record has no such column.

    Pictures reach it as handles beside the record; they are decoded only for functions that ask for them.
    """
    asked = {"images", "image"}.intersection(parameter_names(function))
    if not asked:
        return score

    def pictured(**given: Any) -> Any:
        handles, records = given.pop("images", None), given["record"]
        many = (
            [_pictured(*one) for one in zip(records, handles or [None] * len(records), strict=True)]
            if batched
            else None
        )
        return score(**{**given, "record": _pictured(records, handles) if many is None else many})

    own = inspect.signature(score)
    images = inspect.Parameter("images", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    pictured.__signature__ = own.replace(parameters=[*own.parameters.values(), images])  # type: ignore[attr-defined]
    return pictured


def _pictured(record: Mapping[str, Any], handles: Sequence[Any] | None) -> dict[str, Any]:
    pictures = [handle.decode() if hasattr(handle, "decode") else handle for handle in handles or ()]
    return {"images": pictures, "image": pictures[0] if pictures else None, **record}


def is_coroutine(function: Any) -> bool:
    """Whether calling it gives something to await: an ``async def``, or an object whose ``__call__`` is one."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def then(value: Any, convert: Callable[[Any], Any]) -> Any:
    """What ``convert`` makes of a value, at once or, of an awaitable, once it is there."""

    async def later(waiting: Awaitable[Any]) -> Any:
        return convert(await waiting)

    return later(value) if inspect.isawaitable(value) else convert(value)


def as_async(call: Function) -> Function:
    """The call, which gives something to await, as a coroutine function with the same parameters."""

    @functools.wraps(call)
    async def waits(**given: Any) -> Any:
        return await call(**given)

    return waits


def _parameters(function: Function) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some functions written in C tell none
        return None


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )
