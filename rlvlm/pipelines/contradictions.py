"""Settings that are right alone and do nothing together: found before a run, so that none is ignored in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.errors import RlvlmError
from rlvlm.pipelines.config import Stage

if TYPE_CHECKING:
    from rlvlm.registry import Part, Registry


def contradictions(stage: Stage, *, supervised: bool, shared_with: Sequence[Stage] = ()) -> list[str]:
    """A sentence for each setting of a stage that would have no effect, or no gradient; empty where all is well.

    Args:
        supervised: the stage learns from given answers.
        shared_with: the stages of the run that sample theirs; what is set for all stages alike is meant for these.
    """
    own = _given_answers(stage, shared_with) if supervised else _sampled_answers(stage)
    return [*_early_stop(stage, supervised), *own]


def _early_stop(stage: Stage, supervised: bool) -> Iterator[str]:
    run = stage.run
    if run.stop_at is None and not (supervised and run.eval_every):
        return
    key = "run.eval_every" if run.stop_at is None else "run.stop_at"
    if run.stop_at is not None and not run.eval_every:
        yield f"run.stop_at is {run.stop_at}, but run.eval_every is 0, so nothing is evaluated on the way; set run.eval_every."
    if stage.data.eval is None:
        yield f"{key} needs held-out records to evaluate on, and data.eval is empty; set data.eval, or leave {key} out."


def _given_answers(stage: Stage, shared_with: Sequence[Stage]) -> Iterator[str]:
    for name in ("epochs", "mini_batches"):
        value = getattr(stage.actor, name)
        if value > 1 and all(
            getattr(other.actor, name) != value for other in shared_with
        ):  # what is below is out of range, and told so
            yield (
                f"actor.{name} is {value}, but supervised training takes one optimiser step for each batch of new records; leave "
                f"it at 1, and set run.steps and data.prompts_per_step."
            )


def _sampled_answers(stage: Stage) -> Iterator[str]:
    for key, value in (("temperature", 0), ("top_k", 1)):
        if getattr(stage.rollout, key) == value:
            yield (
                f"rollout.{key} is {value}, so all answers to a prompt are the same and nothing is learned from them; set it above "
                f"{value} (greedy accuracy is measured before and after training in any case)."
            )
    if stage.rollout.n == 1:
        yield from _alone(stage)
    yield from _idle_options(stage)
    default = AlgorithmConfig().max_refills
    if not stage.algorithm.filters and stage.algorithm.max_refills != default:
        yield (
            f"algorithm.max_refills is {stage.algorithm.max_refills}, but algorithm.filters is empty, so no group is ever dropped; "
            f"leave it at {default}, or set algorithm.filters."
        )
    if stage.algorithm.value_loss is not None:
        yield (
            "algorithm.value_loss trains a critic, and no pipeline here has one; leave it null, with an advantage that reads no "
            "values, such as grpo or reinforce_plus_plus."
        )


def _alone(stage: Stage) -> Iterator[str]:
    """What compares the answers of a group, where there is one answer."""
    from rlvlm.algos.registries import ADVANTAGES, FILTERS

    advice = "set rollout.n to 2 or more, or"
    estimator = _part(ADVANTAGES, stage.algorithm.advantage, stage)
    if estimator and estimator.traits["group_baseline"] and estimator.options.get("singleton", "zero") == "zero":
        yield (
            f"rollout.n is 1, but advantage '{estimator.name}' compares the answers of a group: every advantage would be 0; "
            f"{advice} choose an advantage without a group baseline, such as reinforce_plus_plus."
        )
    for node in stage.algorithm.filters:
        part = _part(FILTERS, node, stage)
        if part and part.traits["compares"]:
            yield (
                f"rollout.n is 1, but filter '{part.name}' compares the answers of a group: every group would be dropped; "
                f"{advice} take it out of algorithm.filters."
            )


def _idle_options(stage: Stage) -> Iterator[str]:
    """Options of parts that do nothing beside another option; those of conventions are for whichever options are chosen."""
    from rlvlm.algos.registries import ADVANTAGES, CORRECTIONS

    correction = stage.algorithm.correction
    corrections = correction if isinstance(correction, list) else [correction]
    for registry, node in ((ADVANTAGES, stage.algorithm.advantage), *((CORRECTIONS, one) for one in corrections)):
        part = _part(registry, node, stage) if isinstance(node, Mapping) else None
        if part is None:
            continue
        for option, (other, values) in part.traits["acts_with"].items():
            known, value = part.entry.options, part.options.get(other, part.entry.options[other].default)
            if option in node and node[option] != known[option].default and value not in values:
                yield (
                    f"{registry.kind} '{part.name}' has {option} {node[option]!r}, which does nothing where {other} is {value!r}; "
                    f"take it out, or set {other} to {' or '.join(str(one) for one in values)}."
                )


def _part(registry: Registry, node: Any, stage: Stage) -> Part | None:
    """A part with its options and those of the conventions; ``None`` for a node that is wrong, which the check of parts tells."""
    from rlvlm.algos.conventions import Conventions

    try:
        return registry.build(Conventions(stage.algorithm.conventions).fill(registry, node))
    except RlvlmError:
        return None
