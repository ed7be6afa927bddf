"""What decides a stage's result: its settings, the files they name, the stage before it, the versions of packages.

It is written with the stage and compared whenever a run is started again, so that no run goes on under other settings,
plug-ins or data unseen. Pictures that records name by path are not looked at.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvlm.data.config import read_sources
from rlvlm.data.identity import identity
from rlvlm.data.sources import find_files
from rlvlm.errors import ConfigError, DataError
from rlvlm.pipelines.config import Stage
from rlvlm.pipelines.reads import SAMPLING, is_below, unread
from rlvlm.pipelines.stages import is_supervised
from rlvlm.tracking.rundir import package_versions, write_json

FILE = "origin.json"
FREE = (
    "name", "dir", "trackers", "keep", "keep_finished", "save_every", "resume", "sample_rows", "sample_every", "sample_groups",
    "threads", "gates",
)  # fmt: skip
"""Keys of ``run`` that decide no weight and may change when a run goes on."""
FREE_ELSEWHERE = ("cache", "data.cache_mb", "data.file_cache_mb", "data.prefetch", "reward.workers")
"""Keys elsewhere that set memory and speed alone."""
LENGTH = ("run.steps", "run.stop_at", "run.eval_every")
"""Keys that make a stage longer or shorter: it goes on from where it is."""

_MODEL_PARTS = (".json", ".jinja", ".txt", ".model", ".safetensors", ".bin", ".py")


@dataclass
class Origin:
    """What a stage was made of.

    Attributes:
        settings: plain values by dotted key, but for those that decide no weight of any stage.
        files: the files that they name (plug-ins, data, a model's folder): size, time and hash of each.
        before: the fingerprint of the stage that this one starts from, and which of its results; empty for none.
        versions: of the packages that decide numbers.
        lengths: of a stage that was made longer: the lengths before, oldest first.
        unread: keys and groups of the settings that this stage does not read.
        until: keys and groups that decide only when it ends.
    """

    settings: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    lengths: list[dict[str, Any]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    until: list[str] = field(default_factory=list)

    def fingerprint(self) -> str:
        """A short hash of all that decides the result, wherever and whenever the stage runs."""
        files = {path: (entry["size"], entry["hash"]) for path, entry in self.files.items()}
        told = [self._settings_but(self.unread), files, self.before.get("fingerprint", ""), self.versions, self.lengths]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:20]

    def identity(self) -> str:
        """The same without lengths and versions, but with the very result that the stage starts from: of its checkpoints."""
        settings = self._settings_but((*self.unread, *self.until, *LENGTH))
        files = {path: (entry["size"], entry["hash"]) for path, entry in self.files.items()}
        return hashlib.sha256(json.dumps([settings, files, self.before], sort_keys=True).encode()).hexdigest()[:20]

    def _settings_but(self, left_out: Iterable[str]) -> dict[str, Any]:
        return {key: value for key, value in self.settings.items() if not is_below(key, left_out)}

    def write(self, folder: Path) -> None:
        """Writes it into the stage's folder."""
        write_json(folder / FILE, dataclasses.asdict(self))

    def lengthened(self, stored: Origin) -> Origin:
        """This origin with the history of the stored one, whose stage it goes on with under another length."""
        now, then = self.length(), stored.length()
        return dataclasses.replace(self, lengths=[*stored.lengths, *([then] if then != now else [])])

    def length(self) -> dict[str, Any]:
        """The settings of the stage's length."""
        return {key: self.settings.get(key) for key in LENGTH}


def read_origin(folder: Path) -> Origin | None:
    """What a stage's folder says that it was made of; ``None`` where nothing was begun, or by another version."""
    try:
        return Origin(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def origin_of(stage: Stage, before: Mapping[str, str], known: Origin | None = None) -> Origin:
    """What the stage would be made of now.

    Args:
        before: of the stage that it starts from, as :class:`Origin` keeps it.
        known: what was recorded; large files that have the same size and time as there are not read again.
    """
    recorded = known.files if known is not None else {}
    supervised = is_supervised(stage)
    left_out = unread(stage, supervised=supervised)
    files = {path: identity(path, recorded.get(path)) for path in dict.fromkeys(_files_of(stage, left_out))}
    return Origin(
        _settings(stage, weights_count=not supervised),
        files,
        dict(before),
        package_versions(),
        unread=list(left_out),
        until=list(SAMPLING) if supervised else [],
    )


def differences(stored: Origin, now: Origin) -> list[str]:
    """What of settings and files is another now than it was then, a phrase for each.

    Lengths are not compared, nor what the stage does not read now or did not read then.
    """
    left_out = (*LENGTH, *stored.unread, *now.unread)
    keys = [key for key in sorted({*stored.settings, *now.settings}) if not is_below(key, left_out)]
    odd = [
        f"{key} is {stored.settings.get(key)!r} there and {now.settings.get(key)!r} here"
        for key in keys
        if stored.settings.get(key) != now.settings.get(key)
    ]
    for path in sorted({*stored.files, *now.files}):
        then, here = stored.files.get(path), now.files.get(path)
        if then is None or here is None:
            odd.append(f"the file '{path}' is {'new' if then is None else 'gone'}")
        elif (then["size"], then["hash"]) != (here["size"], here["hash"]):
            odd.append(f"the file '{path}' has changed since")
    return odd


def other_versions(stored: Origin, now: Origin) -> list[str]:
    """Packages that have another version now, a phrase for each; they may change numbers by rounding."""
    names = [name for name in now.versions if name != "platform"]
    return [
        f"{name} was {stored.versions[name]} and is {now.versions[name]}"
        for name in names
        if name in stored.versions and stored.versions[name] != now.versions[name]
    ]


def _settings(stage: Stage, *, weights_count: bool) -> dict[str, Any]:
    """The stage's settings as plain values by dotted key, without those that decide no weight of any stage.

    Args:
        weights_count: whether the weights of reward rules decide anything; evaluations look at rules one by one.
    """
    tree = dataclasses.asdict(stage)
    for name in FREE:
        del tree["run"][name]
    if not weights_count:
        tree["reward"]["rules"] = {label: _without_weight(node) for label, node in tree["reward"]["rules"].items()}
    plain: dict[str, Any] = json.loads(json.dumps(tree, default=str))
    return {key: value for key, value in _flat(plain) if not is_below(key, FREE_ELSEWHERE)}


def _without_weight(node: Any) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key != "weight"} if isinstance(node, Mapping) else {}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and bool(value)
        pairs += _flat(value, f"{prefix}{key}.") if nested else [(f"{prefix}{key}", value)]
    return pairs


# ---------------------------------------------------------------------- files


def _files_of(stage: Stage, left_out: Iterable[str]) -> Iterator[str]:
    """Every file that decides the stage's result, by the path that the settings give it.

    Args:
        left_out: groups of settings that the stage does not read.
    """
    for module in stage.plugins:
        yield from _files_of_module(module)
    for node in () if is_below("reward", left_out) else stage.reward.rules.values():
        path = node.get("path") if isinstance(node, Mapping) else None
        if isinstance(path, str):  # a peer's function, or the folder of a model that scores
            yield from _files_of_folder(path) if os.path.isdir(path) else _files_of_module(path)
    for source in (*read_sources(stage.data.train), *read_sources(stage.data.eval)):
        yield from _files_of_source(source.path) if source.path is not None else ()
        yield from filter(_is_file, (source.rows, source.template))
    yield from filter(_is_file, (stage.data.template,))
    if stage.init is None and stage.model.path is not None and os.path.isdir(stage.model.path):
        yield from _files_of_folder(stage.model.path)


def _files_of_folder(folder: str) -> Iterator[str]:
    yield from (os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(_MODEL_PARTS))


def _files_of_module(module: str) -> Iterator[str]:
    if module.endswith(".py"):
        yield module
        return
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    if spec.origin is not None and spec.submodule_search_locations is None:
        yield spec.origin
    for folder in spec.submodule_search_locations or ():
        yield from sorted(str(path) for path in Path(folder).rglob("*.py"))


def _files_of_source(path: str) -> Iterator[str]:
    try:
        _, found = find_files(path)
    except (ConfigError, DataError):  # opening the source says what is wrong with it
        return
    for one in found:
        yield from sorted(str(part) for part in Path(one).iterdir() if part.is_file()) if os.path.isdir(one) else [one]


def _is_file(text: str | None) -> bool:
    return text is not None and "\n" not in text and os.path.isfile(text)
