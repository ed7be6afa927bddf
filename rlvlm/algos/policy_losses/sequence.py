"""Losses whose ratio belongs to a whole sequence: every micro-batch holds whole sequences, so they are exact under any split.

Arguments are [B, L]; so is the loss. ``loss_mask`` says which tokens make up the sequence.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlvlm.algos.checks import check_clip, check_token_fields
from rlvlm.algos.numerics import as_mask, exp_clamped, fill_masked, masked_mean
from rlvlm.algos.registries import register_policy_loss
from rlvlm.algos.results import TokenLoss

_SEQUENCE_LIMIT = 10.0  # of the mean log-ratio of a sequence: e^10 per token is beyond use, and verl's bound too


@register_policy_loss("gspo", scope="sequence")
def gspo(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    form: Literal["sequence", "token"] = "sequence",
) -> TokenLoss:
    """The clipped loss with the geometric mean of the token ratios, ``s = exp(mean_t(logp - prox_logp))``.

    Paper: GSPO, arXiv 2507.18071. With one advantage for a sequence both forms have the same value and gradient.

    Args:
        form: ``sequence`` lets the gradient flow through the mean; ``token`` takes ``sg(s) · exp(logp - sg(logp))``, so
            that each token's advantage meets its own gradient (verl's and TRL's ``gspo_token``).
    """
    check_token_fields(logp=logp, prox_logp=prox_logp, advantages=advantages, loss_mask=loss_mask)
    check_clip(clip_low, clip_high)
    mask = as_mask(loss_mask)
    log_ratio = fill_masked(logp, mask) - fill_masked(prox_logp, mask)
    mean = masked_mean(log_ratio, mask, dim=-1, keepdim=True)
    if form == "token":
        own = fill_masked(logp, mask)
        mean = mean.detach() + own - own.detach()
    ratio = exp_clamped(mean, _SEQUENCE_LIMIT)
    advantages = fill_masked(advantages, mask)
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    detached = ratio.detach().expand_as(logp)
    metrics = {
        "mean/ratio": detached,
        "max/ratio": detached,
        "mean/approx_kl": -log_ratio.detach(),
        "mean/clip_fraction": clipped.detach() > free.detach(),
    }
    return TokenLoss(torch.maximum(free, clipped), metrics)
