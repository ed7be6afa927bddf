"""What the tests of models share: gradients as one vector, relative distance, batches of awkward shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvlm.batch import Batch
from rlvlm.models.outputs import TokenOutputs
from rlvlm.models.policy import Policy
from tests import tiny

MIXED = [[(60, 90)], [], [(56, 56), (100, 40)], [(30, 30)]]
"""Pictures of four prompts: one, none, two of different sizes, a small one."""


def gradient(policy: Policy) -> Tensor:
    """Gradients of all parameters that have one, as one vector."""
    return torch.cat([w.grad.flatten().float() for w in policy.parameters() if w.grad is not None])


def distance(a: Tensor, b: Tensor) -> float:
    """‖a - b‖ / ‖b‖."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def run(policy: Policy, batch: Batch, kind: str | None, entropy: float = 0.3) -> tuple[TokenOutputs, Tensor]:
    """Outputs and the gradient of a loss that weighs every token differently."""
    policy.zero_grad()
    outputs = policy(policy.layout(batch, kind))
    weights = torch.linspace(0.5, 1.5, outputs.logp.numel()).view_as(outputs.logp)
    (outputs.logp * weights).sum().add((outputs.entropy * weights).sum(), alpha=entropy).backward()
    return outputs, gradient(policy)


def mixed_batch(policy: Policy, lengths: list[list[int]], **fields: Any) -> Batch:
    """Answers of these lengths to the four prompts of ``MIXED``."""
    return tiny.samples(policy, tiny.prompts(policy, MIXED), lengths, **fields)


def judged(values: Tensor, batch: Batch) -> Tensor:
    """The entries under ``loss_mask``."""
    return values.detach()[batch["loss_mask"]]
