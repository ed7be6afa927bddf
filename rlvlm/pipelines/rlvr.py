"""Reinforcement learning with verifiable rewards: the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rlvlm.algorithm import Algorithm
from rlvlm.batch import Batch
from rlvlm.data.loader import Loader
from rlvlm.fields import FIELDS
from rlvlm.pipelines.config import RunConfig
from rlvlm.pipelines.gates import VisionGate, check_parity
from rlvlm.pipelines.loop import StageLoop
from rlvlm.pipelines.planner import Passes
from rlvlm.roles.actor import Actor
from rlvlm.roles.reference import Reference
from rlvlm.roles.reward import Reward
from rlvlm.roles.rollout import Rollout
from rlvlm.tracking.metrics import reduce_metrics
from rlvlm.tracking.recorder import Recorder


@dataclass
class RLVR:
    """The parts of one run, and what they do in a step.

    Attributes:
        passes: what the planner found to be needed.
        gate: measures that the picture matters; ``None`` switches it off.
    """

    rollout: Rollout
    reward: Reward
    actor: Actor
    reference: Reference | None
    algorithm: Algorithm
    passes: Passes
    gate: VisionGate | None = None

    def step(self, prompts: Batch, step: int, recorder: Recorder) -> dict[str, float]:
        """One batch: generate, score, compare, estimate, update, hand the weights over. Returns the step's metrics."""
        with recorder.phase("generate"):
            batch = self.rollout.generate(prompts, step)
        with recorder.phase("reward"):
            batch = self.reward.score(batch)
            scored = describe(batch, self.actor.version)
            if self.passes.greedy:
                batch = self._greedy_baseline(batch, prompts, step)
            batch = self.algorithm.filter(batch)
        if not len(batch):
            return {**_collected(batch), **scored, "sum/skipped_batches": 1.0}
        with recorder.phase("logp"):
            batch = self._compute_logp(batch)
        with recorder.phase("advantages"):
            batch = self.algorithm.estimate_advantages(batch)
        if self.gate is not None:
            with recorder.phase("gates"):
                scored.update(self.gate.check(batch, step))
        with recorder.phase("update"):
            metrics = self.actor.update(batch)
        with recorder.phase("sync"):
            self.rollout.update_weights(self.actor.weights(), version=self.actor.version)
        return {**_collected(batch), **scored, **metrics}

    def _compute_logp(self, batch: Batch) -> Batch:
        if self.passes.prox_logp:
            batch = self.actor.compute_logp(batch)
        if self.reference is not None:
            batch = self.reference.compute_logp(batch)
        for name in self.passes.written:
            writer = FIELDS[name].writer
            assert writer is not None  # the planner lists only fields with one
            batch = batch.with_({name: writer(batch)})
        return batch

    def _greedy_baseline(self, batch: Batch, prompts: Batch, step: int) -> Batch:
        """Adds ``greedy_rewards``; groups whose greedy answer could not be scored leave the batch."""
        answers = self.reward.score(self.rollout.generate_once(prompts, greedy=True, step=step))
        uids = [answers.prompts[group].uid for group in answers["group_ids"].tolist()]
        of_uid = dict(zip(uids, answers["rewards"].tolist(), strict=True))
        scored = torch.tensor([prompt.uid in of_uid for prompt in batch.prompts])
        batch = batch.filter(scored[batch["group_ids"]])
        return batch.with_(greedy_rewards=torch.tensor([of_uid[prompt.uid] for prompt in batch.prompts]))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds beside weights, optimiser and the loader's position."""
        return {
            "actor": self.actor.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "gate": self.gate.state_dict() if self.gate else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave, and hands the restored weights to the engine."""
        self.actor.load_state_dict(state["actor"])
        self.algorithm.load_state_dict(state["algorithm"])
        if self.gate is not None and state["gate"] is not None:
            self.gate.load_state_dict(state["gate"])
        self.rollout.update_weights(self.actor.weights(), version=self.actor.version)


def train_rlvr(parts: RLVR, loader: Loader, run: RunConfig, loop: StageLoop) -> None:
    """Runs the remaining steps of a stage, with evaluations and checkpoints as ``run`` says."""
    rule = run.accuracy_rule or next(iter(parts.reward.config.rules))
    for prompts in loop.remaining(loader):
        metrics = parts.step(prompts, loop.step, loop.recorder)
        if f"reward/{rule}" in metrics:  # absent when no reward of the batch could be told
            metrics["accuracy"] = metrics[f"reward/{rule}"]
        check_parity(metrics, run.gates, loop.step)
        if loop.finish_step(metrics):
            break


def describe(batch: Batch, version: int) -> dict[str, float]:
    """What is worth knowing of freshly scored answers: rewards, rules, lengths, groups without spread, staleness."""
    if not len(batch):
        return {}
    mask, rewards = batch["loss_mask"], batch["rewards"]
    lengths = mask.sum(1).float()
    groups = batch["group_ids"]
    count = torch.bincount(groups).clamp(min=1)
    size = len(count)
    high = torch.full((size,), -torch.inf).scatter_reduce(0, groups, rewards, "amax")
    low = torch.full((size,), torch.inf).scatter_reduce(0, groups, rewards, "amin")
    rules = {f"reward/{key[1]}": batch[key].mean() for key in batch.keys() if isinstance(key, tuple)}
    metrics = {
        "reward": rewards.mean(),
        **rules,
        "response_length": lengths.mean(),
        "response_length/max": lengths.max(),
        "truncated": batch["truncated"].float().mean(),
        "groups/no_spread": (high == low).float().mean(),
        "staleness/max": version - torch.where(mask, batch["versions"], version).min(),
        "tokens": mask.sum(),
    }
    return {name: float(value) for name, value in metrics.items()}


def _collected(batch: Batch) -> dict[str, float]:
    return reduce_metrics([batch.meta.get("metrics", {})])
