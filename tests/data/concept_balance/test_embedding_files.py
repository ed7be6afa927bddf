"""Embeddings in one file or many, of any size, read in pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlvlm.data.concept_balance import Vocabulary, embeddings, nearest_concepts, read_embeddings
from rlvlm.errors import DataError


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embeddings, "_UNPACKED_ROWS", 3)


def write_shards(folder: Path, values: np.ndarray) -> None:
    folder.mkdir()
    np.save(folder / "a.npy", values[:7])
    pq.write_table(pa.table({"embedding": list(values[7:11])}), folder / "b.parquet")
    np.save(folder / "c.npy", values[11:])


@pytest.mark.parametrize("pattern", ["shards", "shards/*"])
def test_shards_are_one_array_and_have_the_neighbours_of_one(pattern: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    write_shards(tmp_path / "shards", values)
    joined = read_embeddings(str(tmp_path / pattern))
    assert joined.shape == (20, 4)
    assert len(joined) == 20
    assert (np.array(joined, np.float32) == values).all()
    for start in range(21):
        for end in range(23):
            assert (joined[start:end] == values[start:end]).all()
            assert joined[start:end].shape == values[start:end].shape
    names, words = np.eye(4, dtype=np.float32), Vocabulary.of([[name] for name in "abcd"])
    near = [
        nearest_concepts(some, names, words, 2, tmp_path / place, quiet=True)
        for some, place in ((joined, "x"), (values, "y"))
    ]
    assert (near[0] == near[1]).all()


def test_a_column_is_read_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"embedding": list(values)}), path)
    monkeypatch.setattr(pq, "read_table", lambda *of, **also: pytest.fail("read whole: 2^31 values are no Arrow array"))
    assert (read_embeddings(str(path)) == values).all()
    pq.write_table(pa.table({"embedding": list(-values)}), path)
    assert (read_embeddings(str(path)) == -values).all(), "the unpacked column of the old file is not taken"


def test_lengths_that_differ_are_refused_in_one_file_and_over_several(tmp_path: Path) -> None:
    pq.write_table(pa.table({"embedding": [[1.0]] * 5 + [[1.0, 2.0]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"several lengths: \[1, 2\]"):
        read_embeddings(str(tmp_path / "a.parquet"))
    for name, width in (("x", 2), ("y", 3)):
        np.save(tmp_path / f"{name}.npy", np.ones((2, width)))
    with pytest.raises(DataError, match=r"several lengths: \[2, 3\]"):
        read_embeddings(str(tmp_path / "*.npy"))
    with pytest.raises(DataError, match="do not exist"):
        read_embeddings(str(tmp_path / "*.none"))
