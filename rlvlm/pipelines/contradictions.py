"""Settings that are right alone and do nothing together: found before a run, so that none is ignored in silence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlvlm.errors import RlvlmError
from rlvlm.pipelines.config import Stage


def contradictions(stage: Stage, *, supervised: bool) -> list[str]:
    """A sentence for each setting of a stage that would have no effect, or no gradient; empty where all is well.

    Args:
        supervised: the stage learns from given answers.
    """
    return [*_early_stop(stage, supervised), *(_given_answers(stage) if supervised else _sampled_answers(stage))]


def _early_stop(stage: Stage, supervised: bool) -> Iterator[str]:
    run = stage.run
    if run.stop_at is None and not (supervised and run.eval_every):
        return
    key = "run.eval_every" if run.stop_at is None else "run.stop_at"
    if run.stop_at is not None and not run.eval_every:
        yield f"run.stop_at is {run.stop_at}, but run.eval_every is 0, so nothing is evaluated on the way; set run.eval_every."
    if stage.data.eval is None:
        yield f"{key} needs held-out records to evaluate on, and data.eval is empty; set data.eval, or leave {key} out."


def _given_answers(stage: Stage) -> Iterator[str]:
    for name in ("epochs", "mini_batches"):
        value = getattr(stage.actor, name)
        if value > 1:  # what is below is out of range, and told so
            yield (
                f"actor.{name} is {value}, but supervised training takes one optimiser step for each batch of new records; leave "
                f"it at 1, and set run.steps and data.prompts_per_step."
            )


def _sampled_answers(stage: Stage) -> Iterator[str]:
    if stage.rollout.temperature == 0:
        yield (
            "rollout.temperature is 0, so all answers to a prompt are the same and nothing is learned from them; set it above 0 "
            "(greedy accuracy is measured before and after training in any case)."
        )
    estimator = _estimator(stage.algorithm.advantage)
    if stage.rollout.n == 1 and estimator is not None:
        singleton = estimator.given.get("singleton", _convention(stage, estimator.name))
        if estimator.traits["group_baseline"] and singleton in (None, "zero"):
            yield (
                f"rollout.n is 1, but advantage '{estimator.name}' compares the answers of a group: every advantage would be 0; "
                "set rollout.n to 2 or more, or choose an advantage without a group baseline, such as reinforce_plus_plus."
            )
    if stage.algorithm.value_loss is not None:
        yield (
            "algorithm.value_loss trains a critic, and no pipeline here has one; leave it null, with an advantage that reads no "
            "values, such as grpo or reinforce_plus_plus."
        )


class _Estimator:
    """An advantage estimator by name, with the options that its node gives and its traits."""

    def __init__(self, name: str, given: dict[str, Any], traits: dict[str, Any]) -> None:
        self.name, self.given, self.traits = name, given, traits


def _estimator(node: Any) -> _Estimator | None:
    """``None`` for a node that is wrong, which the check of parts tells."""
    from rlvlm.algos.registries import ADVANTAGES

    try:
        part = ADVANTAGES.build(node)
    except RlvlmError:
        return None
    given = {} if isinstance(node, str) else dict(node)
    return _Estimator(node if isinstance(node, str) else str(given["name"]), given, dict(part.traits))


def _convention(stage: Stage, name: str) -> Any:
    """The ``singleton`` that the algorithm's conventions give an estimator whose node gives none."""
    of_kind = stage.algorithm.conventions.get("advantages", {})
    own = of_kind.get(name, {}) if isinstance(of_kind, dict) else {}
    return own.get("singleton") if isinstance(own, dict) else None
