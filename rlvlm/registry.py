"""One ``Registry`` class for every kind of part: names, what a part reads, its options, plug-ins.

A decorator registers a function or a class and returns it unchanged. Of a function, positional parameters name what it
reads (one with a default is optional) and keyword-only parameters are its options. A class takes its options in
``__init__`` and reads in ``__call__``. The signature is read once, so that what a part needs and which options it takes
are known before any work is done.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from rlvlm.errors import RegistryError, nearest

Target = TypeVar("Target", bound=Callable[..., Any])
_EMPTY = inspect.Parameter.empty

KINDS: dict[str, Registry] = {}
"""Every registry by its group name (``advantages``, ``rewards``, …), filled as registries are made."""


@dataclass(frozen=True)
class Option:
    """A keyword of a part: its YAML key, default (``Option.REQUIRED`` when there is none) and annotation."""

    REQUIRED: typing.ClassVar[Any] = _EMPTY

    name: str
    default: Any
    annotation: Any


@dataclass(frozen=True)
class Entry:
    """What a registry knows of one registered part, read from its signature."""

    kind: str
    name: str
    target: Callable[..., Any]
    needs: tuple[str, ...]
    optional: tuple[str, ...]
    options: dict[str, Option]
    traits: dict[str, Any]

    @property
    def is_class(self) -> bool:
        """True when the part has state: it is a class that is built once with its options."""
        return inspect.isclass(self.target)

    @property
    def is_own(self) -> bool:
        """True when the part is the library's own, and not a plug-in's or another package's."""
        return self.target.__module__.startswith("rlvlm.")

    @property
    def summary(self) -> str:
        """The first line of the part's docstring, for listings."""
        doc = inspect.getdoc(self.target)
        return doc.strip().splitlines()[0] if doc else ""


