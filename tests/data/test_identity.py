"""A file is told from another one, wherever the change is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlvlm.data import identity as identities
from rlvlm.data.identity import identity
from rlvlm.data.jobs import Job, fingerprints
from rlvlm.errors import DataError


@pytest.mark.parametrize("place", [0, 70_000, 250_000, 499_999])
def test_a_byte_that_changed_anywhere_makes_another_file_even_with_the_same_time(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(bytes(500_000))
    os.utime(path, ns=(1, 1))
    before, print_before = identity(str(path)), fingerprints([str(path)])
    content = bytearray(500_000)
    content[place] = 1
    path.write_bytes(content)
    os.utime(path, ns=(2, 2))
    assert identity(str(path))["hash"] != before["hash"]
    assert fingerprints([str(path)]) != print_before
    path.write_bytes(bytes(500_000))
    assert fingerprints([str(path)]) == print_before, "the same content is the same file, whenever it was written"


def test_of_a_file_too_large_to_read_whole_the_time_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "WHOLE", 1000)
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(500_000))
    os.utime(path, ns=(1, 1))
    before = identity(str(path))
    os.utime(path, ns=(2, 2))
    assert identity(str(path))["hash"] != before["hash"]
    os.utime(path, ns=(1, 1))
    assert identity(str(path)) == before


def test_a_large_file_with_the_recorded_size_and_time_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(1 << 21))
    known = identity(str(path))
    monkeypatch.setattr(identities, "_hash", lambda *of: pytest.fail("read again"))
    assert identity(str(path), known) == known


def test_what_is_not_there_has_no_identity() -> None:
    assert identity("someone/on-a-hub") == {"size": 0, "time": 0, "hash": ""}


def test_the_file_that_changed_is_named(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("1")
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    Job(tmp_path / "job", {"data_files": fingerprints(files)})
    (tmp_path / "b.jsonl").write_text("2")
    with pytest.raises(DataError, match=r"other settings \(data_files.b.jsonl: '1-"):
        Job(tmp_path / "job", {"data_files": fingerprints(files)})


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_text(folder)
    assert len(fingerprints([str(tmp_path / "a"), str(tmp_path / "b")])) == 2
