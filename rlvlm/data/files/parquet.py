"""Parquet as a lazy sequence of rows.

Row groups are the unit that parquet can be read by. Those of small files are held in memory, all files together up to a budget
of decoded bytes; of larger ones a row group is unpacked once, when a row of it is first asked for, to an Arrow file in the cache
folder, and memory-mapped from then on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlvlm.data.files.cache import FILES, MAPPED
from rlvlm.data.identity import Stamp, check_unchanged, stamp
from rlvlm.data.sources import register_source
from rlvlm.errors import DataError

_IN_MEMORY = 64 << 20  # bytes of a file, unpacked, up to which it is kept in memory
_ROWS_A_BATCH = 256


class ParquetRows(Sequence[dict[str, Any]]):
    """Rows of one parquet file, by row group."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stamp = stamp(path)
        try:
            metadata = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: no parquet file that can be read ({error}).") from error
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        check_unchanged(path, self._stamp)
        self._starts = np.cumsum([0, *(group.num_rows for group in groups)])
        self._spills = sum(group.total_byte_size for group in groups) > _IN_MEMORY

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(row)
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        place = int(row - self._starts[group])
        try:
            batch = FILES.get((self.path, self._stamp, group), lambda: self._load(group))[place // _ROWS_A_BATCH]
            return {
                name: column[place % _ROWS_A_BATCH].as_py()
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path}, row {row}: can't be read ({error}).") from error

    def _load(self, group: int) -> tuple[Any, int]:
        """A row group and the bytes that it holds in memory."""
        check_unchanged(self.path, self._stamp)
        held, size = [], 0
        for batch in () if self._spills else _batches(self.path, group):
            held.append(batch)
            size += batch.nbytes
            if size > min(_IN_MEMORY, FILES.budget):  # a small file may hold much: equal values are stored once
                break
        if self._spills or size > min(_IN_MEMORY, FILES.budget):
            unpacked = _unpacked(self.path, group, self._stamp)
            piece: Any = _LazyBatches(pa.ipc.open_file(pa.memory_map(str(unpacked))))
            size = MAPPED
        else:
            piece = held
        check_unchanged(self.path, self._stamp)  # rows of two files are never mixed
        return piece, size


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


def _unpacked(path: str, group: int, read: Stamp) -> Path:
    identity = f"{os.path.realpath(path)},{','.join(map(str, read))}"
    folder = cache_folder() / "parquet" / hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
    target = folder / f"{group}.arrow"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{group}.{os.getpid()}.partial"
        with pq.ParquetFile(path) as file, pa.ipc.new_file(str(partial), file.schema_arrow) as writer:
            for batch in file.iter_batches(_ROWS_A_BATCH, row_groups=[group]):
                writer.write_batch(batch)
        check_unchanged(path, read)
        partial.replace(target)  # at once, so that a killed run leaves no half file under the final name
    return target


def _batches(path: str, group: int) -> Any:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(_ROWS_A_BATCH, row_groups=[group])
