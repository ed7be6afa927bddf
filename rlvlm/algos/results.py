"""What parts give back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class TokenLoss:
    """A loss as a map over tokens, before aggregation.

    Attributes:
        loss: [B, L], of the dtype of what it was made from, or float32 where that is float16; entries outside ``loss_mask``
            are ignored.
        metrics: tensors [B, L], or [B, 1] for what all tokens of a sequence share, by ``"<reduction>/<name>"``; ``mean``,
            ``max``, ``min`` and ``sum`` are taken over the tokens of ``loss_mask``. They carry no gradient.
    """

    loss: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class AdvantageEstimate(NamedTuple):
    """Advantages [B, L] together with the returns [B, L] that a critic is trained towards."""

    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True)
class Correction:
    """An off-policy correction as two tensors.

    Attributes:
        weights: [B, L], multiplies the policy loss; a weight of 0 leaves the token in every denominator.
        mask: [B, L] bool, false where the token is rejected: out of every loss and of every denominator.
        metrics: per-token tensors [B, L] by ``"<reduction>/<name>"``, as in :class:`TokenLoss`.
    """

    weights: Tensor
    mask: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
