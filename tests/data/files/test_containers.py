"""Parquet, Arrow folders and tars as lazy rows."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

from rlvlm.data.files import folders, parquet, tar_index, tars
from rlvlm.errors import DataError
from tests.data.helpers import png

ROWS: list[dict[str, Any]] = [
    {"problem": f"q{i}", "images": [{"bytes": png(), "path": None}] * (i % 3)} for i in range(700)
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLVLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("in_memory", [1 << 30, 0])
def test_parquet_rows_of_any_group_in_any_order(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(parquet, "_IN_MEMORY", in_memory)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=300)
    rows = parquet.parquet(str(tmp_path / "a.parquet"))
    assert len(rows) == 700
    for row in (699, 0, 299, 300, 556, 555):
        assert rows[row] == ROWS[row]
    assert pickle.loads(pickle.dumps(rows))[5] == ROWS[5]
    with pytest.raises(IndexError):
        rows[700]
    assert cache.exists() == (in_memory == 0), "large files are unpacked to the cache, small ones leave no trace"
    assert len(list(cache.rglob("*.arrow"))) == (3 if in_memory == 0 else 0)


def test_a_changed_parquet_file_is_unpacked_anew(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_IN_MEMORY", 0)
    path = tmp_path / "a.parquet"
    for text in ("old", "new"):
        pq.write_table(pa.table({"problem": [text]}), path)
        os.utime(path, ns=(0, len(text) + ord(text[0])))
        assert parquet.parquet(str(path))[0] == {"problem": text}


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match=r"a\.parquet: no parquet"):
        parquet.parquet(str(tmp_path / "a.parquet"))


def test_a_folder_of_datasets_save_to_disk_with_a_filter(tmp_path: Path) -> None:
    whole = datasets.Dataset.from_list(ROWS[:20])
    whole.save_to_disk(tmp_path / "whole", num_shards=3)
    whole.select([7, 3, 11]).save_to_disk(tmp_path / "picked")
    datasets.DatasetDict({"train": whole}).save_to_disk(tmp_path / "dict")
    assert list(folders.arrow(str(tmp_path / "whole"))) == ROWS[:20]
    picked = folders.arrow(str(tmp_path / "picked"))
    assert list(picked) == [ROWS[7], ROWS[3], ROWS[11]]
    assert pickle.loads(pickle.dumps(picked))[0] == ROWS[7]
    with pytest.raises(DataError, match=r"several splits; name one of .*dict@train"):
        folders.arrow(str(tmp_path / "dict"))


def test_load_dataset_gives_pictures_undecoded(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    frame = datasets.Dataset.from_list(ROWS[1:4]).cast_column("images", datasets.Sequence(datasets.Image()))
    frame.to_parquet(tmp_path / "data" / "train-00000.parquet")
    rows = folders.hub(f"{tmp_path}@train")
    assert rows[0]["problem"] == "q1"
    assert rows[0]["images"][0]["bytes"] == png()
    with pytest.raises(DataError, match="can't be loaded"):
        folders.hub(f"{tmp_path}@nosplit")


def write_tar(path: Path, count: int, format: int) -> None:
    with tarfile.open(path, "w", format=format) as tar:
        for row in range(count):
            for extension, content in (
                ("img10.png", png((10, 10))),
                ("img2.png", png((2, 2))),
                ("json", json.dumps({"problem": f"q{row}"}).encode()),
            ):
                entry = tarfile.TarInfo(f"{'folder/' * (1 + 20 * (row % 2))}{row:04d}.{extension}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_of_a_tar_with_one_base_name_are_one_row(tmp_path: Path, format: int) -> None:
    write_tar(tmp_path / "a.tar", 4, format)
    rows = tars.webdataset(str(tmp_path / "a.tar"))
    assert [row["problem"] for row in rows] == ["q0", "q1", "q2", "q3"]
    assert rows[0]["images"] == [png((2, 2)), png((10, 10))], "img2 before img10"
    assert rows[1]["__key__"].endswith("folder/0001")
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert [name for name, _, _ in tar_index.tar_members(str(tmp_path / "a.tar"))] == tar.getnames()


def test_tars_of_the_webdataset_library_with_captions(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "x", "jpg": png(), "txt": "a red square"})
    row = tars.webdataset(str(tmp_path / "a.tar"))[0]
    assert (row["caption"], row["images"]) == ("a red square", [png()])


def test_pictures_of_several_kinds_keep_their_numbers_order(tmp_path: Path) -> None:
    names = ["000.png", "001.jpg", "002.gif", "010.jpg", "1000.png", "a.jpg", "a2.png", "a10.jpg", "jpg"]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in reversed(names):
            entry = tarfile.TarInfo(f"x.{name}")
            entry.size = len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))
    (row,) = tars.webdataset(str(tmp_path / "a.tar"))
    assert row["images"] == [name.encode() for name in ["jpg", *names[:-1]]]


def test_rows_whose_members_lie_apart_are_put_together(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in (
            "d/b.png",
            "d/a.png",
            ".hidden.json",
            "d/b.json",
            "plain",
            "d/a.json",
            "d/b.2.png",
            "d/.x",
            "c.json",
        ):
            content = json.dumps({"of": name}).encode() if name.endswith("json") else name.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    rows = tars.webdataset(str(tmp_path / "a.tar"))
    assert [row["__key__"] for row in rows] == ["d/b", "d/a", "plain", "c"]
    assert [row.get("of") for row in rows] == ["d/b.json", "d/a.json", None, "c.json"]
    assert rows[0]["images"] == [b"d/b.png", b"d/b.2.png"]
    assert pickle.loads(pickle.dumps(rows))[1] == rows[1]
    with pytest.raises(IndexError):
        rows[4]


@pytest.mark.parametrize("size", [10, 5_000, 40_000, 300_000])
def test_members_of_any_size_are_found(tmp_path: Path, size: int) -> None:
    rng = random.Random(size)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(80):
            entry = tarfile.TarInfo(f"{number:03d}.png")
            entry.size = rng.randint(0, size) if number % 7 else 3
            tar.addfile(entry, io.BytesIO(bytes([number]) * entry.size))
    with tarfile.open(tmp_path / "a.tar") as tar:
        expected = [(entry.name, entry.offset_data, entry.size) for entry in tar]
    assert list(tar_index.tar_members(str(tmp_path / "a.tar"))) == expected


def test_the_index_of_a_large_tar_takes_little_memory(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(5000):
            for kind in ("png", "json"):
                entry = tarfile.TarInfo(f"{number:09d}.{kind}")
                entry.size = 2
                tar.addfile(entry, io.BytesIO(b"{}"))
    tracemalloc.start()
    rows = tars.webdataset(str(tmp_path / "a.tar"))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(rows), rows[4321]["__key__"]) == (5000, "000004321")
    assert kept < 150 * 5000


def test_broken_tars_say_what_is_wrong(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", 2, tarfile.USTAR_FORMAT)
    content = (tmp_path / "a.tar").read_bytes()
    for size, where in ((540, "inside"), (600, "behind"), (1024, "behind")):  # 1024 is where the first member ends
        (tmp_path / "cut.tar").write_bytes(content[:size])
        with pytest.raises(DataError, match=f"cut off {where} member"):
            tars.webdataset(str(tmp_path / "cut.tar"))
    (tmp_path / "cut.tar").write_bytes(b"12")
    with pytest.raises(DataError, match="cut off before the first member, where an end mark should stand"):
        tars.webdataset(str(tmp_path / "cut.tar"))
    for wrong in (
        gzip.compress(random.Random(0).randbytes(2000)),
        b"1" * 1024,
        content[:512].replace(b"0000", b"0001") + content[512:],
    ):
        (tmp_path / "wrong.tar").write_bytes(wrong)
        with pytest.raises(DataError, match="no tar header at byte 0; the tar is broken, or compressed"):
            tars.webdataset(str(tmp_path / "wrong.tar"))
