"""What every train engine offers, and the registry of engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from rlvlm.batch import Batch
from rlvlm.engines.train.batching import MicroBatch
from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.models.outputs import TokenOutputs
from rlvlm.registry import Registry

if TYPE_CHECKING:
    from rlvlm.models.policy import Policy

TRAIN_ENGINES = Registry("train engine", "train_engines", builtins=("rlvlm.engines.train.local",))
register_train_engine = TRAIN_ENGINES.register


class TrainEngine(Protocol):
    """Owns a policy's placement, its optimiser and its gradients; reaches the policy only through its forward."""

    def prepare(self, policy: Policy, optimizer: OptimizerConfig | None, total_steps: int) -> None:
        """Places (and shards) the policy, then builds the optimiser on what is there; ``None`` makes it inference only.

        Args:
            total_steps: optimiser steps of the whole run, for the schedule.
        """

    device: torch.device
    """Where outputs and gradients are."""

    autocast: torch.dtype | None
    """The dtype that forwards compute in under autocast; ``None`` is the weights' own. Inference engines take the same."""

    @property
    def policy(self) -> Policy:
        """The policy under whatever wraps it."""

    @property
    def trains(self) -> bool:
        """Whether it was prepared with an optimiser."""

    @property
    def dropout_active(self) -> bool:
        """True when two training passes over the same rows differ."""

    def micro_batches(self, batch: Batch, budget: int) -> list[MicroBatch]:
        """Pieces of a mini-batch that fit the budget, on the engine's device, in the layout that the engine chooses for them."""

    def forward(self, batch: Batch, *, grad: bool) -> TokenOutputs:
        """Log-probs and entropy of one micro-batch; without ``grad`` nothing is kept for a backward pass."""

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of one micro-batch's loss."""

    def step(self) -> dict[str, Tensor | float]:
        """Clips, steps, clears; returns metrics, ``mean/grad_norm`` and ``lr`` among them. A non-finite gradient raises."""

    def skip(self, steps: int) -> None:
        """Moves the learning rate's schedule on past planned steps that had nothing to learn from; the weights stay."""

    def offload(self) -> None:
        """Gives the device back: weights, gradients and optimiser state go to host memory."""

    def onload(self) -> None:
        """Takes the device again."""

    def save(self, folder: Path) -> None:
        """Writes weights and optimiser state, so that :meth:`load` goes on exactly."""

    def load(self, folder: Path) -> None:
        """Restores what :meth:`save` wrote."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights by checkpoint name, one after another; every rank must iterate."""

    def state(self) -> dict[str, Any]:
        """Small state beside weights: the number of optimiser steps."""
