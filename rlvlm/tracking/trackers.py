"""Where metrics go: ``jsonl``, ``tensorboard``, ``wandb``, ``mlflow``, ``trackio``, and a user's own by decorator.

A tracker is a part like any other: it reads by name what it wants of :data:`READABLE`, and its keyword options are the
keys of its node in ``run.trackers``. A class may have ``close()``, ``flush()``, which is called before a checkpoint is
written, and ``rewind(stage, step)``, which is called when a stage begins or resumes: what was recorded of it after that
step (0 at its beginning) counts no more. The shortest tracker::

    @register_tracker("print")
    def print_metrics(step: int, metrics: dict[str, float]) -> None:
        print(step, metrics)
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from types import ModuleType
from typing import IO, Any

from rlvlm.errors import ConfigError
from rlvlm.registry import Registry
from rlvlm.tracking.rundir import RunDir, plain

READABLE = ("step", "metrics", "stage", "run_dir", "run_name", "config")
"""What a tracker may read: the step's number, its metrics, the stage's name, the :class:`RunDir`, the run's name, the config."""

TRACKERS = Registry("tracker", "trackers", readable=lambda: READABLE, traits={"package": None})
"""Trackers by name; the trait ``package`` names the extra package that one needs, so that a missing one is found at check time."""
register_tracker = TRACKERS.register


@register_tracker("jsonl")
class JsonlTracker:
    """Appends each step to ``metrics.jsonl`` in the run directory, one JSON object a line; the report draws its curves from it."""

    def __init__(self) -> None:
        self._file: IO[str] | None = None

    def __call__(self, step: int, stage: str, metrics: Mapping[str, float], run_dir: RunDir) -> None:
        if self._file is None:
            self._file = run_dir.metrics.open("a", encoding="utf-8")
        self._file.write(json.dumps({"stage": stage, "step": step, **plain(metrics)}) + "\n")
        self._file.flush()  # a run that is killed keeps its curve up to the last step

    def flush(self) -> None:
        """Makes what was written outlast a loss of power."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def rewind(self, stage: str, step: int) -> None:
        """Closes the file, which the recorder is about to write without the stage's records after ``step``."""
        self.close()

    def close(self) -> None:
        """Closes the file; the next record opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = None


@register_tracker("tensorboard")
class TensorboardTracker:
    """Writes scalars for TensorBoard (``tensorboard --logdir <run directory>/tensorboard``), tagged ``<stage>/<metric>``."""

    def __init__(self, *, folder: str = "tensorboard") -> None:
        self._folder = folder
        self._writer: Any = None

    def __call__(self, step: int, stage: str, metrics: Mapping[str, float], run_dir: RunDir) -> None:
        if self._writer is None:
            package = _need("tensorboard.summary", "tensorboard", "rlvlm")
            self._writer = package.Writer(str(run_dir.path / self._folder))
        for key, value in metrics.items():
            self._writer.add_scalar(f"{stage}/{key}", float(value), step)
        self._writer.flush()

    def close(self) -> None:
        """Writes what is buffered and closes the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@register_tracker("wandb", package="wandb")
class WandbTracker:
    """Logs to Weights & Biases (extra ``trackers``); ``mode: offline`` needs no account."""

    def __init__(
        self, *, project: str = "rlvlm", entity: str | None = None, mode: str = "online", tags: list[str] | None = None
    ) -> None:
        self._options = {"project": project, "entity": entity, "mode": mode, "tags": tags}
        self._run: Any = None

    def __call__(
        self,
        step: int,
        stage: str,
        metrics: Mapping[str, float],
        run_dir: RunDir,
        run_name: str,
        config: Mapping[str, Any],
    ) -> None:
        if self._run is None:
            wandb = _need("wandb", "wandb", "rlvlm[trackers]")
            self._run = wandb.init(
                **self._options,
                name=run_name,
                id=run_dir.id,
                resume="allow",
                dir=str(run_dir.path),
                config=dict(config),
            )
        # wandb's own step must never go back, and a second stage starts at 1 again: each stage brings its own axis
        self._run.log({**{f"{stage}/{key}": float(value) for key, value in metrics.items()}, f"{stage}/step": step})

    def close(self) -> None:
        """Finishes the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


@register_tracker("mlflow", package="mlflow")
class MlflowTracker:
    """Logs to MLflow (extra ``trackers``); without ``uri`` into a database inside the run directory."""

    def __init__(self, *, uri: str | None = None, experiment: str = "rlvlm") -> None:
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._run_id = ""

    def __call__(
        self,
        step: int,
        stage: str,
        metrics: Mapping[str, float],
        run_dir: RunDir,
        run_name: str,
        config: Mapping[str, Any],
    ) -> None:
        if self._client is None:
            self._open(run_dir, run_name, config)
        for key, value in metrics.items():
            self._client.log_metric(self._run_id, _mlflow_key(f"{stage}/{key}"), float(value), step=step)

    def _open(self, run_dir: RunDir, run_name: str, config: Mapping[str, Any]) -> None:
        mlflow = _need("mlflow", "mlflow", "rlvlm[trackers]")
        uri = self._uri or f"sqlite:///{run_dir.path / 'mlflow.db'}"
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
        self._run_id = self._client.create_run(experiment, run_name=run_name).info.run_id
        for key, value in flatten(config).items():
            self._client.log_param(self._run_id, _mlflow_key(key), str(value)[:500])  # MLflow refuses longer ones

    def close(self) -> None:
        """Marks the run as finished."""
        if self._client is not None:
            self._client.set_terminated(self._run_id)
            self._client = None


@register_tracker("trackio", package="trackio")
class TrackioTracker:
    """Logs to Trackio (extra ``trackers``), which keeps its data on this machine."""

    def __init__(self, *, project: str = "rlvlm", space: str | None = None) -> None:
        self._project, self._space = project, space
        self._trackio: ModuleType | None = None

    def __call__(
        self, step: int, stage: str, metrics: Mapping[str, float], run_name: str, config: Mapping[str, Any]
    ) -> None:
        if self._trackio is None:
            self._trackio = _need("trackio", "trackio", "rlvlm[trackers]")
            self._trackio.init(project=self._project, name=run_name, space_id=self._space, config=dict(config))
        self._trackio.log({f"{stage}/{key}": float(value) for key, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Finishes the run."""
        if self._trackio is not None:
            self._trackio.finish()
            self._trackio = None


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _need(module: str, package: str, install: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"tracker '{package}' needs the package '{package}', which can't be imported ({error}); "
            f"pip install '{install}', or take it out of run.trackers."
        ) from error


def _mlflow_key(key: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-./ " else "_" for letter in key)
