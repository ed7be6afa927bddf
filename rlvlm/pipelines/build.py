"""From the settings of a stage to its parts."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

from rlvlm.algorithm import Algorithm
from rlvlm.data.loader import Loader
from rlvlm.engines.inference.base import build_inference_engine
from rlvlm.engines.train.base import TRAIN_ENGINES, TrainEngine
from rlvlm.errors import ConfigError, nearest
from rlvlm.pipelines.config import Stage
from rlvlm.pipelines.gates import VisionGate
from rlvlm.pipelines.planner import plan_passes
from rlvlm.pipelines.reward_names import check_reward_names
from rlvlm.pipelines.rlvr import RLVR
from rlvlm.roles.actor import Actor
from rlvlm.roles.reference import Reference
from rlvlm.roles.reward import Reward
from rlvlm.roles.rollout import Rollout

if TYPE_CHECKING:
    from rlvlm.models.policy import Policy


def build_engine(stage: Stage, policy: Policy, *, steps: int | None) -> TrainEngine:
    """The stage's train engine, prepared with the policy.

    Args:
        steps: optimiser steps of the whole stage, for the schedule; ``None`` makes an engine without an optimiser.
    """
    engine: TrainEngine = TRAIN_ENGINES.build(stage.train_engine)({})
    engine.prepare(policy, None if steps is None else stage.actor.optimizer, steps or 0)
    return engine


def build_rollout(stage: Stage, policy: Policy, engine: TrainEngine) -> Rollout:
    """The rollout of a stage, on an engine that shares the policy's module where it can and computes as the trainer does."""
    inference = build_inference_engine(stage.inference_engine, policy=policy, shared=True, autocast=engine.autocast)
    return Rollout(inference, stage.rollout, seed=stage.run.seed)


def build_rlvr(stage: Stage, policy: Policy, reward: Reward) -> tuple[RLVR, TrainEngine]:
    """All parts of an RL stage around a policy, with the plan of passes; returns also the actor's engine."""
    algorithm = Algorithm(stage.algorithm)
    check_reward_names(stage.algorithm, reward.runner.rules)
    per_batch = stage.actor.epochs * stage.actor.mini_batches
    passes = plan_passes(
        algorithm.needs,
        algorithm.reads_before_update,
        optimizer_steps=per_batch,
        dropout_active=policy.dropout_active,
    )
    frozen = copy.deepcopy(policy) if passes.ref_logp and not policy.has_adapters else None
    engine = build_engine(stage, policy, steps=stage.run.steps * per_batch)
    actor = Actor(engine, algorithm, stage.actor, prox_from_logp=passes.prox_from_logp, seed=stage.run.seed)
    gate = VisionGate(engine, stage.run.gates, stage.actor.token_budget)
    reference = _reference(stage, engine, frozen) if passes.ref_logp else None
    return RLVR(build_rollout(stage, policy, engine), reward, actor, reference, algorithm, passes, gate), engine


def eval_loader(stage: Stage, policy: Policy) -> Loader | None:
    """Held-out prompts in batches of ``run.eval_batch``; ``None`` when the stage names none."""
    if stage.data.eval is None:
        return None
    data = dataclasses.replace(stage.data, prompts_per_step=stage.run.eval_batch)
    return Loader(data, policy.family, stage.run.seed, split="eval")


def accuracy_rule(stage: Stage) -> str:
    """The reward rule whose mean is called accuracy; raises ``ConfigError`` if the stage names another than its rules."""
    rules = list(stage.reward.rules)
    if not rules:
        raise ConfigError("reward.rules is empty; name at least one rule, such as {number: 1.0}.")
    rule = stage.run.accuracy_rule or rules[0]
    if rule not in rules:
        raise ConfigError(f"run.accuracy_rule is '{rule}', which is none of reward.rules{nearest(rule, rules)}.")
    return rule


def _reference(stage: Stage, engine: TrainEngine, frozen: Policy | None) -> Reference:
    """A frozen copy of the policy; or, where an adapter trains that started at zero, the policy with its adapter off."""
    if frozen is None:
        return Reference(engine, stage.actor.token_budget, adapter_off=True)
    return Reference(build_engine(stage, frozen, steps=None), stage.actor.token_budget)
