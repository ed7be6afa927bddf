"""Sources: named sequences of raw rows, read from files or made in memory, registered by decorator.

A source is a function that gives a sequence (``__len__``, ``__getitem__``) of rows, each a mapping. Its positional
parameters are of ``path``, ``split`` (``train`` or ``eval``) and ``seed``; keyword-only ones are its options::

    @register_source("shapes")
    def shapes(seed: int, split: str, *, size: int = 4096) -> Sequence[Mapping[str, Any]]: ...
"""

from __future__ import annotations

import bisect
import copy
import glob
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from rlvlm.data.config import DataConfig, SourceConfig, read_sources
from rlvlm.data.files.cache import FILES
from rlvlm.data.jobs import fingerprints
from rlvlm.data.listings import refuse_listing
from rlvlm.data.media import PictureLimits
from rlvlm.data.records import FORMATS, as_record, column_of, format_of, rename
from rlvlm.errors import ConfigError, DataError, nearest, printable
from rlvlm.registry import Registry

SOURCES = Registry(
    "source",
    "sources",
    builtins=(
        "rlvlm.data.files.lines",
        "rlvlm.data.files.parquet",
        "rlvlm.data.files.folders",
        "rlvlm.data.files.tars",
        "rlvlm.data.toys.shapes",
        "rlvlm.data.toys.digits",
        "rlvlm.data.toys.captions",
    ),
    readable=lambda: ("path", "split", "seed"),
)
register_source = SOURCES.register

_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "webdataset",
}
_DESCRIPTIONS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
"""Files that tell of a folder's data and hold no rows."""


class Source:
    """The records of one source: rows picked, filtered by column, and given their format.

    Args:
        config: the source's settings.
        rows: its raw rows.
        name: for messages: the path or the source's name.
        files: what the rows are read from.
    """

    def __init__(
        self, config: SourceConfig, rows: Sequence[Mapping[str, Any]], name: str, files: Sequence[str] = ()
    ) -> None:
        self.config, self.name, self._rows, self._files = config, printable(name), rows, tuple(files)
        self._picked = None if config.rows is None else _read_picked(config.rows, len(rows))
        self._length = len(rows if self._picked is None else self._picked)
        if config.limit is not None:
            self._length = min(self._length, config.limit)
        self.first = 0  # place of the first record in the whole source
        self._format = None if config.format is None else FORMATS.build(config.format)

    def __len__(self) -> int:
        return self._length

    def part(self, start: int, end: int) -> Source:
        """The records from ``start`` up to ``end`` as a source of their own, which keep their rows, names and places."""
        part = copy.copy(self)
        part.first, part._length = self.first + start, end - start
        return part

    def fingerprints(self) -> dict[str, str]:
        """Hash that tells these rows from those of other files; of sources that make their rows, the settings tell."""
        picked = () if self.config.rows is None else (self.config.rows,)
        return fingerprints((*self._files, *picked))

    def row(self, index: int) -> int:
        """The number, in the file, of the record at this index."""
        place = self.first + index
        return place if self._picked is None else int(self._picked[place])

    def origin(self, index: int) -> str:
        """File and row of a record, for messages; rows count from 0."""
        return f"{self.name}, row {self.row(index)}"

    def raw(self, index: int) -> Mapping[str, Any]:
        """The row as the file holds it."""
        return self._rows[self.row(index)]

    def limits(self, config: DataConfig) -> PictureLimits:
        """Where this source's pictures may lie and how large they are shown."""
        return PictureLimits(
            self.config.image_folder or config.image_folder,
            config.allow_outside,
            config.min_pixels,
            config.max_pixels,
            config.max_decode_pixels,
        )

    def __getitem__(self, index: int) -> dict[str, Any] | None:
        """The record, or ``None`` where ``where`` leaves it out; raises ``DataError`` naming file and row."""
        return self.read(index)[0]

    def read(self, index: int) -> tuple[dict[str, Any] | None, str]:
        """The record as ``self[index]`` gives it, and the name of its row's format."""
        if not 0 <= index < self._length:
            raise IndexError(index)
        row, origin = self.raw(index), self.origin(index)
        if not matches(row, self.config.where, origin):
            return None, ""
        try:
            named = rename(row, self.config.columns, origin)
            format = format_of(named, self._format, bool(self.config.columns), origin)
        except DataError as error:
            raise (error if str(error).startswith(origin) else DataError(f"{origin}: {error}")) from error
        return as_record(row, format, self.config.columns, origin), format.name


def open_sources(config: DataConfig, split: str = "train", seed: int = 0) -> list[Source]:
    """The sources of one split, ready to be read; raises ``ConfigError`` or ``DataError`` naming the one at fault."""
    nodes = read_sources(getattr(config, split), f"data.{split}")
    FILES.budget = config.file_cache_mb << 20
    return [open_source(node, config, split, seed) for node in nodes]


def open_source(source: SourceConfig, config: DataConfig | None = None, split: str = "train", seed: int = 0) -> Source:
    """Opens one source; columns, template and picture folder that it leaves out are the config's."""
    config = config or DataConfig()
    source = SourceConfig(**{**vars(source), "columns": {**config.columns, **source.columns}})
    if source.path is None:
        return Source(source, _build(source.name or "", source.options, "", split, seed), str(source.name))
    folder, paths = find_files(source.path)
    if source.image_folder is None:
        source.image_folder = config.image_folder or folder
    parts: list[Sequence[Mapping[str, Any]]] = [
        _build(source.name or container_of(path), source.options, path, split, seed) for path in paths
    ]
    return Source(source, parts[0] if len(parts) == 1 else Joined(parts), source.path, paths)


