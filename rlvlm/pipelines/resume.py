"""What becomes of each stage when a run is started again: kept, gone on with, begun anew, or refused by name."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlvlm.errors import ConfigError
from rlvlm.pipelines import origin as origins
from rlvlm.pipelines.checkpoint import Checkpoints
from rlvlm.pipelines.config import Stage
from rlvlm.pipelines.origin import Origin, differences, origin_of, other_versions, read_origin
from rlvlm.tracking.rundir import PARTIAL, RunDir, drop_metrics, read_json
from rlvlm.tracking.samples import drop_training_samples

RESULT = "result.json"
_NEVER = "run.resume is 'never'"


@dataclass(frozen=True)
class StagePlan:
    """What is to be done with one stage.

    Attributes:
        action: ``keep`` its finished result, ``resume`` it, or ``begin`` it.
        origin: what it is made of.
        reasons: sentences for the user, without their full stop.
    """

    stage: Stage
    action: Literal["keep", "resume", "begin"]
    origin: Origin
    reasons: tuple[str, ...] = ()


def plan_stage(stage: Stage, run: RunDir, before: StagePlan | None) -> StagePlan:
    """Decides about one stage from what its folder holds; writes nothing.

    Raises ``ConfigError`` naming what has changed where the stage can't be gone on with.

    Args:
        before: the plan of the stage whose weights this one starts from; ``None`` when it starts from its model.
    """
    folder = run.stage(stage.name)
    stored = read_origin(folder)
    kept = before is not None and before.action == "keep"
    now = origin_of(stage, refer_to(before, run) if before is not None and kept else {}, stored)
    if stored is None:
        return StagePlan(stage, "begin", now, _refuse_unknown(stage, run))
    if stage.run.resume == "never":
        return StagePlan(stage, "begin", now, (f"stage '{stage.name}' is begun anew: {_NEVER}",))
    if changed := differences(stored, now):
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise ConfigError(
            f"the run directory holds stage '{stage.name}' with other settings ({changed[0]}{more}); put back what changed, "
            f"choose another run.name, or redo the stage with run.resume=never."
        )
    if before is not None and (not kept or stored.before != now.before):
        why = f"stage '{stage.name}' is redone: stage '{before.stage.name}', which it starts from, has changed"
        return StagePlan(stage, "begin", now, (why,))
    return _unless_longer(stage, run, stored, now)


def _unless_longer(stage: Stage, run: RunDir, stored: Origin, now: Origin) -> StagePlan:
    """The plan of a stage of which nothing but the length has changed."""
    now = now.lengthened(stored)
    checkpoints = Checkpoints(run.checkpoints / stage.name).steps()
    finished = is_finished(run, stage.name)
    done = max([*checkpoints, read_result(run, stage.name).get("steps", 0) if finished else 0])
    longer = now.length() != stored.length()
    if done > stage.run.steps:
        raise ConfigError(
            f"stage '{stage.name}' of the run directory has done {done} steps, and run.steps is {stage.run.steps}; set it to {done} "
            "or more, choose another run.name, or redo the stage with run.resume=never."
        )
    if finished and not longer:
        return StagePlan(stage, "keep", stored)
    if not checkpoints:
        why = "it is finished and its optimiser's state was not kept" if finished else "no checkpoint was written yet"
        return StagePlan(stage, "begin", origin_without_past(now), (f"stage '{stage.name}' begins at step 1: {why}",))
    told = [
        f"stage '{stage.name}': {change}, so that numbers may differ by rounding"
        for change in other_versions(stored, now)
    ]
    return StagePlan(stage, "resume", now, tuple(told))


def origin_without_past(origin: Origin) -> Origin:
    """The origin of a stage that has always had the length that it has now."""
    return dataclasses.replace(origin, lengths=[])


def begin_anew(plan: StagePlan, run: RunDir) -> None:
    """Deletes what the run directory holds of a stage, and writes down what it is made of now."""
    folder = run.stage(plan.stage.name)
    for old in (run.checkpoints / plan.stage.name, folder):
        aside = old.with_name(f".{old.name}{PARTIAL}")  # renamed first: nothing half deleted is ever gone on with
        shutil.rmtree(aside, ignore_errors=True)
        if old.exists():
            old.rename(aside)
            shutil.rmtree(aside)
    drop_metrics(run.metrics, plan.stage.name, after=0)
    drop_training_samples(run, plan.stage.name, after=0)
    folder.mkdir(parents=True)
    plan.origin.write(folder)


def refer_to(before: StagePlan, run: RunDir) -> dict[str, str]:
    """How a stage refers to the one that it starts from, which is finished: what it is made of, and which result it is."""
    made = str(read_result(run, before.stage.name).get("made", ""))
    return {"fingerprint": before.origin.fingerprint(), "made": made}


def is_finished(run: RunDir, stage: str) -> bool:
    """Whether a stage's result and weights are there."""
    return (run.stage(stage) / RESULT).exists() and (run.stage(stage) / "policy").is_dir()


def read_result(run: RunDir, stage: str) -> dict[str, Any]:
    """What ``result.json`` of a finished stage holds."""
    told: dict[str, Any] = read_json(
        run.stage(stage) / RESULT, dict, f"redo the stage with stages.{stage}.run.resume=never"
    )
    return told


def all_kept(plans: Sequence[StagePlan]) -> bool:
    """Whether there is nothing to do."""
    return all(plan.action == "keep" for plan in plans)


def _refuse_unknown(stage: Stage, run: RunDir) -> tuple[str, ...]:
    """Refuses a stage that says not what it is made of, unless it is to be redone anyway."""
    there = (run.stage(stage.name) / RESULT).exists() or Checkpoints(run.checkpoints / stage.name).steps()
    if there and stage.run.resume != "never":
        raise ConfigError(
            f"the run directory holds stage '{stage.name}' as another version of rlvlm wrote it, or without a readable "
            f"{origins.FILE}; choose another run.name, or redo the stage with run.resume=never."
        )
    return ()
