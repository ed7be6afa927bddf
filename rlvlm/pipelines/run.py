"""Running a whole recipe: stage after stage, each from the weights of the one before."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from rlvlm.errors import ConfigError, RlvlmError, SettingsError, StorageError
from rlvlm.models.loading import load_policy
from rlvlm.pipelines.checkpoint import Checkpoints
from rlvlm.pipelines.config import Stage
from rlvlm.pipelines.contradictions import contradictions
from rlvlm.pipelines.resume import RESULT, StagePlan, all_kept, begin_anew, plan_stage, read_result, refer_to
from rlvlm.pipelines.stages import PIPELINES, StageContext, StageResult, is_supervised
from rlvlm.registry import load_plugins
from rlvlm.tracking.lock import locked
from rlvlm.tracking.recorder import Recorder
from rlvlm.tracking.report import write_report
from rlvlm.tracking.rundir import (
    PARTIAL,
    RunDir,
    Summary,
    link_folder,
    read_summary,
    write_atomically,
    write_json,
)
from rlvlm.tracking.samples import SampleBook
from rlvlm.tracking.storage import saving, writing


def train(
    stages: Sequence[Stage],
    run_dir: str | Path,
    *,
    recipe: str = "custom",
    config: Mapping[str, Any] | None = None,
    config_text: str | None = None,
    show: bool = True,
) -> dict[str, Any]:
    """Trains a model through all stages and returns what ``summary.json`` holds.

    A stage that is done already in ``run_dir`` is passed over, one that was cut off goes on from its newest checkpoint. The
    last stage's weights lie in ``policy/`` of the run directory, as ``save_pretrained`` writes them. Nothing is written
    before it is sure that the run may go on there: ``ConfigError`` where another process uses the directory or where it
    holds a run of other settings or files, ``StorageError`` where it can't be written.

    Args:
        stages: complete settings, in order.
        run_dir: where everything goes.
        recipe: name for the summary.
        config: the composed recipe, for trackers.
        config_text: the same as ``config.yaml`` of the run directory shall hold it; ``None`` writes none.
        show: whether progress is shown.
    """
    if not stages:
        raise ConfigError("there is no stage to run; a recipe has at least one.")
    for stage in stages:
        load_plugins(stage.plugins)
    _refuse_contradictions(stages)
    run = RunDir.create(run_dir)
    with writing(run.path), locked(run.path):
        plans = _plan(stages, run)
        summary = Summary(recipe=recipe, seed=stages[-1].run.seed, model=model_name(stages[0]))
        summary.started = str(read_summary(run).get("started") or summary.started)  # of a run that is resumed
        run.sweep()
        if all_kept(plans) and read_summary(run).get("status") == "finished" and run.policy.is_dir():
            if not run.report.exists() or run.report.stat().st_mtime_ns < run.summary.stat().st_mtime_ns:
                write_report(run)  # killed in between
            return {**read_summary(run), "already_finished": True}
        if all(stage.run.resume == "never" for stage in stages):
            run.clear()
        if config_text is not None:
            write_atomically(run.config, config_text)
        with _marking_the_end(run, summary):
            _run_stages(plans, run, summary, config=config, show=show)
    return dataclasses.asdict(summary)


def _refuse_contradictions(stages: Sequence[Stage]) -> None:
    """Raises ``SettingsError`` for settings that would do nothing, as ``rlvlm check`` tells them."""
    told = []
    sampling = [stage for stage in stages if not is_supervised(stage)]
    for stage in stages:
        told += contradictions(stage, supervised=is_supervised(stage), shared_with=sampling)
    if told:
        raise SettingsError(told)


def model_name(stage: Stage) -> str:
    """The model that a run begins with: its path, or the name of its builder."""
    node = stage.model.build
    return str(stage.model.path or (node.get("name") if isinstance(node, Mapping) else node) or "")


def _plan(stages: Sequence[Stage], run: RunDir) -> list[StagePlan]:
    plans: list[StagePlan] = []
    for stage in stages:
        if stage.init not in (None, "previous"):
            raise ConfigError(f"stage '{stage.name}' has init '{stage.init}'; it is 'previous' or null.")
        if stage.init is not None and not plans:
            raise ConfigError(
                f"stage '{stage.name}' starts from the previous stage, but it is the first; set init to null."
            )
        plans.append(plan_stage(stage, run, plans[-1] if stage.init is not None else None))
    return plans


@contextlib.contextmanager
def _marking_the_end(run: RunDir, summary: Summary) -> Iterator[None]:
    """Says in ``summary.json`` and in the report how the run ended, and why where it was early."""
    try:
        yield
    except BaseException as error:  # an interrupt, a signal, a full disk or a fault: raised again below
        plain = {KeyboardInterrupt: "interrupted", SystemExit: "terminated"}
        message = str(error) if isinstance(error, RlvlmError) else f"{type(error).__name__}: {error}"
        summary.status = f"stopped: {plain.get(type(error), message)}"
        with contextlib.suppress(OSError, StorageError):
            summary.write(run)
            write_report(run)
        raise
    summary.status = "finished"
    summary.write(run)
    write_report(run)


def _run_stages(
    plans: Sequence[StagePlan], run: RunDir, summary: Summary, *, config: Mapping[str, Any] | None, show: bool
) -> None:
    disable_progress_bar()  # transformers' own bars would break into ours at every load and save
    last = plans[-1].stage
    with Recorder(run, trackers=last.run.trackers, run_name=_title(last, run), config=config, show=show) as recorder:
        context = StageContext(run, recorder, SampleBook(run))
        before: StagePlan | None = None
        for planned in plans:
            plan = _started_from(planned, before, run)
            if plan.stage.run.threads is not None:
                torch.set_num_threads(plan.stage.run.threads)
            for reason in plan.reasons:
                recorder.note(f"{reason}.")
            _add(summary, plan.stage, _run_stage(plan, before, context))
            summary.write(run)
            _prune(plan.stage, run, last=planned is plans[-1])
            before = plan
    link_folder(run.stage(last.name) / "policy", run.policy)


def _started_from(plan: StagePlan, before: StagePlan | None, run: RunDir) -> StagePlan:
    """The plan of a stage that knows the very result that it starts from, now that the stage before has ended."""
    if plan.action == "keep" or plan.stage.init is None or before is None:
        return plan
    return dataclasses.replace(plan, origin=dataclasses.replace(plan.origin, before=refer_to(before, run)))


def _run_stage(plan: StagePlan, before: StagePlan | None, context: StageContext) -> StageResult:
    """Runs a stage, or takes what is there of it: its own finished result, or one kept in the cache."""
    stage, run = plan.stage, context.run
    folder = run.stage(stage.name)
    if plan.action == "keep":
        return StageResult(**read_result(run, stage.name))
    if stage.init is not None and before is not None:
        policy_folder = str(run.stage(before.stage.name) / "policy")
        stage = dataclasses.replace(stage, model=dataclasses.replace(stage.model, path=policy_folder, build=None))
    if plan.action == "begin":
        begin_anew(plan, run)
    else:
        (folder / RESULT).unlink(missing_ok=True)
        plan.origin.write(folder)
    cached = _cache_of(plan)
    if cached is not None and plan.action == "begin" and (cached / RESULT).exists():
        link_folder(cached / "policy", folder / "policy", link=False)
        result = StageResult(**json.loads((cached / RESULT).read_text(encoding="utf-8")))
        result.details["cached"] = True
        context.recorder.note(f"{stage.name}: taken from {cached}, where it was made with the same settings")
    else:
        policy = load_policy(stage.model, stage.run.seed)
        context.origin = plan.origin.identity()
        result = PIPELINES.build(stage.pipeline)({"stage": stage, "policy": policy, "context": context})
        result.made = uuid.uuid4().hex
        _save_policy(policy, folder / "policy")
        if cached is not None:
            _keep(folder, cached, result)
    write_json(folder / RESULT, dataclasses.asdict(result))
    return result


def _save_policy(policy: Any, target: Path) -> None:
    partial = target.with_name(f".{target.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with saving("the model", target.parent):
            policy.save_pretrained(partial)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _cache_of(plan: StagePlan) -> Path | None:
    """Where the stage's weights are kept for other runs; a stage that was made longer is of its run alone."""
    if not plan.stage.cache or plan.origin.lengths:
        return None
    return Path(plan.stage.run.dir).expanduser() / ".cache" / f"{plan.stage.name}-{plan.origin.fingerprint()}"


def _keep(folder: Path, cached: Path, result: StageResult) -> None:
    partial = cached.with_name(f".{cached.name}.{os.getpid()}")
    with saving("the cached model", cached.parent):
        shutil.copytree(folder / "policy", partial / "policy", dirs_exist_ok=True)
        write_json(partial / RESULT, dataclasses.asdict(result))
        shutil.rmtree(cached, ignore_errors=True)
        partial.rename(cached)


def _prune(stage: Stage, run: RunDir, *, last: bool) -> None:
    """Drops the checkpoints of a finished stage, but for the newest where ``run.keep_finished`` asks for it."""
    kept = stage.run.keep_finished == "all" or (stage.run.keep_finished == "last" and last)
    Checkpoints(run.checkpoints / stage.name).prune(1 if kept else 0)


def _title(stage: Stage, run: RunDir) -> str:
    name = stage.run.name
    return name if name and not run.path.name.isdigit() else run.title


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
        **result.numbers,
        **result.details,
    }