@dataclass(frozen=True)
class Part:
    """A part with its options set, ready to be called with whatever is at hand; it takes what it reads by name."""

    entry: Entry
    options: dict[str, Any]
    call: Callable[..., Any] = field(repr=False)

    @property
    def name(self) -> str:
        """The name it was registered under."""
        return self.entry.name

    @property
    def needs(self) -> tuple[str, ...]:
        """Names that must be at hand when it is called."""
        return self.entry.needs

    @property
    def optional(self) -> tuple[str, ...]:
        """Names that it reads when they are at hand."""
        return self.entry.optional

    @property
    def traits(self) -> dict[str, Any]:
        """What the part declared of itself when it was registered (``scope``, ``batched``, …)."""
        return self.entry.traits

    def __call__(self, available: Mapping[str, Any]) -> Any:
        """Calls the part with the names that it reads, taken from ``available``; raises ``RegistryError`` if one is missing."""
        missing = [name for name in self.needs if name not in available]
        if missing:
            raise RegistryError(
                f"{self.entry.kind} '{self.name}' reads '{missing[0]}', which is not at hand"
                f"{nearest(missing[0], available)}."
            )
        given = {name: available[name] for name in self.needs}
        given.update({name: available[name] for name in self.optional if available.get(name) is not None})
        return self.call(**given)

    def state_dict(self) -> dict[str, Any]:
        """The state of a part that is a class with ``state_dict``; empty for functions."""
        return self.call.state_dict() if hasattr(self.call, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        if hasattr(self.call, "load_state_dict"):
            self.call.load_state_dict(state)


class Registry:
    """Names to parts of one kind.

    Args:
        kind: singular, for messages (``"advantage"``).
        group: plural, the entry-point group after ``rlvlm.`` and the key in ``KINDS`` (``"advantages"``).
        builtins: modules whose import registers the library's own parts; imported at the first look-up.
        readable: the names that a part of this kind may read; ``None`` where any name may be read (reward columns).
        traits: what a part may declare when it registers, with defaults (``{"scope": "token"}``).
    """

    def __init__(
        self,
        kind: str,
        group: str,
        *,
        builtins: Collection[str] = (),
        readable: Callable[[], Collection[str]] | None = None,
        traits: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind, self.group = kind, group
        self._builtins, self._readable, self._traits = tuple(builtins), readable, dict(traits or {})
        self._entries: dict[str, Entry] = {}
        self._loaded = False
        KINDS[group] = self

    def register(self, name: str, *, override: bool = False, **traits: Any) -> Callable[[Target], Target]:
        """Decorator that registers a function or class as ``name`` and returns it unchanged.

        Raises ``RegistryError`` for a name that is taken (unless ``override``), an unknown trait, or a signature that
        can't be read (``*args``, ``**kwargs``, positional-only parameters).
        """
        for trait in traits:
            if trait not in self._traits:
                raise RegistryError(
                    f"{self.kind} '{name}' declares '{trait}', which is no trait of its kind{nearest(trait, self._traits)}."
                )

        if override:
            self._load_builtins()  # else the built-in part of this name would come later and find it taken

        def decorate(target: Target) -> Target:
            taken = self._entries.get(name)
            same_again = taken is not None and _origin(taken.target) == _origin(target)  # a module loaded twice
            if taken is not None and not override and not same_again:
                raise RegistryError(
                    f"{self.kind} '{name}' is registered already by {_origin(taken.target)}; choose another name or pass override=True."
                )
            self._entries[name] = _read_signature(self.kind, name, target, {**self._traits, **traits})
            return target

        return decorate

    def names(self) -> list[str]:
        """All registered names, built-in, plug-in and entry-point ones, sorted."""
        self._load_builtins()
        return sorted({*self._entries, *self._entry_points()})

    def own_entries(self) -> list[Entry]:
        """The library's own parts, sorted by name: what its documents list, whatever plug-ins are loaded."""
        return [entry for name in self.names() if (entry := self.get(name)).is_own]

    def get(self, name: str) -> Entry:
        """The entry called ``name``; an unknown name raises ``RegistryError`` with the nearest one."""
        self._load_builtins()
        if name not in self._entries and name in (found := self._entry_points()):
            self._load_entry_point(name, found[name])
        if name not in self._entries:
            raise RegistryError(f"there is no {self.kind} called '{name}'{nearest(name, self.names())}.")
        return self._entries[name]

    def build(self, node: str | Mapping[str, Any]) -> Part:
        """Makes a part from a YAML node: a name, or a mapping with ``name`` and options.

        Raises ``RegistryError`` for an unknown name, an unknown or missing option, an option of the wrong type, or a
        part that reads what its kind can't be given.
        """
        name, options = split_node(self.kind, node)
        entry = self.get(name)
        self._check_reads(entry)
        return _make(entry, options)

    def describe(self) -> list[tuple[str, str]]:
        """``(name, one-line doc)`` of every part, for listings."""
        return [(name, self.get(name).summary) for name in self.names()]

    def _check_reads(self, entry: Entry) -> None:
        if self._readable is None:
            return
        readable = set(self._readable())
        for name in (*entry.needs, *entry.optional):
            if name not in readable:
                raise RegistryError(
                    f"{self.kind} '{entry.name}' reads '{name}', which is neither a batch field nor an output of the pass"
                    f"{nearest(name, readable)}; name a known one, register_field it, or make it keyword-only to be an option."
                )

    def _load_builtins(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # set first: the built-in modules import this registry
        for module in self._builtins:
            importlib.import_module(module)

    def _entry_points(self) -> dict[str, Any]:
        return {point.name: point for point in entry_points(group=f"rlvlm.{self.group}")}

    def _load_entry_point(self, name: str, point: Any) -> None:
        try:
            target = point.load()
        except Exception as error:  # whatever an outside package raises on import is reported by its name
            raise RegistryError(
                f"{self.kind} '{name}' of package entry point '{point.value}' failed to load: {type(error).__name__}: {error}."
            ) from error
        if name not in self._entries:  # loading the module may have run the decorator itself
            self.register(name)(target)


def unregistered(
    kind: str, name: str, target: Callable[..., Any], options: Mapping[str, Any], traits: Mapping[str, Any]
) -> Part:
    """Makes a part of a function or class that is in no registry, with the same checks; raises ``RegistryError``."""
    return _make(_read_signature(kind, name, target, dict(traits)), options)


def _make(entry: Entry, options: Mapping[str, Any]) -> Part:
    checked = _check_options(entry, options)
    return Part(entry, checked, entry.target(**checked) if entry.is_class else _bind(entry.target, checked))


def split_node(kind: str, node: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Splits a plug-in node into name and options; raises ``RegistryError`` unless it is a name or a mapping with ``name``."""
    if isinstance(node, str):
        return node, {}
    if isinstance(node, Mapping) and isinstance(node.get("name"), str):
        return str(node["name"]), {str(key): value for key, value in node.items() if key != "name"}
    raise RegistryError(f"a {kind} is a name or a mapping with 'name', got {node!r}.")


def load_plugins(paths: Iterable[str | Path]) -> list[types.ModuleType]:
    """Imports each plug-in, a ``.py`` file or a dotted module, so that its decorators run; once per process.

    A file gets a module name made from its path, the same in every process, so that its functions can be pickled.
    """
    return [_load_plugin(str(path)) for path in paths]


def _load_plugin(path: str) -> types.ModuleType:
    if not path.endswith(".py"):
        try:
            return importlib.import_module(path)
        except ImportError as error:
            raise RegistryError(
                f"plugin '{path}' can't be imported ({error}); give a dotted module on the path or a .py file."
            ) from error
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise RegistryError(f"plugin file '{path}' does not exist (looked at '{file}').")
    name = f"rlvlm_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # a .py file always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, RegistryError):
            raise
        raise RegistryError(f"plugin file '{path}' failed to load: {type(error).__name__}: {error}.") from error
    return module


def _origin(target: Callable[..., Any]) -> str:
    return f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', repr(target))}"


def _bind(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def call(**reads: Any) -> Any:
        return function(**reads, **options)

    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


def _read_signature(kind: str, name: str, target: Callable[..., Any], traits: dict[str, Any]) -> Entry:
    hints_of = target.__init__ if inspect.isclass(target) else target  # type: ignore[misc]
    if inspect.isclass(target):
        if "__call__" not in vars(target) and not any("__call__" in vars(base) for base in target.__mro__[1:-1]):
            raise RegistryError(
                f"{kind} '{name}' is a class without __call__; it takes its options in __init__ and reads in __call__."
            )
        reads, extra = _parameters(kind, name, target.__call__, skip_self=True)
        if extra:
            raise RegistryError(
                f"{kind} '{name}' has keyword-only parameters in __call__ ({', '.join(extra)}); a class takes its options in __init__."
            )
        positional, keyword = (
            _parameters(kind, name, target.__init__, skip_self=True)
            if target.__init__ is not object.__init__
            else ({}, {})
        )
        option_parameters = {**positional, **keyword}
    else:
        reads, option_parameters = _parameters(kind, name, target, skip_self=False)
    hints = _type_hints(hints_of)
    options = {key: Option(key, parameter.default, hints.get(key, Any)) for key, parameter in option_parameters.items()}
    needs = tuple(key for key, parameter in reads.items() if parameter.default is _EMPTY)
    optional = tuple(key for key, parameter in reads.items() if parameter.default is not _EMPTY)
    return Entry(kind, name, target, needs, optional, options, traits)


def _parameters(
    kind: str, name: str, function: Callable[..., Any], skip_self: bool
) -> tuple[dict[str, inspect.Parameter], dict[str, inspect.Parameter]]:
    positional, keyword = {}, {}
    for index, (key, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if skip_self and index == 0:
            continue
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            positional[key] = parameter
        elif parameter.kind is parameter.KEYWORD_ONLY:
            keyword[key] = parameter
        else:
            raise RegistryError(
                f"{kind} '{name}' has the parameter '{parameter}', which names nothing; name what it reads, and its options after '*'."
            )
    return positional, keyword


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations by name; one that only a type checker can resolve is left out, and an option of that name goes unchecked."""
    hints: dict[str, Any] = {}
    scope = getattr(inspect.unwrap(function), "__globals__", {})  # a decorator's own module knows other names
    for name, annotation in getattr(function, "__annotations__", {}).items():
        with contextlib.suppress(NameError, TypeError, AttributeError):
            one = types.SimpleNamespace(__annotations__={name: annotation})
            hints.update(typing.get_type_hints(one, scope))
    return hints


def _check_options(entry: Entry, options: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in options.items():
        if key not in entry.options:
            raise RegistryError(f"{entry.kind} '{entry.name}' has no option '{key}'{nearest(key, entry.options)}.")
        if not fits(value, entry.options[key].annotation):
            raise RegistryError(
                f"option '{key}' of {entry.kind} '{entry.name}' takes {_spell(entry.options[key].annotation)}, "
                f"got {value!r}{_nearest_word(value, entry.options[key].annotation)}."
            )
    for key, option in entry.options.items():
        if option.default is Option.REQUIRED and key not in options:
            raise RegistryError(
                f"{entry.kind} '{entry.name}' needs the option '{key}' ({_spell(option.annotation)}); it has no default."
            )
    return dict(options)


def fits(value: Any, annotation: Any) -> bool:
    """Whether a plain YAML value fits an annotation; an annotation that YAML can't spell accepts everything."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    plain: dict[Any, type] = {type(None): type(None), None: type(None), bool: bool, str: str}
    if annotation in plain:
        return isinstance(value, plain[annotation])
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    containers: dict[Any, Any] = {list: (list, tuple), tuple: (list, tuple), dict: Mapping}
    if (origin or annotation) in containers:
        return isinstance(value, containers[origin or annotation])
    return True


def _nearest_word(value: Any, annotation: Any) -> str:
    """The word out of a few that a wrong one was meant to be; nothing where none is close, since all are told already."""
    words = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
    hint = nearest(str(value), map(str, words)) if words else ""
    return hint if "did you mean" in hint else ""


def _spell(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
