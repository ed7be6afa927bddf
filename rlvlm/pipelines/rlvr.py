"""Reinforcement learning with verifiable rewards: the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from rlvlm.algorithm import Algorithm
from rlvlm.batch import Batch
from rlvlm.fields import FIELDS
from rlvlm.pipelines.config import RunConfig
from rlvlm.pipelines.gates import SpreadWatch, VisionGate, check_parity
from rlvlm.pipelines.loop import StageLoop
from rlvlm.pipelines.planner import Passes
from rlvlm.pipelines.prompts import PromptStream
from rlvlm.pipelines.refill import Refill
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
        keep: is given the scored answers of a step, to keep some of them.
        keep_every: steps between two that are kept, the first one included.
        spread: watches for rewards that no longer differ.
    """

    rollout: Rollout
    reward: Reward
    actor: Actor
    reference: Reference | None
    algorithm: Algorithm
    passes: Passes
    gate: VisionGate | None = None
    keep: Callable[[Batch, int], None] | None = None
    keep_every: int = 0
    spread: SpreadWatch = field(default_factory=SpreadWatch)

    def step(
        self, prompts: Batch, step: int, recorder: Recorder, more: Callable[[int], Batch] | None = None
    ) -> dict[str, float]:
        """One batch: generate, score, compare, estimate, update, hand the weights over. Returns the step's metrics.

        Args:
            more: gives so many new prompts, to answer in place of groups that filters dropped.
        """
        batch, scored = self._collect(prompts, step, recorder, more)
        if not len(batch):
            self.actor.pass_over()
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

    def _collect(
        self, prompts: Batch, step: int, recorder: Recorder, more: Callable[[int], Batch] | None
    ) -> tuple[Batch, dict[str, float]]:
        """Scored groups, filtered and refilled, and what is worth knowing of all answers that were scored."""
        refill = Refill(len(prompts), self.algorithm.max_refills if more is not None else 0)
        scored: list[Batch] = []
        while True:
            answered, kept = self._answer(prompts, step, recorder)
            scored.append(answered)
            if self.keep is not None and len(scored) == 1 and len(answered) and (step - 1) % self.keep_every == 0:
                self.keep(answered, step)
            refill.add(len(prompts), kept)
            missing = refill.missing
            if not missing or more is None:
                break
            with recorder.phase("data"):
                prompts = more(missing)
        whole = describe(Batch.concat([batch for batch in scored if len(batch)] or scored[:1]), self.actor.version)
        batch = refill.batch()
        return batch, {**whole, **(refill.metrics() if self.algorithm.max_refills else {})}

    def _answer(self, prompts: Batch, step: int, recorder: Recorder) -> tuple[Batch, Batch]:
        """Scored answers to prompts: all of them, and those that are left after filters."""
        with recorder.phase("generate"):
            batch = self.rollout.generate(prompts, step)
        with recorder.phase("reward"):
            batch = self.reward.score(batch)
            kept = self._greedy_baseline(batch, prompts, step) if self.passes.greedy else batch
            return batch, self.algorithm.filter(kept)

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
        """Adds ``greedy_rewards``; groups whose greedy answer could not be scored leave the batch, and are counted.

        A greedy answer that fails is one more of ``sum/reward/errors``; ``sum/reward/no_baseline`` counts the sampled answers
        that leave with it.
        """
        answers = self.reward.score(self.rollout.generate_once(prompts, greedy=True, step=step))
        uids = [answers.prompts[group].uid for group in answers["group_ids"].tolist()]
        of_uid = dict(zip(uids, answers["rewards"].tolist(), strict=True))
        scored = torch.tensor([prompt.uid in of_uid for prompt in batch.prompts], dtype=torch.bool)
        keep = scored[batch["group_ids"]] if len(batch) else torch.zeros(0, dtype=torch.bool)
        counted = reduce_metrics([batch.meta.get("metrics", {}), _errors_of(answers)])
        counted["sum/reward/no_baseline"] = float((~keep).sum())
        errors = [*batch.meta.get("reward_errors", []), *answers.meta.get("reward_errors", [])]
        batch = batch.filter(keep).with_meta(metrics=counted, reward_errors=errors)
        baselines = [of_uid.get(prompt.uid, torch.nan) for prompt in batch.prompts]  # NaN: of a prompt without a row
        return batch.with_(greedy_rewards=torch.tensor(baselines, dtype=torch.float32))

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


def train_rlvr(parts: RLVR, prompts_of: PromptStream, run: RunConfig, loop: StageLoop) -> None:
    """Runs the remaining steps of a stage, with evaluations and checkpoints as ``run`` says."""
    rule = run.accuracy_rule or next(iter(parts.reward.config.rules))
    for prompts in loop.remaining(prompts_of):
        metrics = parts.step(prompts, loop.step, loop.recorder, prompts_of.take)
        if f"reward/{rule}" in metrics:  # absent when no reward of the batch could be told
            metrics["accuracy"] = metrics[f"reward/{rule}"]
        warning = parts.spread.check(metrics, run.gates.spread_patience, loop.step)
        if warning:
            loop.recorder.note(warning)
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
        "reward/std": rewards.std(correction=0),
        **rules,
        "response_length": lengths.mean(),
        "response_length/max": lengths.max(),
        "truncated": batch["truncated"].float().mean(),
        "groups/no_spread": (high == low).float().mean(),
        "staleness/max": version - torch.where(mask, batch["versions"], version).min(),
        "tokens": mask.sum(),
    }
    return {name: float(value) for name, value in metrics.items()}


def _errors_of(answers: Batch) -> dict[str, float]:
    metrics = answers.meta.get("metrics", {})
    return {key: value for key, value in metrics.items() if key == "sum/reward/errors"}


def _collected(batch: Batch) -> dict[str, float]:
    return reduce_metrics([batch.meta.get("metrics", {})])
