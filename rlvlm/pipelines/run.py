"""Running a whole recipe: stage after stage, each from the weights of the one before."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from rlvlm.errors import ConfigError
from rlvlm.models.loading import load_policy
from rlvlm.pipelines.config import Stage
from rlvlm.pipelines.settings import fingerprint, keep_settings, same_settings
from rlvlm.pipelines.stages import PIPELINES, StageContext, StageResult
from rlvlm.registry import load_plugins
from rlvlm.tracking.recorder import Recorder
from rlvlm.tracking.report import write_report
from rlvlm.tracking.rundir import RunDir, Summary, write_json
from rlvlm.tracking.samples import SampleBook


def train(
    stages: Sequence[Stage],
    run_dir: str | Path,
    *,
    recipe: str = "custom",
    config: Mapping[str, Any] | None = None,
    show: bool = True,
) -> dict[str, Any]:
    """Trains a model through all stages and returns what ``summary.json`` holds.

    A stage that is done already in ``run_dir`` is passed over, one that was cut off goes on from its newest checkpoint. The
    last stage's weights lie in ``policy/`` of the run directory, as ``save_pretrained`` writes them.

    Args:
        stages: complete settings, in order.
        run_dir: where everything goes.
        recipe: name for the summary.
        config: the composed recipe, for trackers.
        show: whether progress is shown.
    """
    if not stages:
        raise ConfigError("there is no stage to run; a recipe has at least one.")
    run = RunDir.create(run_dir)
    if all(stage.run.resume == "never" for stage in stages):
        run.clear()
    disable_progress_bar()  # transformers' own bars would break into ours at every load and save
    summary = Summary(recipe=recipe, seed=stages[-1].run.seed)
    for stage in stages:
        load_plugins(stage.plugins)
    with Recorder(run, trackers=stages[-1].run.trackers, run_name=recipe, config=config, show=show) as recorder:
        context = StageContext(run, recorder, SampleBook(run))
        for before, stage in zip((None, *stages), stages, strict=False):
            if stage.run.threads is not None:
                torch.set_num_threads(stage.run.threads)
            _add(summary, stage, _run_stage(stage, before, context))
            summary.write(run)
    _export(run, stages[-1])
    summary.status = "finished"
    summary.write(run)
    write_report(run)
    return dataclasses.asdict(summary)


def _run_stage(stage: Stage, before: Stage | None, context: StageContext) -> StageResult:
    """Runs a stage, or takes what is there of it: its own finished result, or one kept in the cache."""
    folder = context.run.stage(stage.name)
    done = folder / "result.json"
    stage = _initialised(stage, before, context.run)
    if same_settings(folder, stage) and done.exists():
        return StageResult(**json.loads(done.read_text()))
    keep_settings(folder, stage)
    cached = Path(stage.run.dir) / ".cache" / f"{stage.name}-{fingerprint(stage)}" if stage.cache else None
    if cached is not None and (cached / "result.json").exists():
        shutil.copytree(cached / "policy", folder / "policy", dirs_exist_ok=True)
        result = StageResult(**json.loads((cached / "result.json").read_text()))
        result.details["cached"] = True
        context.recorder.note(f"{stage.name}: taken from {cached}, where it was made with the same settings")
    else:
        policy = load_policy(stage.model)
        result = PIPELINES.build(stage.pipeline)({"stage": stage, "policy": policy, "context": context})
        policy.save_pretrained(folder / "policy")
        if cached is not None:
            _keep(folder, cached, result)
    write_json(done, dataclasses.asdict(result))
    return result


def _initialised(stage: Stage, before: Stage | None, run: RunDir) -> Stage:
    """The stage with the model that it starts from: its own, or the weights of the stage before."""
    if stage.init is None:
        return stage
    if stage.init != "previous":
        raise ConfigError(f"stage '{stage.name}' has init '{stage.init}'; it is 'previous' or null.")
    if before is None:
        raise ConfigError(
            f"stage '{stage.name}' starts from the previous stage, but it is the first; set init to null."
        )
    path = run.stage(before.name) / "policy"
    return dataclasses.replace(stage, model=dataclasses.replace(stage.model, path=str(path), build=None))


def _keep(folder: Path, cached: Path, result: StageResult) -> None:
    partial = cached.with_name(f".{cached.name}.{os.getpid()}")
    shutil.copytree(folder / "policy", partial / "policy", dirs_exist_ok=True)
    write_json(partial / "result.json", dataclasses.asdict(result))
    shutil.rmtree(cached, ignore_errors=True)
    partial.rename(cached)


def _add(summary: Summary, stage: Stage, result: StageResult) -> None:
    for name in ("accuracy_before", "accuracy_after", "greedy_before", "greedy_after"):
        if name in result.numbers:
            setattr(summary, name, result.numbers[name])
    for phase, seconds in result.seconds.items():
        key = f"{stage.name}/{phase}"
        summary.seconds[key] = summary.seconds.get(key, 0.0) + seconds
    summary.train_seconds += result.train_seconds
    summary.steps += result.steps
    summary.details[stage.name] = {
        "pipeline": stage.pipeline,
        "steps": result.steps,
        "train_seconds": result.train_seconds,
        **{name: value for name, value in result.numbers.items() if name not in vars(summary)},
        **result.details,
    }


def _export(run: RunDir, stage: Stage) -> None:
    target = run.path / "policy"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run.stage(stage.name) / "policy", target)
