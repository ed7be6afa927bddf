"""Supervised training: the negative log-prob of assistant turns, on the same engine as reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from rlvlm.batch import Batch
from rlvlm.data.loader import Loader
from rlvlm.engines.train.base import TrainEngine
from rlvlm.pipelines.loop import StageLoop
from rlvlm.tracking.metrics import reduce_metrics
from rlvlm.tracking.recorder import Recorder


class SFT:
    """One optimiser step for each batch of dialogues; the mean is over all tokens of the batch, whatever its split.

    Args:
        engine: prepared with the policy and an optimiser.
        token_budget: cost of a micro-batch at most.
    """

    def __init__(self, engine: TrainEngine, token_budget: int) -> None:
        self.engine, self.token_budget = engine, token_budget

    def step(self, batch: Batch, recorder: Recorder) -> dict[str, float]:
        """Forward, backward and one optimiser step; returns ``loss`` in nats per token."""
        tokens = batch["loss_mask"].sum()
        total = torch.zeros(())
        with recorder.phase("update"):
            for _, micro in self.engine.micro_batches(batch, self.token_budget):
                loss = -self.engine.forward(micro, grad=True).logp.sum() / tokens.to(self.engine.device)
                self.engine.backward(loss)
                total += loss.detach().cpu()
            metrics = self.engine.step()
        return {
            **reduce_metrics([batch.meta.get("metrics", {})]),
            "loss": float(total),
            "tokens": float(tokens),
            **{name: float(value) for name, value in metrics.items()},
        }

    def held_out_loss(self, batches: Iterable[Batch]) -> float | None:
        """Nats per token over held-out dialogues, ``None`` where they have no token; the weights do not change."""
        total, tokens = 0.0, 0
        for batch in batches:
            tokens += int(batch["loss_mask"].sum())
            for _, micro in self.engine.micro_batches(batch, self.token_budget):
                total -= float(self.engine.forward(micro, grad=False).logp.sum())
        return total / tokens if tokens else None

    def state_dict(self) -> dict[str, Any]:
        """Nothing beside weights, optimiser and the loader's position."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores nothing."""


def train_sft(parts: SFT, loader: Loader, loop: StageLoop) -> None:
    """Runs the remaining steps of a supervised stage."""
    for batch in loop.remaining(loader):
        if loop.finish_step(parts.step(batch, loop.recorder)):
            break