def _build(name: str, options: Mapping[str, Any], path: str, split: str, seed: int) -> Sequence[Mapping[str, Any]]:
    part = SOURCES.build({"name": name, **options})
    if "path" in part.needs and not path:
        raise ConfigError(f"source '{name}' reads a file; give it a path.")
    return part({"path": path, "split": split, "seed": seed})


class Joined(Sequence[Mapping[str, Any]]):
    """Several sequences of rows as one."""

    def __init__(self, parts: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        self._parts = parts
        self._ends = list(itertools.accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: Any) -> Any:
        part = bisect.bisect_right(self._ends, row)
        if part == len(self._parts) or row < 0:
            raise IndexError(row)
        return self._parts[part][row - (self._ends[part - 1] if part else 0)]


def container_of(path: str) -> str:
    """The source that reads a path, by its suffix, or by what the folder holds."""
    if os.path.isdir(path):
        return "arrow"
    if not os.path.exists(path) and "@" in path:
        return "hub"
    suffix = Path(path).suffix.lower()
    if suffix in (".yaml", ".yml") and os.path.isfile(path):
        refuse_listing(path)
    if suffix not in _BY_SUFFIX:
        raise ConfigError(
            f"can't tell the format of '{path}' from '{suffix}'{nearest(suffix, _BY_SUFFIX)}; set the source's 'name'."
        )
    return _BY_SUFFIX[suffix]


def find_files(path: str) -> tuple[str, list[str]]:
    """The folder that pictures' paths start from, and the data files that a source's path names.

    Args:
        path: a file, a pattern (``shards/*.tar``), a folder, or ``folder@split``; a name that is no path on this machine
            but reads ``owner/name@split`` is a repository of the Hugging Face hub.
    """
    if os.path.isfile(path):
        return os.path.dirname(path) or ".", [path]
    base, _, split = path.rpartition("@") if "@" in path and not os.path.exists(path) else (path, "", "")
    if os.path.isdir(base):
        return base, _files_of_folder(base, split)
    found = sorted(glob.glob(path))
    if found:
        return os.path.dirname(found[0]) or ".", found
    if split and base.count("/") == 1 and not base.startswith((".", "/", "~")):
        return ".", [path]
    raise DataError(f"data file '{path}' does not exist (looked at '{os.path.abspath(path)}').")


def _files_of_folder(folder: str, split: str) -> list[str]:
    inner = os.path.join(folder, split) if split else folder
    if os.path.isdir(inner) and os.path.exists(os.path.join(inner, "state.json")):
        return [inner]  # a folder written by datasets.save_to_disk
    names = sorted(
        os.path.relpath(name, folder)
        for pattern in ("*", "data/*", *([f"{split}/*", f"data/{split}/*"] if split else ()))
        for name in glob.glob(os.path.join(folder, pattern))
        if Path(name).suffix.lower() in _BY_SUFFIX and Path(name).name not in _DESCRIPTIONS
    )
    found = names
    if split:
        names = _of_split(found, split)
    kept = list(dict.fromkeys(os.path.join(folder, name) for name in names))
    if not kept:
        there = f"it holds {', '.join(found[:8])}" if found else f"expected {', '.join(_BY_SUFFIX)}"
        of_split = f" of split '{split}'" if split else ""
        raise DataError(f"folder '{folder}' holds no data files{of_split}; {there}.")
    return kept


def _of_split(names: Sequence[str], split: str) -> list[str]:
    """The files of a split: in a folder of its name, called by it, or its numbered shards.

    Only where there are none of these, files whose name goes on behind the split's with ``-`` or ``.``: ``testmini`` is never
    ``test``, and ``test-mini`` only where no file is ``test`` itself.
    """
    stems = {name: Path(name).name.removesuffix(Path(name).suffix) for name in names}
    shard = re.compile(rf"{re.escape(split)}([-_.](part[-_]?|shard[-_]?)?\d+([-_.].*)?)?")
    exact = [name for name in names if Path(name).parent.name == split or shard.fullmatch(stems[name])]
    return exact or [name for name in names if stems[name].startswith((f"{split}-", f"{split}."))]


def matches(row: Mapping[str, Any], where: Mapping[str, Any], origin: str) -> bool:
    """Whether a row's columns are as ``where`` says: a value, one of a list, or within ``{min, max}``, both included.

    A column that the row has not raises ``DataError``, so that a misspelt filter is not an empty one.
    """
    return all(_fits(column_of(row, name, origin), wanted) for name, wanted in where.items())


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        low, high = wanted.get("min"), wanted.get("max")
        return value is not None and (low is None or value >= low) and (high is None or value <= high)
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return value in wanted
    return bool(value == wanted)


def _read_picked(path: str, length: int) -> np.ndarray:
    try:
        picked = pq.read_table(path, columns=["row"])["row"].to_numpy()
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"'{path}' holds no 'row' column of a parquet file ({error}).") from error
    if len(picked) and (int(picked.min()) < 0 or int(picked.max()) >= length):
        raise DataError(
            f"'{path}' picks row {int(picked.max())} of a source with {length} rows; it belongs to other data."
        )
    return picked
