"""The run directory: whole files, or none."""

from __future__ import annotations

import json
import math
import os
from datetime import datetime

import pytest
import torch

from rlvlm.errors import DataError
from rlvlm.tracking.rundir import (
    RunDir,
    Summary,
    drop_metrics,
    fresh_run_path,
    link_folder,
    read_metrics,
    read_summary,
    write_atomically,
    write_json,
)


def test_a_write_that_fails_leaves_the_old_file_and_no_debris(tmp_path, monkeypatch):
    target = tmp_path / "file.txt"
    write_atomically(target, "old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_files_are_readable_by_others_as_the_umask_allows(tmp_path):
    old = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file.txt", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "file.txt").stat().st_mode & 0o777 == 0o644


def test_text_that_utf8_cannot_spell_is_still_written(tmp_path):
    write_atomically(tmp_path / "file.txt", "lone \ud800 surrogate")
    assert (tmp_path / "file.txt").read_text() == "lone ? surrogate"


def test_json_is_valid_whatever_the_numbers(tmp_path):
    write_json(
        tmp_path / "a.json", {"nan": math.nan, "inf": [math.inf], "tensor": torch.tensor(2.5), "none": None, 3: True}
    )
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "nan": None,
        "inf": [None],
        "tensor": 2.5,
        "none": None,
        "3": True,
    }


def test_fresh_paths_of_the_same_second_differ(tmp_path):
    now = datetime(2026, 1, 2, 3, 4, 5)
    first = fresh_run_path(tmp_path, "quickstart", now)
    first.mkdir()
    second = fresh_run_path(tmp_path, "quickstart", now)
    assert (first.name, second.name) == ("quickstart-20260102-030405", "quickstart-20260102-030405-2")


def test_a_last_line_cut_short_is_passed_over_but_a_broken_middle_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert list(read_metrics(path)) == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(DataError, match="line 2 of .*metrics.jsonl"):
        list(read_metrics(path))


def test_summary_has_the_promised_keys(tmp_path):
    run = RunDir.create(tmp_path / "run")
    Summary("quickstart", accuracy_before=0.3, accuracy_after=0.9, seconds={"update": 1.5}).write(run)
    summary = read_summary(run)
    for key in (
        "accuracy_before",
        "accuracy_after",
        "greedy_before",
        "greedy_after",
        "train_seconds",
        "seconds",
        "versions",
    ):
        assert key in summary
    assert summary["versions"]["torch"] == torch.__version__
    assert read_summary(RunDir.create(tmp_path / "empty")) == {}


def test_a_run_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(DataError, match="is a file"):
        RunDir.create(tmp_path / "run")


def test_ids_of_runs_differ_though_their_folders_are_named_alike_and_stay_when_resumed(tmp_path):
    paths = [tmp_path / "a" / "0", tmp_path / "b" / "0", tmp_path / "other" / "a" / "0"]
    ids = [RunDir.create(path).id for path in paths]
    assert len(set(ids)) == 3
    assert [RunDir.create(path).id for path in paths] == ids
    assert ids[0].startswith("a-0-")
    RunDir(paths[0]).clear()
    assert RunDir(paths[0]).id != ids[0]


def test_a_runs_title_is_its_name_and_a_sweeps_job_has_the_sweeps(tmp_path):
    assert RunDir(tmp_path / "mine").title == "mine"
    assert RunDir(tmp_path / "sweep" / "3").title == "sweep/3"


def test_records_behind_a_step_and_a_line_cut_short_are_dropped_and_nothing_else(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"stage": stage, "step": step, "x": 0.1} for stage, step in [("a", 1), ("a", 2), ("b", 1), ("a", 3)]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"stage": "a", "st')
    drop_metrics(path, "a", after=1)
    assert list(read_metrics(path)) == [lines[0], lines[2]]
    assert path.read_text().endswith("}\n")
    drop_metrics(tmp_path / "none.jsonl", "a", after=0)


def test_a_linked_folder_is_stored_once_and_a_new_one_leaves_the_old_files_alone(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "w").write_text("one")
    link_folder(tmp_path / "a", tmp_path / "b")
    assert os.path.samefile(tmp_path / "a" / "w", tmp_path / "b" / "w")
    link_folder(tmp_path / "a", tmp_path / "c", link=False)
    assert not os.path.samefile(tmp_path / "a" / "w", tmp_path / "c" / "w")


def test_links_become_copies_where_there_are_none(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "w").write_text("one")

    def refuse(*_):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    link_folder(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "w").read_text() == "one"
