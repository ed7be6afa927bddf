"""Plain trees against dataclasses: which keys there are, what fits them, and the dataclass made from a tree."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlvlm.conf import words
from rlvlm.conf.schema import WEIGHTED
from rlvlm.errors import RlvlmError, nearest

Tree = dict[str, Any]


@functools.cache
def annotations_of(cls: type) -> dict[str, Any]:
    """Field names of a dataclass and their annotations, resolved."""
    hints = typing.get_type_hints(cls)
    return {entry.name: hints[entry.name] for entry in dataclasses.fields(cls)}


def nested(annotation: Any) -> type | None:
    """The dataclass that an annotation is, or is optionally; ``None`` for anything else."""
    candidates = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return next((one for one in candidates if isinstance(one, type) and dataclasses.is_dataclass(one)), None)


def known_paths(cls: type, prefix: str = "") -> list[str]:
    """Every key of a dataclass tree, dotted: groups and leaves."""
    paths = []
    for name, annotation in annotations_of(cls).items():
        paths.append(prefix + name)
        below = nested(annotation)
        if below is not None:
            paths.extend(known_paths(below, f"{prefix}{name}."))
    return paths


def leaves(cls: type, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a dataclass tree that holds a value and not a group of keys."""
    for path in known_paths(cls):
        if not any(other.startswith(path + ".") for other in known_paths(cls)):
            yield prefix + path


def suggest(path: str, known: Iterable[str]) -> str:
    """Words the key that a wrong one was most likely meant to be.

    That is another library's name for it, a sibling, the same name elsewhere, or one that looks alike.
    """
    known = list(known)
    parent, _, name = path.rpartition(".")
    theirs = words.hint(path) or _below_another(path, known)
    if theirs:
        return theirs
    siblings = {entry.rpartition(".")[2]: entry for entry in known if entry.rpartition(".")[0] == parent}
    elsewhere = [entry for entry in known if entry.rpartition(".")[2] == name]
    close = difflib.get_close_matches(name, siblings, n=1, cutoff=0.7)
    if close:
        return f" (did you mean '{siblings[close[0]]}'?)"
    if elsewhere:
        return f" (did you mean '{min(elsewhere, key=len)}'?)"
    names = {entry.rpartition(".")[2]: entry for entry in known}
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.7) or [
        names[match] for match in difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    ]
    if close:
        return f" (did you mean '{close[0]}'?)"
    return nearest(name, siblings) if siblings else ""


def find_problems(tree: Mapping[str, Any], cls: type, known: Iterable[str] | None = None, path: str = "") -> list[str]:
    """Keys that the dataclass does not have and values that do not fit, each as a sentence without its full stop.

    Values that are not known yet (``???``, interpolations) pass.
    """
    known = known_paths(cls) if known is None else list(known)
    problems: list[str] = []
    for name, value in tree.items():
        key = f"{path}{name}"
        annotation = annotations_of(cls).get(str(name))
        if annotation is None:
            below = list(_leaf_keys(value, key))
            # a group of another library is told key by key, as far as the keys have names here
            told = below if any(words.hint(one) or _below_another(one, known) for one in below) else [key]
            problems.extend(f"the key '{one}' does not exist{suggest(one, known)}" for one in told)
        elif not _is_open(value):
            problems.extend(_value_problems(value, annotation, known, key))
    return problems


def _below_another(path: str, known: Iterable[str]) -> str:
    """Words one of our keys that another library has below a key of its own (``actor_rollout_ref.rollout.temperature``)."""
    parts, ours = path.split("."), set(known)
    ends = (".".join(parts[start:]) for start in range(1, len(parts) - 1))
    found = next((end for end in ends if end in ours), None)
    return f" (did you mean '{found}'?)" if found else ""


def _leaf_keys(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping) or not value:
        yield path
        return
    for name, below in value.items():
        yield from _leaf_keys(below, f"{path}.{name}")


def in_lists(tree: Mapping[str, Any], cls: type) -> Tree:
    """The tree with single values in lists where a list is asked for: ``plugins: mine.py`` is ``plugins: [mine.py]``.

    Null and interpolations stay, and so does what would not fit in the list either.
    """
    done: Tree = {}
    for name, value in tree.items():
        annotation = annotations_of(cls).get(str(name))
        below = nested(annotation)
        if below is not None and isinstance(value, Mapping):
            value = in_lists(value, below)
        elif (element := _element(annotation)) is not None and isinstance(value, (str, int, float, Mapping)):
            value = value if _is_open(value) or not fits(value, element) else [value]
        done[str(name)] = value
    return done


