"""Data set folders of the Hugging Face ``datasets`` library, and repositories of its hub."""

from __future__ import annotations

import bisect
import importlib
import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rlvlm.data.files.cache import FILES, MAPPED
from rlvlm.data.identity import check_unchanged, stamp
from rlvlm.data.sources import register_source
from rlvlm.errors import ConfigError, DataError


class ArrowRows(Sequence[dict[str, Any]]):
    """Rows of Arrow files (stream or file format), memory-mapped: nothing is read before a row is asked for."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self._stamps = [stamp(path) for path in self.paths]
        counts = [[batch.num_rows for batch in _map_batches(path)] for path in paths]
        self._places = [(file, batch) for file, rows in enumerate(counts) for batch in range(len(rows))]
        self._ends = list(itertools.accumulate(itertools.chain.from_iterable(counts)))
        for path, before in zip(self.paths, self._stamps, strict=True):
            check_unchanged(path, before)

    def _batches(self, file: int) -> Any:
        path = self.paths[file]

        def load() -> tuple[list[pa.RecordBatch], int]:
            check_unchanged(path, self._stamps[file])
            batches = _map_batches(path)
            size = sum(batch.nbytes for batch in batches)
            return batches, size if size > self._stamps[file][1] else MAPPED  # larger than the file: it is compressed

        return FILES.get((path, self._stamps[file]), load)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(row)
        number = bisect.bisect_right(self._ends, row)
        file, place = self._places[number]
        batch = self._batches(file)[place]
        at = row - (self._ends[number - 1] if number else 0)
        return {name: column[at].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}


class PickedRows(Sequence[dict[str, Any]]):
    """Rows behind the index mapping that ``datasets`` keeps after a filter or shuffle."""

    def __init__(self, rows: Sequence[dict[str, Any]], indices: Sequence[dict[str, Any]]) -> None:
        self._rows, self._indices = rows, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, row: Any) -> Any:
        return self._rows[self._indices[row]["indices"]]


def _map_batches(path: str) -> list[pa.RecordBatch]:
    try:
        mapped = pa.memory_map(path)
        try:
            return list(pa.ipc.open_stream(mapped))
        except pa.ArrowInvalid:  # the file format has a footer instead
            reader = pa.ipc.open_file(mapped)
            return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: no Arrow file that can be read ({error}).") from error


@register_source("arrow")
def arrow(path: str) -> Sequence[dict[str, Any]]:
    """An Arrow file, or a folder written by ``datasets.save_to_disk``; a dict of splits takes ``folder@split``."""
    if os.path.isfile(path):
        return ArrowRows([path])
    if os.path.exists(os.path.join(path, "dataset_dict.json")):
        with open(os.path.join(path, "dataset_dict.json"), encoding="utf-8") as file:
            splits = json.load(file)["splits"]
        raise DataError(
            f"'{path}' holds several splits; name one of {', '.join(f'{path}@{split}' for split in splits)}."
        )
    with open(os.path.join(path, "state.json"), encoding="utf-8") as file:
        state = json.load(file)
    rows = ArrowRows([os.path.join(path, entry["filename"]) for entry in state["_data_files"]])
    indices = [os.path.join(path, entry["filename"]) for entry in state.get("_indices_data_files") or []]
    return PickedRows(rows, ArrowRows(indices)) if indices else rows


class HubRows(Sequence[dict[str, Any]]):
    """Rows of a ``datasets.Dataset``; pictures come as bytes and paths, not decoded."""

    def __init__(self, dataset: Any, image_type: Any) -> None:
        for name, feature in dataset.features.items():
            inner = getattr(feature, "feature", None)
            if isinstance(feature, image_type):
                dataset = dataset.cast_column(name, image_type(decode=False))
            elif isinstance(inner, image_type):
                dataset = dataset.cast_column(name, type(feature)(image_type(decode=False)))
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: Any) -> Any:
        return dict(self._dataset[int(row)])


@register_source("hub")
def hub(path: str, *, revision: str | None = None) -> Sequence[dict[str, Any]]:
    """``owner/name@split`` of the Hugging Face hub, or anything that ``datasets.load_dataset`` takes before the ``@``."""
    name, _, split = path.rpartition("@")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise ConfigError("reading a hub repository takes the datasets library: pip install 'rlvlm[data]'.") from error
    try:
        dataset = datasets.load_dataset(name, split=split, revision=revision)
    except Exception as error:  # its loaders raise their own kinds, network errors among them
        raise DataError(
            f"data set '{name}' (split '{split}') can't be loaded: {type(error).__name__}: {error}."
        ) from error
    return HubRows(dataset, datasets.Image)
