"""Runs that are killed (SIGKILL) just before their n-th change of a file, and then started again; a program of its own.

``python -m tests.pipelines.killing FOLDER EVERY`` runs two stages once to the end in ``FOLDER/whole`` and prints how many
changes that made. Then, for each n = 1, 1 + EVERY, …, it kills such a run before its n-th change and resumes it in
``FOLDER/n``. Each run is a fork of this process, which has imported everything and has no other thread.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlvlm.models.loading import load_policy
from rlvlm.pipelines.config import Stage
from rlvlm.pipelines.run import train
from rlvlm.tracking.trackers import JsonlTracker
from tests.pipelines.miniature import rlvr_stage, sft_stage

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree", "test.line"}


def stages() -> list[Stage]:
    """A supervised stage that saves at each step, then reinforcement learning that saves at its second."""
    few = {"eval_prompts": 4, "eval_batch": 4, "sample_rows": 2}
    warmup = sft_stage(steps=2, save_every=1, **few)
    return [warmup, rlvr_stage(init="previous", steps=3, save_every=2, **few)]


def run(folder: Path) -> None:
    """One whole run."""
    train(stages(), folder, show=False)


def in_fork(work: Callable[[], Any]) -> int:
    """The wait status of a forked process that did the work."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def counting(folder: Path, at: int | None, told: Path | None = None) -> None:
    """Runs while each change of a file in the folder is counted; is killed before change number ``at``."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in CHANGES or writes) and str(arguments[0]).startswith(str(folder)):
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    halve_lines(folder)
    sys.addaudithook(hook)
    run(folder)
    if told is not None:
        told.write_text(str(count))


def halve_lines(folder: Path) -> None:
    """Writes each record of the metrics in two halves, so that a run can be killed between them."""
    write = JsonlTracker.__call__

    def halved(self: JsonlTracker, step: int, stage: str, metrics: Any, run_dir: Any) -> None:
        write(self, step, stage, metrics, run_dir)
        path = run_dir.metrics
        whole = path.read_bytes()
        start = whole.rstrip(b"\n").rfind(b"\n") + 1
        os.truncate(path, (start + len(whole)) // 2)
        sys.audit("test.line", str(folder))
        with path.open("rb+") as file:
            file.write(whole)
        sys.audit("test.line", str(folder))

    JsonlTracker.__call__ = halved  # type: ignore[method-assign]


def main(folder: Path, every: int) -> None:
    """Runs, kills, resumes."""
    load_policy(stages()[0].model)  # whatever is imported late
    assert in_fork(lambda: counting(folder / "whole", None, folder / "count")) == 0
    count = int((folder / "count").read_text())
    for at in range(1, count + 1, every):
        killed = in_fork(lambda at=at: counting(folder / str(at), at))  # type: ignore[misc]
        assert os.WIFSIGNALED(killed), at
        assert in_fork(lambda at=at: run(folder / str(at))) == 0, at  # type: ignore[misc]
    print(count)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
