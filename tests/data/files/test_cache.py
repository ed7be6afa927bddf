"""What is held of data files: one budget of decoded bytes, and never rows of two files as one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlvlm.data.config import DataConfig
from rlvlm.data.files import cache, parquet
from rlvlm.data.files.cache import FileCache
from rlvlm.data.sources import open_sources
from rlvlm.errors import DataError


def write(path: Path, text: str, rows: int = 8, group: int = 2) -> str:
    table = pa.table({"problem": [f"{text} {row}" for row in range(rows)], "answer": ["x"] * rows})
    pq.write_table(table, path, row_group_size=group)
    return str(path)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileCache:
    files = FileCache(512 << 20)
    monkeypatch.setattr(parquet, "FILES", files)
    monkeypatch.setenv("RLVLM_CACHE", str(tmp_path / "cache"))
    return files


def test_many_small_files_together_stay_within_the_budget(tmp_path: Path, held: FileCache) -> None:
    parts = [parquet.parquet(write(tmp_path / f"{number}.parquet", "q" * 10_000)) for number in range(20)]
    held.budget = 100_000
    for _ in range(2):
        for part in parts:
            assert [row["answer"] for row in part] == ["x"] * 8
            assert held.used <= held.budget


def test_a_small_file_that_holds_much_is_memory_mapped(tmp_path: Path, held: FileCache) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"problem": ["z" * (1 << 20)] * 100}), path)
    assert path.stat().st_size < 1 << 20
    rows = parquet.parquet(str(path))
    assert rows[99]["problem"] == "z" * (1 << 20)
    assert held.used == cache.MAPPED


def test_the_key_sets_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.FILES, "budget", 1)
    open_sources(DataConfig(train=write(tmp_path / "a.parquet", "q"), file_cache_mb=3))
    assert cache.FILES.budget == 3 << 20


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("spills", [False, True])
def test_a_parquet_that_is_replaced_while_it_is_read_never_mixes_rows(
    spills: bool, pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spills:
        monkeypatch.setattr(parquet, "_IN_MEMORY", 0)
    path = write(tmp_path / "a.parquet", "old")
    before = os.stat(path)
    rows = parquet.parquet(path)
    assert rows[0]["problem"] == "old 0"
    os.replace(write(tmp_path / "b.parquet", "new"), path)
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
    rows = pickle.loads(pickle.dumps(rows)) if pickled else rows
    assert rows[1]["problem"] == "old 1"
    with pytest.raises(DataError, match=r"a\.parquet: the file was replaced or changed while it was being read"):
        rows[7]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_lines_that_are_reordered_while_they_are_read_are_refused(name: str, tmp_path: Path) -> None:
    rows = ['{"problem": "a"}', '{"problem": "b"}']
    as_file = "[%s]" if name == "a.json" else "%s"
    joint = "," if name == "a.json" else "\n"
    (tmp_path / name).write_text(as_file % joint.join(rows))
    (source,) = open_sources(DataConfig(train=str(tmp_path / name)))
    assert source.raw(0)["problem"] == "a"
    (tmp_path / "b").write_text(as_file % joint.join(rows[::-1]))
    (tmp_path / "b").replace(tmp_path / name)
    with pytest.raises(DataError, match="replaced or changed while it was being read"):
        source.raw(1)
