"""Sources: files told apart by name, filters, picks, limits, generators, and what is wrong said plainly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlvlm.data.config import DataConfig, SourceConfig, read_sources
from rlvlm.data.sources import Source, open_source, open_sources, register_source
from rlvlm.errors import ConfigError, DataError, RegistryError
from tests.data.helpers import write_jsonl

ROWS = [{"problem": f"q{i}", "answer": str(i), "kind": "ab"[i % 2], "rate": i / 10} for i in range(10)]


def opened(**node: Any) -> Source:
    return open_source(read_sources(node)[0])


def problems(source: Source) -> list[str]:
    return [record["problem"] for index in range(len(source)) if (record := source[index]) is not None]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write_jsonl(tmp_path / "train.jsonl", ROWS)


def test_every_container_gives_the_same_records(tmp_path: Path, file: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "dict")
    expected = [row["problem"] for row in ROWS]
    for path in (
        file,
        tmp_path / "a.json",
        tmp_path / "a.parquet",
        tmp_path / "saved",
        f"{tmp_path}/dict@train",
        f"{tmp_path}@train",
    ):
        assert problems(opened(path=str(path))) == expected, path


def test_patterns_and_folders_join_their_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for part in range(3):
        write_jsonl(tmp_path / "data" / f"train-{part}.jsonl", ROWS[3 * part : 3 * part + 3])
    write_jsonl(tmp_path / "data" / "test-0.jsonl", ROWS[9:])
    assert problems(opened(path=f"{tmp_path}/data/train-*.jsonl")) == [f"q{i}" for i in range(9)]
    assert problems(opened(path=f"{tmp_path}@test")) == ["q9"]
    assert len(opened(path=str(tmp_path))) == 10


def test_where_limit_and_rows(tmp_path: Path, file: str) -> None:
    assert problems(opened(path=file, where={"kind": "a"})) == ["q0", "q2", "q4", "q6", "q8"]
    assert problems(opened(path=file, where={"kind": ["b"], "rate": {"min": 0.3, "max": 0.5}})) == ["q3", "q5"]
    assert problems(opened(path=file, limit=2)) == ["q0", "q1"]
    pq.write_table(pa.table({"row": [7, 7, 2]}), tmp_path / "picked.parquet")
    source = opened(path=file, rows=str(tmp_path / "picked.parquet"))
    assert problems(source) == ["q7", "q7", "q2"]
    assert source.origin(2).endswith("train.jsonl, row 2")
    with pytest.raises(DataError, match="no column 'knid' .did you mean 'kind'"):
        problems(opened(path=file, where={"knid": "a"}))
    pq.write_table(pa.table({"row": [10]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="picks row 10 of a source with 10 rows"):
        opened(path=file, rows=str(tmp_path / "other.parquet"))


def test_a_source_made_in_memory_has_seed_split_and_options() -> None:
    @register_source("numbers_for_a_test", override=True)
    def numbers(seed: int, split: str, *, size: int = 3) -> Sequence[Any]:
        """Numbers."""
        return [{"problem": f"{split} {seed} {i}"} for i in range(size)]

    config = DataConfig(train={"name": "numbers_for_a_test", "size": 2}, eval="numbers_for_a_test")
    assert problems(open_sources(config, "train", 5)[0]) == ["train 5 0", "train 5 1"]
    assert len(open_sources(config, "eval", 5)[0]) == 3
    with pytest.raises(RegistryError, match="no option 'szie' .did you mean 'size'"):
        open_sources(DataConfig(train={"name": "numbers_for_a_test", "szie": 2}))


def test_the_picture_folder_is_the_file_s_unless_set(file: str, tmp_path: Path) -> None:
    node = read_sources(file)[0]
    assert open_source(node).config.image_folder == str(tmp_path)
    assert open_source(node, DataConfig(image_folder="/pictures")).config.image_folder == "/pictures"
    assert node.image_folder is None, "opening a source does not change its settings"


@pytest.mark.parametrize(("node", "error", "message"), [
    ("nowhere/x.jsonl", DataError, "does not exist"),
    ({"path": "x.jsnl"}, DataError, "does not exist"),
    ({"weight": 2}, ConfigError, "neither 'path' nor 'name'"),
    ({"name": "shpaes"}, RegistryError, "did you mean 'shapes'"),
    ({"name": "jsonl"}, ConfigError, "reads a file; give it a path"),
    (17, ConfigError, "takes a path"),
    ({"path": "a", "weight": 0}, ConfigError, "weight is above 0, got 0"),
    ({"path": "a", "limit": 0}, ConfigError, "limit is at least 1, got 0"),
    ([{"path": "a", "weight": 1}, "b.jsonl"], ConfigError, "weights for 1 of its 2 sources"),
])  # fmt: skip
def test_wrong_sources_say_what_is_wrong(node: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_source(read_sources(node)[0])


def test_an_unknown_suffix_asks_for_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsnl").write_text('{"problem": "q"}\n')
    with pytest.raises(ConfigError, match=r"can't tell the format of .*did you mean '.jsonl'"):
        opened(path=str(tmp_path / "a.jsnl"))
    assert problems(opened(path=str(tmp_path / "a.jsnl"), name="jsonl")) == ["q"]


def test_settings_are_checked() -> None:
    for wrong, message in (
        ({"over_long": "cut"}, "drop, raise"),
        ({"on_bad_row": "ignore"}, "stop, skip"),
        ({"prompts_per_step": 0}, "at least 1"),
        ({"max_pixels": 0}, "data.max_pixels is at least 1, got 0"),
        ({"min_pixels": 10, "max_pixels": 5}, "above data.max_pixels"),
    ):
        with pytest.raises(ConfigError, match=message):
            DataConfig(**wrong)
    assert read_sources(None) == []
    assert read_sources("a.jsonl") == [SourceConfig(path="a.jsonl")]
    assert read_sources("shapes") == [SourceConfig(name="shapes")]
