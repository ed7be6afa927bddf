"""Values that came out of the sandbox, as plain Python values, and when two of them are the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_CLOSE = 1e-9
_MAX_DIGITS = 100_000
"""Hexadecimal digits of an integer: with more, a test such as ``math.isqrt(f(1)) == 2`` would hold this process for seconds."""


class NoValueError(Exception):
    """The call gave no plain value: it raised, or it did not come to an end."""


@dataclass(frozen=True, eq=False)
class Opaque:
    """A value that is no plain one, such as an object of a class of the program: the same as nothing, neither true nor false."""

    kind: str

    def __bool__(self) -> bool:
        raise NoValueError(f"'{self.kind}' is no plain value")


class Iterated(tuple[Any, ...]):
    """What an iterator gave: it can be gone through, and is the same as nothing."""

    __slots__ = ()


def value_of(described: Any) -> Any:
    """The value that the sandbox's description stands for.

    Raises ``NoValueError`` for an error, and for whatever a program may have written in place of a description.
    """
    try:
        return _value_of(described)
    except (TypeError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise NoValueError(str(error)) from error


def _value_of(described: Any) -> Any:
    if described is None or isinstance(described, (bool, str)):
        return described
    if not isinstance(described, dict) or len(described) != 1:
        raise NoValueError("not a description of a value")
    ((kind, content),) = described.items()
    if kind not in _READERS:
        raise NoValueError(str(content))
    return _READERS[kind](content)


def _each(build: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda content: build([_value_of(part) for part in content])


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise NoValueError("too large an integer")
    return int(digits, 16)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: _integer(content),
    "float": float.fromhex,
    "complex": lambda content: complex(*map(float.fromhex, content)),
    "bytes": bytes.fromhex,
    "dict": lambda content: {_value_of(key): _value_of(value) for key, value in content},
    "list": _each(list),
    "tuple": _each(tuple),
    "set": _each(set),
    "frozenset": _each(frozenset),
    "iterator": _each(Iterated),
    "object": lambda content: Opaque(str(content)),
}


def same_value(value: Any, expected: Any) -> bool:
    """Equality of plain values: floats nearly, and lists and tuples alike, since JSON knows only lists."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, float) or isinstance(expected, float):
        return _are_close(value, expected)
    if isinstance(value, Iterated) or isinstance(expected, Iterated):
        return False
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(value, (list, tuple)) and len(value) == len(expected) and all(map(same_value, value, expected))
        )
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and value.keys() == expected.keys()
            and all(same_value(value[k], v) for k, v in expected.items())
        )
    return type(value) is type(expected) and bool(value == expected)


def _are_close(value: Any, expected: Any) -> bool:
    if not (isinstance(value, (int, float)) and isinstance(expected, (int, float))):
        return False
    try:
        return math.isclose(value, expected, rel_tol=_CLOSE, abs_tol=_CLOSE)
    except OverflowError:  # an integer beyond every float
        return False
