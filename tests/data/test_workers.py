"""Chunks over processes, jobs that go on, progress that is shown."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlvlm.data.jobs import Job, fingerprints, write_atomic
from rlvlm.data.progress import Progress, clock
from rlvlm.data.workers import Chunk, plan_chunks, run_chunks
from rlvlm.errors import DataError


def square(task: Any, chunk: Chunk) -> None:
    """Writes the squares of a chunk's numbers; some tasks break at a chunk."""
    if chunk.number == task.get("breaks_at"):
        raise DataError(f"chunk {chunk.number} is bad")
    write_atomic(chunk.target, json.dumps([n * n for n in range(chunk.start, chunk.end)]).encode())


def run(folder: Path, workers: int, **task: Any) -> list[int]:
    job = Job(folder, {"what": "squares"})
    plan, pending = plan_chunks(job, 23, 5, ".json")
    with Progress("squares", 23, quiet=True) as progress:
        run_chunks(square, task, pending, workers=workers, progress=progress)
        assert progress.done == sum(chunk.end - chunk.start for chunk in pending)
    return [value for chunk in plan for value in json.loads(chunk.target.read_text())]


def test_several_processes_do_what_one_does(tmp_path: Path) -> None:
    assert run(tmp_path / "one", 1) == run(tmp_path / "two", 2) == [n * n for n in range(23)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_chunk_ends_the_work_and_keeps_what_is_finished(tmp_path: Path, workers: int) -> None:
    with pytest.raises(DataError, match="chunk 2 is bad"):
        run(tmp_path, workers, breaks_at=2)
    left = plan_chunks(Job(tmp_path, {"what": "squares"}), 23, 5, ".json")[1]
    assert 2 in [chunk.number for chunk in left]
    assert 0 not in [chunk.number for chunk in left]
    assert run(tmp_path, 1) == [n * n for n in range(23)]


def note_and_sleep(task: Any, chunk: Chunk) -> None:
    """Says which process does the work, and takes long."""
    write_atomic(Path(task["folder"]) / f"{os.getpid()}.pid", b"")
    time.sleep(60)


def work_for_long(folder: str) -> None:
    pending = plan_chunks(Job(folder, {}), 20, 5, ".json")[1]
    with Progress("naps", 20, quiet=True) as progress:
        run_chunks(note_and_sleep, {"folder": folder}, pending, workers=2, progress=progress)


@pytest.mark.slow
def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    parent = multiprocessing.get_context("spawn").Process(target=work_for_long, args=(str(tmp_path),))
    parent.start()
    wait_until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    parent.kill()
    parent.join()
    workers = [int(file.stem) for file in tmp_path.glob("*.pid")]
    wait_until(lambda: not any(map(psutil.pid_exists, workers)))


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    Job(tmp_path, {"a": 1, "b": [1, 2]})
    Job(tmp_path, {"b": (1, 2), "a": 1})
    with pytest.raises(DataError, match=r"other settings \(a: 1, now 2\)"):
        Job(tmp_path, {"a": 2, "b": [1, 2]})


def test_a_fingerprint_tells_other_files_and_not_when_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "a.jsonl"
    seen = set()
    for content in (b"a" * 200_000, b"a" * 199_999 + b"b", b"b" + b"a" * 199_999, b"a"):
        file.write_bytes(content)
        seen.add(str(fingerprints([str(file)])))
        assert fingerprints([str(tmp_path / "data")]) == fingerprints([str(file)]), "a folder is the files in it"
    assert len(seen) == 4
    before = fingerprints([str(file)])
    os.utime(file, (0, 0))
    assert fingerprints([str(file)]) == before
    assert fingerprints(["owner/name@train"]) != fingerprints(["owner/name@test"])


def test_half_written_files_of_dead_processes_are_swept_away(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".x.npy.99999999.partial", tmp_path / f".y.npy.{os.getpid()}.partial"
    for file in (dead, alive):
        file.write_text("half")
    Job(tmp_path, {})
    assert not dead.exists()
    assert alive.exists()


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        path.write_text("half")
        raise DataError("stop")

    with pytest.raises(DataError):
        write_atomic(tmp_path / "a", broken)
    assert not (tmp_path / "a").exists()


def test_progress_tells_rate_and_eta(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("rlvlm.data.progress.time.monotonic", lambda: now[0])
    shown = io.StringIO()
    with Progress("counting", 100, done=20, file=shown) as progress:
        now[0] = 20.0
        progress.add(40)
        now[0] = 40.0
        progress.add(40)
    lines = shown.getvalue().splitlines()
    assert lines[0] == "counting: going on behind 20 of 100 rows"
    assert lines[1].startswith("counting: 60/100 rows (60%), 2/s, ETA 20 s")
    assert lines[-1].startswith("counting: 100/100 rows (100%), 2/s, 40 s")
    assert [clock(seconds) for seconds in (3, 185, 7385, float("inf"))] == ["3 s", "3:05", "2:03:05", "?"]


def _die(task: object, chunk: Chunk) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_told_in_a_sentence(tmp_path: Path) -> None:
    chunk = Chunk(0, 0, 1, tmp_path / "0")
    with pytest.raises(DataError, match="a worker process was killed"):
        run_chunks(_die, None, [chunk], workers=2, progress=Progress("x", 1, quiet=True))
