"""JSON files as lazy rows: the ranges agree with a whole parse, whatever the text holds."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlvlm.data.files import lines
from rlvlm.errors import DataError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=6)
    | st.sampled_from(['"', "\\", "]", '\\"', ",", "},{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), max_size=8)


@given(rows=ROWS, indent=st.sampled_from([None, 1]), ascii_only=st.booleans(), chunk=st.integers(1, 64))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arrays_are_cut_where_a_parser_would(
    rows: list[Any], indent: int | None, ascii_only: bool, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_CHUNK", chunk)  # so that strings and escapes lie across chunks
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    assert list(lines.json_array(str(path))) == rows


@given(
    rows=ROWS, newline=st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"]), last=st.booleans(), chunk=st.integers(1, 64)
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_are_rows_and_blank_ones_are_not(
    rows: list[Any], newline: str, last: bool, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_CHUNK", chunk)
    text = newline.join(json.dumps(row) for row in rows) + (newline if last else "")
    path = tmp_path / "a.jsonl"
    path.write_bytes(text.encode())
    assert list(lines.jsonl(str(path))) == rows


def test_json_lines_under_the_name_json_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n{"a": 2}\n')
    assert list(lines.json_array(str(path))) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("line", "message"),
    [("{broken", "no valid JSON"), ("[1]", "got list"), ("3", "got int"), ('{"a": "\ud800"}', "no valid JSON")],
)
def test_a_bad_line_is_named_by_file_and_row(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line.encode("utf-8", "surrogatepass") + b'\n{"a": 3}\n')
    rows = lines.jsonl(str(path))
    assert rows[2] == {"a": 3}
    with pytest.raises(DataError, match=rf"a.jsonl, row 1: .*{message}"):
        rows[1]


def test_an_array_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1}, {"a": 2}')
    with pytest.raises(DataError, match="cut off"):
        lines.json_array(str(path))


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    assert len(lines.jsonl(str(tmp_path / "a.jsonl"))) == 0


def test_rows_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    rows = lines.jsonl(str(tmp_path / "a.jsonl"))
    assert rows[0] == pickle.loads(pickle.dumps(rows))[0] == {"a": 1}


def test_threads_and_forked_processes_that_share_an_open_file_read_their_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"row": row, "pad": "x" * (row % 97)}) + "\n" for row in range(2000)))
    rows = lines.jsonl(str(path))
    assert rows[0]["row"] == 0, "the file is open before anything is forked"

    def read_own(step: int) -> None:
        for row in [*range(step, 2000, 4)] * 3:
            assert rows[row]["row"] == row

    children = [multiprocessing.get_context("fork").Process(target=read_own, args=(step,)) for step in range(2)]
    for child in children:
        child.start()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read_own, range(4)))
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
