"""What every training loop does around its steps: count, record, evaluate, save, stop early, resume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from rlvlm.batch import Batch
from rlvlm.engines.train.base import TrainEngine
from rlvlm.errors import ConfigError
from rlvlm.pipelines.checkpoint import Checkpoints
from rlvlm.pipelines.config import RunConfig
from rlvlm.pipelines.interrupts import Interrupts
from rlvlm.tracking.recorder import Recorder


class Stateful(Protocol):
    """Anything with a position to save."""

    def state_dict(self) -> dict[str, Any]:
        """The state, in plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it."""


class Batches(Stateful, Protocol):
    """Batches without end, with a position to save: a loader, or a stream of its prompts."""

    @property
    def epoch(self) -> float:
        """How often the records were gone through."""
        ...

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
        origin: fingerprint of what the stage is made of; a checkpoint of another is refused.
    """

    def __init__(
        self,
        run: RunConfig,
        engine: TrainEngine,
        recorder: Recorder,
        checkpoints: Checkpoints,
        parts: Stateful,
        evaluate: Callable[[], dict[str, float]] | None = None,
        origin: str = "",
    ) -> None:
        self.run, self.engine, self.recorder, self.checkpoints = run, engine, recorder, checkpoints
        self.parts, self._evaluate, self._origin = parts, evaluate, origin
        self.step = 0
        self._accuracy = -1.0  # of the evaluation after the newest step, if there was one
        self._interrupts = Interrupts(self._tell)
        self._earlier, self._began = 0.0, time.perf_counter()
        self._loader: Batches | None = None

    def resume(self, loader: Batches) -> bool:
        """Goes on from the newest good checkpoint, if there is one; says whether it did.

        Raises ``ConfigError`` for one that was made of something else, or lies behind ``run.steps``.
        """
        state = self.checkpoints.load_newest(self.engine)
        if state is None:
            return False
        self._refuse(state)
        self.step = int(state["step"])
        self._earlier, self._accuracy = float(state["train_seconds"]), float(state["accuracy"])
        loader.load_state_dict(state["loader"])
        self.parts.load_state_dict(state["parts"])
        return True

    def remaining(self, loader: Batches) -> Iterator[Batch]:
        """Batches for the steps that are left; ``step`` is the number of the one being done."""
        self._loader, self._began = loader, time.perf_counter()
        batches = iter(loader)
        while self.step < self.run.steps and not self._reached():
            with self.recorder.phase("data"):
                batch = next(batches)
            self.step += 1
            yield batch

    def saving_on_signals(self) -> contextlib.AbstractContextManager[None]:
        """A block of steps in which Ctrl-C and SIGTERM wait for the end of a step, which is then saved."""
        return self._interrupts.held_back()

    @property
    def train_seconds(self) -> float:
        """Wall clock of the steps so far, evaluations on the way and runs before a resume included."""
        return self._earlier + time.perf_counter() - self._began

    def finish_step(self, metrics: Mapping[str, float]) -> bool:
        """Evaluates where it is due, records the step, saves where that is due, and says whether ``stop_at`` is reached.

        The record comes first: a run that is killed between the two repeats steps, and their records are dropped then.
        """
        metrics = dict(metrics)
        if self._loader is not None:
            metrics["epoch"] = self._loader.epoch
        last = self.step == self.run.steps
        if self._evaluate is not None and _due(self.run.eval_every, self.step) and not last:
            with self.recorder.phase("evaluate"):
                metrics.update(self._evaluate())
        accuracy = metrics.get("eval/accuracy")
        self._accuracy = -1.0 if accuracy is None else accuracy  # None where every reward of the evaluation failed
        reached = self._reached()
        self.recorder.log(self.step, metrics)
        if _due(self.run.save_every, self.step) or reached or last or self._interrupts.pending:
            with self.recorder.phase("save"):
                self.save()
        self._interrupts.check()
        if reached:
            self.recorder.note(
                f"stopped at step {self.step}: sampled accuracy reached run.stop_at = {self.run.stop_at}"
            )
        return reached

    def save(self) -> None:
        """Writes a checkpoint as of the end of this step."""
        assert self._loader is not None  # remaining() was called: there is a step to save
        self.recorder.flush()
        state = {
            "loader": self._loader.state_dict(),
            "parts": self.parts.state_dict(),
            "train_seconds": self.train_seconds,
            "accuracy": self._accuracy,
            "origin": self._origin,
        }
        self.checkpoints.save(self.step, self.engine, state)

    def _reached(self) -> bool:
        return self.run.stop_at is not None and self._accuracy >= self.run.stop_at

    def _refuse(self, state: Mapping[str, Any]) -> None:
        where = self.checkpoints.path(int(state["step"]))
        if state["origin"] != self._origin:
            raise ConfigError(
                f"the checkpoint '{where}' was made of other settings or files; take it away, or start anew with "
                "run.resume=never."
            )
        if int(state["step"]) > self.run.steps:
            raise ConfigError(
                f"the checkpoint '{where}' lies behind run.steps = {self.run.steps}; set run.steps to {state['step']} or more, "
                "choose another run.name, or start anew with run.resume=never."
            )

    def _tell(self, signal: str) -> None:
        self.recorder.note(
            f"{signal}: step {self.step} is finished and saved first; once more ends at once, without saving"
        )


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
