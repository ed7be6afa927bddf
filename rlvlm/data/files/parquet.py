"""Parquet as a lazy sequence of rows.

Row groups are the unit that parquet can be read by. Small files keep theirs in memory; of larger ones a row group is
unpacked once, when a row of it is first asked for, to an Arrow file in the cache folder, and memory-mapped from then on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlvlm.data.sources import register_source
from rlvlm.errors import DataError

_IN_MEMORY = 64 << 20  # bytes of a file, unpacked, up to which it is kept in memory
_ROWS_A_BATCH = 256
_OPEN_GROUPS = 64


class ParquetRows(Sequence[dict[str, Any]]):
    """Rows of one parquet file, by row group."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: no parquet file that can be read ({error}).") from error
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        self._starts = np.cumsum([0, *(group.num_rows for group in groups)])
        self._spills = sum(group.total_byte_size for group in groups) > _IN_MEMORY
        self._reset()

    def _reset(self) -> None:
        self._group = lru_cache(maxsize=_OPEN_GROUPS if self._spills else None)(self._load)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(row)
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        place = int(row - self._starts[group])
        try:
            batch = self._group(group)[place // _ROWS_A_BATCH]
            return {
                name: column[place % _ROWS_A_BATCH].as_py()
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path}, row {row}: can't be read ({error}).") from error

    def _load(self, group: int) -> Any:
        if not self._spills:
            return list(_batches(self.path, group))
        unpacked = _unpacked(self.path, group)
        reader = pa.ipc.open_file(pa.memory_map(str(unpacked)))
        return _LazyBatches(reader)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_group"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


class _LazyBatches:
    """Record batches of a memory-mapped Arrow file by number."""

    def __init__(self, reader: pa.ipc.RecordBatchFileReader) -> None:
        self._reader = reader

    def __getitem__(self, number: int) -> pa.RecordBatch:
        return self._reader.get_batch(number)


@register_source("parquet")
def parquet(path: str) -> Sequence[dict[str, Any]]:
    """One parquet file; columns of any type, pictures as bytes or paths."""
    return ParquetRows(path)


def cache_folder() -> Path:
    """Where unpacked files are kept: ``$RLVLM_CACHE``, else ``~/.cache/rlvlm``."""
    return Path(os.environ.get("RLVLM_CACHE") or Path.home() / ".cache" / "rlvlm")


def _unpacked(path: str, group: int) -> Path:
    stat = os.stat(path)
    identity = f"{os.path.realpath(path)},{stat.st_size},{stat.st_mtime_ns}"
    folder = cache_folder() / "parquet" / hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
    target = folder / f"{group}.arrow"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{group}.{os.getpid()}.partial"
        with pq.ParquetFile(path) as file, pa.ipc.new_file(str(partial), file.schema_arrow) as writer:
            for batch in file.iter_batches(_ROWS_A_BATCH, row_groups=[group]):
                writer.write_batch(batch)
        partial.replace(target)  # at once, so that a killed run leaves no half file under the final name
    return target


def _batches(path: str, group: int) -> Any:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(_ROWS_A_BATCH, row_groups=[group])
