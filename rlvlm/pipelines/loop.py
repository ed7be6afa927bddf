"""What every training loop does around its steps: count, record, evaluate, save, stop early, resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from rlvlm.batch import Batch
from rlvlm.engines.train.base import TrainEngine
from rlvlm.pipelines.checkpoint import Checkpoints
from rlvlm.pipelines.config import RunConfig
from rlvlm.tracking.recorder import Recorder


class Stateful(Protocol):
    """Anything with a position to save."""

    def state_dict(self) -> dict[str, Any]:
        """The state, in plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it."""


class Batches(Stateful, Protocol):
    """Batches without end, with a position to save: a loader, or a stream of its prompts."""

    def __iter__(self) -> Iterator[Batch]: ...


class StageLoop:
    """The frame around the steps of one stage; steps are counted from 1.

    Args:
        run: length, evaluation and checkpoint settings.
        engine: whose weights are saved.
        recorder: takes the metrics.
        checkpoints: where states go.
        parts: state beside the weights.
        evaluate: gives the metrics of a held-out evaluation, ``eval/accuracy`` among them; ``None`` evaluates never.
    """

    def __init__(
        self,
        run: RunConfig,
        engine: TrainEngine,
        recorder: Recorder,
        checkpoints: Checkpoints,
        parts: Stateful,
        evaluate: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        self.run, self.engine, self.recorder, self.checkpoints = run, engine, recorder, checkpoints
        self.parts, self._evaluate = parts, evaluate
        self.step = 0
        self._earlier, self._began = 0.0, time.perf_counter()
        self._loader: Batches | None = None

    def resume(self, loader: Batches) -> bool:
        """Goes on from the newest checkpoint, if there is one and ``run.resume`` allows it; says whether it did."""
        state = self.checkpoints.load_newest(self.engine) if self.run.resume == "auto" else None
        if state is not None:
            self.step, self._earlier = int(state["step"]), float(state["train_seconds"])
            loader.load_state_dict(state["loader"])
            self.parts.load_state_dict(state["parts"])
        return state is not None

    def remaining(self, loader: Batches) -> Iterator[Batch]:
        """Batches for the steps that are left; ``step`` is the number of the one being done."""
        self._loader, self._began = loader, time.perf_counter()
        batches = iter(loader)
        while self.step < self.run.steps:
            with self.recorder.phase("data"):
                batch = next(batches)
            self.step += 1
            yield batch

    @property
    def train_seconds(self) -> float:
        """Wall clock of the steps so far, evaluations on the way and runs before a resume included."""
        return self._earlier + time.perf_counter() - self._began

    def finish_step(self, metrics: Mapping[str, float]) -> bool:
        """Evaluates and saves where it is due, records the step, and says whether the stage has reached ``stop_at``."""
        metrics = dict(metrics)
        last = self.step == self.run.steps
        if self._evaluate is not None and _due(self.run.eval_every, self.step) and not last:
            with self.recorder.phase("evaluate"):
                metrics.update(self._evaluate())
        reached = self.run.stop_at is not None and metrics.get("eval/accuracy", -1.0) >= self.run.stop_at
        if _due(self.run.save_every, self.step) or reached or last:
            with self.recorder.phase("save"):
                self.save()
        self.recorder.log(self.step, metrics)
        if reached:
            self.recorder.note(
                f"stopped at step {self.step}: sampled accuracy reached run.stop_at = {self.run.stop_at}"
            )
        return reached

    def save(self) -> None:
        """Writes a checkpoint as of the end of this step."""
        assert self._loader is not None  # remaining() was called: there is a step to save
        state = {
            "loader": self._loader.state_dict(),
            "parts": self.parts.state_dict(),
            "train_seconds": self.train_seconds,
        }
        self.checkpoints.save(self.step, self.engine, state)


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
