"""Work on a source's rows in chunks, by one process or several, each chunk's result a file of a job."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvlm.data.config import DataConfig
from rlvlm.data.jobs import Job
from rlvlm.data.progress import Progress
from rlvlm.data.sources import Source, open_sources
from rlvlm.errors import DataError
from rlvlm.registry import load_plugins

if TYPE_CHECKING:
    from rlvlm.data.prompts import PromptFamily


@dataclass(frozen=True)
class SourceTask:
    """How a process gets at the rows and the family: pickled to workers, opened there once.

    Attributes:
        config: with one source under ``train``.
        make_family: makes the family, a function that pickles; ``None`` where none is needed.
        plugins: files of the user's own formats and sources.
        seed: of sources that make their records.
    """

    config: DataConfig
    make_family: Callable[[], PromptFamily] | None = None
    plugins: tuple[str, ...] = ()
    seed: int = 0

    def source(self) -> Source:
        """The opened source, the same object at every call in one process."""
        return _opened(self)[0]

    def family(self) -> PromptFamily:
        """The family, made once in each process."""
        family = _opened(self)[1]
        assert family is not None  # tasks that count tokens are given a maker
        return family


_open_tasks: dict[
    int, tuple[SourceTask, Source, PromptFamily | None]
] = {}  # by id; the task is kept, so ids stay its own


def _opened(task: SourceTask) -> tuple[Source, PromptFamily | None]:
    if id(task) not in _open_tasks:
        load_plugins(task.plugins)
        (source,) = open_sources(task.config, "train", task.seed)
        _open_tasks[id(task)] = (task, source, None if task.make_family is None else task.make_family())
    return _open_tasks[id(task)][1:]


@dataclass(frozen=True)
class Chunk:
    """A stretch of work and the file of its result."""

    number: int
    start: int
    end: int
    target: Path


def plan_chunks(job: Job, total: int, size: int, suffix: str) -> tuple[list[Chunk], list[Chunk]]:
    """All chunks of ``total`` units, and those whose file is not there yet."""
    chunks = [
        Chunk(number, start, min(start + size, total), job.part(number, suffix))
        for number, start in enumerate(range(0, total, size))
    ]
    finished = job.finished(len(chunks), suffix)
    return chunks, [chunk for chunk, done in zip(chunks, finished, strict=True) if not done]


def run_chunks(
    work: Callable[[Any, Chunk], None],
    task: Any,
    pending: Sequence[Chunk],
    *,
    workers: int,
    progress: Progress,
) -> None:
    """Calls ``work(task, chunk)`` for each chunk and counts its units as progress, over ``workers`` processes when there are several.

    The first error ends the work and is raised here; finished chunks stay finished.
    """
    if workers <= 1:
        for chunk in pending:
            work(task, chunk)
            progress.add(chunk.end - chunk.start)
        return
    try:
        _run_parallel(work, task, pending, workers, progress)
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process was killed, most often since memory ran out; what is finished is kept: run the same command again, with "
            "fewer workers if it was memory."
        ) from error


def _run_parallel(
    work: Callable[[Any, Chunk], None], task: Any, pending: Sequence[Chunk], workers: int, progress: Progress
) -> None:
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_set_task, initargs=(task,)) as pool:
        running: dict[Future[None], Chunk] = {}
        waiting = list(reversed(pending))
        while waiting or running:
            while waiting and len(running) < 2 * workers:
                chunk = waiting.pop()
                running[pool.submit(_run_in_worker, work, chunk)] = chunk
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                chunk = running.pop(future)
                error = future.exception()
                if error is not None:
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise error
                progress.add(chunk.end - chunk.start)


_task: Any = None


def _set_task(task: Any) -> None:
    global _task
    _task = task
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when the one that started it is killed: the pool's own workers would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_in_worker(work: Callable[[Any, Chunk], None], chunk: Chunk) -> None:
    work(_task, chunk)
