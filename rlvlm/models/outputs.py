"""What a forward pass of the policy gives back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TokenOutputs:
    """Per-token results on the axes of the batch, fp32, zero where ``loss_mask`` is false.

    Attributes:
        logp: [B, L] log-prob of each token under softmax(logits / temperature) over the ids that may be sampled.
        entropy: [B, L] entropy of that distribution, in nats.
        value_preds: [B, L] value of the state before each token, from a critic's head.
    """

    logp: Tensor
    entropy: Tensor
    value_preds: Tensor | None = None
