"""``rlvlm parts [kind] [name]``: what can be named in a recipe, with one line each; one part with options and reads."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Sequence

from rlvlm.errors import ConfigError, nearest
from rlvlm.registry import Entry, Option, Registry, load_plugins

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
    parser.add_argument("kind", nargs="?", help="a kind of part; all when left out")
    parser.add_argument("name", nargs="?", help="one part, shown with its options and what it reads")
    parser.add_argument("--plugins", nargs="+", default=[], metavar="FILE", help="files with parts of your own")
    options = parser.parse_args(argv)
    load_plugins(options.plugins)
    if options.name is not None:
        print(describe(registry_of(options.kind).get(options.name)))
        return 0
    for kind in [options.kind] if options.kind else MODULES:
        registry = registry_of(kind)
        width = max(map(len, registry.names()), default=0)
        lines = [f"  {name:<{width}}  {summary}".rstrip() for name, summary in registry.describe()]
        print("\n".join([kind, *lines]))
    return 0


def registry_of(kind: str) -> Registry:
    """The registry of a kind; an unknown kind raises ``ConfigError`` with the nearest one."""
    from rlvlm.registry import KINDS

    if kind not in MODULES and kind not in KINDS:
        raise ConfigError(f"there is no kind of part called '{kind}'{nearest(kind, MODULES)}.")
    if kind in MODULES:
        importlib.import_module(MODULES[kind])
    return KINDS[kind]


def describe(entry: Entry) -> str:
    """A part with its docstring, what it reads, and its options with their defaults."""
    lines = [f"{entry.name} ({entry.kind})", "", inspect.getdoc(entry.target) or "", ""]
    if entry.needs or entry.optional:
        lines.append("reads: " + ", ".join([*entry.needs, *(f"{name} (if there)" for name in entry.optional)]))
    for option in entry.options.values():
        default = "required" if option.default is Option.REQUIRED else f"default {option.default!r}"
        lines.append(f"option {option.name}: {_spelled(option.annotation)}, {default}")
    return "\n".join(lines)


def _spelled(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
