"""What a pipeline talks to: one object that times phases, shows progress and hands each step to the trackers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, SupportsFloat

from rlvlm.registry import Part
from rlvlm.tracking.progress import StageProgress
from rlvlm.tracking.rundir import RunDir, drop_metrics
from rlvlm.tracking.samples import drop_training_samples
from rlvlm.tracking.timing import PhaseTimer
from rlvlm.tracking.trackers import TRACKERS


class Recorder:
    """Records a run, stage by stage.

    The report and the progress display know these names, with or without a reduction prefix: ``reward``, ``accuracy``,
    ``loss``, ``entropy``, ``grad_norm``, ``response_length``, ``eval/accuracy``, ``eval/greedy_accuracy``; every other
    metric is kept and shown too, further down. Use it as a context manager, so that trackers are closed and the
    terminal is given back whatever happens::

        with Recorder(run, trackers=["jsonl"]) as recorder:
            recorder.begin("rlvr", total=200)
            with recorder.phase("generate"):
                ...
            recorder.log(step, metrics)

    Args:
        trackers: nodes of ``run.trackers``, names or mappings with ``name``.
        config: what trackers may show beside the curves.
        show: whether progress is shown (on rank 0 only, say).
    """

    def __init__(
        self,
        run: RunDir,
        *,
        trackers: Sequence[str | Mapping[str, Any]] = ("jsonl",),
        run_name: str | None = None,
        config: Mapping[str, Any] | None = None,
        show: bool = True,
    ) -> None:
        self.run = run
        self._trackers: list[Part] = [TRACKERS.build(node) for node in trackers]
        self._given = {"run_dir": run, "run_name": run_name or run.title, "config": dict(config or {})}
        self._show = show
        self._stage = ""
        self._timer = PhaseTimer()
        self._progress: StageProgress | None = None

    def begin(self, stage: str, *, total: int, start: int = 0) -> None:
        """Begins a stage of ``total`` steps, of which ``start`` were done before a resume; times and progress start anew."""
        self._stage, self._timer = stage, PhaseTimer()
        if self._progress is not None:
            self._progress.close()
        self._progress = StageProgress(stage, total, start=start) if self._show else None
        for tracker in self._trackers:
            if hasattr(tracker.call, "rewind"):
                tracker.call.rewind(stage, start)
        drop_metrics(self.run.metrics, stage, after=start)
        drop_training_samples(self.run, stage, after=start)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Times the ``with`` block: ``time/<name>`` and ``memory/<name>`` of the step."""
        return self._timer.phase(name)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per phase since the stage began."""
        return dict(self._timer.totals)

    def log(self, step: int, metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
        """Records a step (counted from 1) with its metrics and the phases timed since the last one; returns both together."""
        full = {**{key: float(value) for key, value in metrics.items()}, **self._timer.collect()}
        for tracker in self._trackers:
            tracker({**self._given, "stage": self._stage, "step": step, "metrics": full})
        if self._progress is not None:
            self._progress.update(step, full)
        return full

    def flush(self) -> None:
        """Has trackers write to the disk what they were given; a checkpoint that is written next lies behind it."""
        for tracker in self._trackers:
            if hasattr(tracker.call, "flush"):
                tracker.call.flush()

    def note(self, text: str) -> None:
        """Shows one line that stays on the screen."""
        if self._progress is not None:
            self._progress.note(text)
        elif self._show:
            print(text, file=sys.stderr)

    def close(self) -> None:
        """Closes trackers and progress; may be called twice."""
        if self._progress is not None:
            self._progress.close()
        for tracker in self._trackers:
            if hasattr(tracker.call, "close"):
                tracker.call.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