def _element(annotation: Any) -> Any:
    """What a list holds, where an annotation is one, or is optionally; else ``None``."""
    for one in typing.get_args(annotation) if _is_union(annotation) else (annotation,):
        if typing.get_origin(one) is list:
            return typing.get_args(one)[0]
    return None


def strip_unknown(tree: Mapping[str, Any], cls: type, path: str = "") -> Tree:
    """The tree without keys that the dataclass does not have and without values that can't be what they are meant to be."""
    kept: Tree = {}
    for name, value in tree.items():
        annotation = annotations_of(cls).get(str(name))
        if annotation is None or _value_problems(value, annotation, (), f"{path}{name}", deep=False):
            continue
        below = nested(annotation)
        deeper = below is not None and isinstance(value, Mapping)
        kept[str(name)] = strip_unknown(value, below, f"{path}{name}.") if below is not None and deeper else value
    return kept


def build(cls: type, tree: Mapping[str, Any], problems: list[str], path: str = "") -> Any:
    """Makes the dataclass from a tree that :func:`find_problems` has nothing against; defaults fill what is absent.

    What a dataclass itself refuses is added to ``problems`` and stays as it is, so that all errors come at once.
    """
    values = {}
    for name, annotation in annotations_of(cls).items():
        if name not in tree:
            continue
        value, below = tree[name], nested(annotation)
        if below is not None and value is not None:
            values[name] = build(below, value, problems, f"{path}{name}.")
        else:
            values[name] = convert(value, annotation)
    try:
        return cls(**values)
    except RlvlmError as error:
        problems += error.problems
        refused: Any = object.__new__(cls)  # its own checks are passed over: whatever else is wrong shows too
        refused.__dict__.update({**vars(cls()), **values})
        return refused


def missing_keys(tree: Mapping[str, Any], path: str = "") -> list[str]:
    """Dotted keys whose value is still to be given (``???``)."""
    found = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found.extend(missing_keys(value, f"{path}{name}."))
        elif value == "???":
            found.append(f"{path}{name}")
    return found


def fits(value: Any, annotation: Any) -> bool:
    """Whether a plain value fits an annotation, elements of lists and values of mappings included."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if _is_union(annotation):
        return any(fits(value, argument) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if annotation in (None, type(None)):
        return value is None
    if (origin or annotation) in (list, tuple):
        element = arguments[0] if arguments else Any
        return isinstance(value, (list, tuple)) and all(_is_open(one) or fits(one, element) for one in value)
    if (origin or annotation) in (dict, Mapping):
        entry = arguments[1] if arguments else Any
        return isinstance(value, Mapping) and all(_is_open(one) or fits(one, entry) for one in value.values())
    if annotation is bool or isinstance(value, bool):
        return annotation is bool and isinstance(value, bool)
    wider = {float: (int, float), str: (int, str)}  # a run may be called 7, and a rate be 1
    return isinstance(value, wider.get(annotation, annotation))


def convert(value: Any, annotation: Any) -> Any:
    """A value that fits, as the annotation has it: whole numbers become numbers or text where those are asked for."""
    if isinstance(value, int) and not isinstance(value, bool) and not fits_exactly(value, annotation):
        choices = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
        return next((kind(value) for kind in (float, str) if kind in choices), value)
    if isinstance(value, list) and typing.get_origin(annotation) is list:
        return [convert(one, typing.get_args(annotation)[0]) for one in value]
    return value


def fits_exactly(value: int, annotation: Any) -> bool:
    """Whether a whole number is asked for as one."""
    return annotation in (int, Any) or (_is_union(annotation) and int in typing.get_args(annotation))


def spell(annotation: Any) -> str:
    """An annotation in words: ``a whole number or null``."""
    arguments = typing.get_args(annotation)
    if _is_union(annotation):
        return " or ".join(dict.fromkeys(spell(argument) for argument in arguments))
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        None: "null",
        type(None): "null",
    }
    if annotation in words:
        return words[annotation]
    if (typing.get_origin(annotation) or annotation) in (list, tuple):
        return f"a list ([{words.get(arguments[0], '…') if arguments else '…'}, …])"
    return "a mapping ({key: value})"


def _value_problems(value: Any, annotation: Any, known: Iterable[str], key: str, deep: bool = True) -> list[str]:
    if value is None and key in WEIGHTED:
        return []  # takes all of them out
    below = nested(annotation)
    if below is not None:
        if isinstance(value, Mapping):
            return find_problems(value, below, known, f"{key}.") if deep else []
        if value is None and _is_union(annotation):
            return []
        return [f"the key '{key}' is a group of keys ({', '.join(annotations_of(below))}), got {value!r}"]
    return (
        []
        if _is_open(value) or fits(value, annotation)
        else [f"the key '{key}' takes {spell(annotation)}, got {value!r}"]
    )


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and (value == "???" or "${" in value)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)
