"""``rlvlm parts [kind] [name]``: what can be named in a recipe, with one line each; one part with options, reads and source."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Sequence

from rlvlm.errors import ConfigError, nearest
from rlvlm.registry import KINDS, Entry, Option, Registry, load_plugins

MODULES: dict[str, str] = {
    "advantages": "rlvlm.algos.registries",
    "policy_losses": "rlvlm.algos.registries",
    "value_losses": "rlvlm.algos.registries",
    "kl_estimators": "rlvlm.algos.registries",
    "regularizers": "rlvlm.algos.registries",
    "aggregations": "rlvlm.algos.registries",
    "corrections": "rlvlm.algos.registries",
    "filters": "rlvlm.algos.registries",
    "controllers": "rlvlm.algos.registries",
    "rewards": "rlvlm.rewards.rule",
    "sources": "rlvlm.data.sources",
    "formats": "rlvlm.data.records",
    "model_builders": "rlvlm.models.loading",
    "families": "rlvlm.models.families.base",
    "train_engines": "rlvlm.engines.train.base",
    "inference_engines": "rlvlm.engines.inference.base",
    "pipelines": "rlvlm.pipelines.stages",
    "trackers": "rlvlm.tracking.trackers",
}
"""Kinds of parts and the module that holds the registry of each."""


def main(argv: Sequence[str]) -> int:
    """Runs the verb."""
    parser = argparse.ArgumentParser("rlvlm parts", description=f"Kinds: {', '.join(MODULES)}.", allow_abbrev=False)
    parser.add_argument("kind", nargs="?", help="a kind of part, or the name of a part of any kind; all when left out")
    parser.add_argument("name", nargs="?", help="one part, shown with its options, what it reads and its source")
    parser.add_argument("--plugins", nargs="+", default=[], metavar="FILE", help="files with parts of your own")
    options = parser.parse_args(argv)
    load_plugins(options.plugins)
    if options.name is not None:
        print(describe(registry_of(options.kind).get(options.name)))
    elif options.kind is not None and not is_kind(options.kind):
        print("\n\n".join(describe(entry) for entry in parts_called(options.kind)))
    else:
        for kind in [options.kind] if options.kind else MODULES:
            registry = registry_of(kind)
            width = max(map(len, registry.names()), default=0)
            lines = [f"  {name:<{width}}  {summary}".rstrip() for name, summary in registry.describe()]
            print("\n".join([kind, *lines]))
    return 0


def is_kind(word: str) -> bool:
    """Whether a word is a kind of part."""
    return word in MODULES or word in KINDS


def parts_called(name: str) -> list[Entry]:
    """The parts of that name, of whatever kind; raises ``ConfigError`` with the nearest name of a part or a kind."""
    registries = [registry_of(kind) for kind in dict.fromkeys([*MODULES, *KINDS])]
    found = [registry.get(name) for registry in registries if name in registry.names()]
    if not found:
        known = [*MODULES, *(one for registry in registries for one in registry.names())]
        close = nearest(name, known)
        hint = close if "did you mean" in close else f" (kinds: {', '.join(MODULES)})"
        raise ConfigError(f"there is neither a kind of part nor a part called '{name}'{hint}.")
    return found


def registry_of(kind: str) -> Registry:
    """The registry of a kind; an unknown kind raises ``ConfigError`` with the nearest one."""
    if not is_kind(kind):
        raise ConfigError(f"there is no kind of part called '{kind}'{nearest(kind, MODULES)}.")
    if kind in MODULES:
        importlib.import_module(MODULES[kind])
    return KINDS[kind]


def describe(entry: Entry) -> str:
    """A part with its docstring, what it reads, its options with their defaults, and where its source is."""
    lines = [f"{entry.name} ({entry.kind})", "", inspect.getdoc(entry.target) or "", ""]
    if entry.needs or entry.optional:
        lines.append("reads: " + ", ".join([*entry.needs, *(f"{name} (if there)" for name in entry.optional)]))
    for option in entry.options.values():
        default = "required" if option.default is Option.REQUIRED else f"default {option.default!r}"
        lines.append(f"option {option.name}: {_spelled(option.annotation)}, {default}")
    if not entry.options:
        lines.append("no options")
    return "\n".join([*lines, f"source: {source_of(entry)}"])


def source_of(entry: Entry) -> str:
    """File and line of a part, and its dotted name."""
    target = inspect.unwrap(entry.target)
    named = f"{target.__module__}.{target.__qualname__}"
    try:
        return f"{inspect.getsourcefile(target)}:{inspect.getsourcelines(target)[1]} ({named})"
    except (OSError, TypeError):  # made by code that is in no file
        return named


def _spelled(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
