"""Losses whose ratio belongs to a whole sequence: every micro-batch holds whole sequences, so they are exact under any split.

Arguments are [B, L]; so is the loss. ``loss_mask`` says which tokens make up the sequence; a caller that hands ``clean`` over
has put zeros outside of it already.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlvlm.algos.checks import check_positive, check_token_fields
from rlvlm.algos.numerics import ZeroOutside, as_mask, exp_clamped, masked_mean, widen_float16
from rlvlm.algos.policy_losses.clipping import clipped_surrogate
from rlvlm.algos.registries import register_policy_loss
from rlvlm.algos.results import TokenLoss

_SEQUENCE_LIMIT = 10.0  # of the mean log-ratio of a sequence: e^10 per token is beyond use, and verl's bound too


@register_policy_loss("gspo", scope="sequence")
def gspo(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    clean: ZeroOutside | None = None,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    dual_clip: float | None = None,
    form: Literal["sequence", "token"] = "sequence",
) -> TokenLoss:
    """``max(-A s, -A clip(s, 1 - low, 1 + high))`` with the sequence ratio ``s = exp(mean_t(logp - prox_logp))``.

    With one advantage for a sequence both forms have the same value and gradient.

    Paper: GSPO, arXiv 2507.18071.
    Elsewhere: ``gspo`` is form ``token`` in verl and ``sequence`` in EasyR1, which also has ``gspo_token``;
    ``importance_sampling_level=sequence`` (TRL, LLaVA-OneVision-1.5-RL).

    Args:
        dual_clip: bound c > 1 of the loss where the advantage is negative, ``min(loss, -A c)`` (EasyR1).
        form: ``sequence`` lets the gradient flow through the mean; ``token`` takes ``sg(s) · exp(logp - sg(logp))``, so
            that each token's advantage meets its own gradient (verl's and TRL's ``gspo_token``).
    """
    check_token_fields(logp=logp, prox_logp=prox_logp, advantages=advantages, loss_mask=loss_mask)
    mask = as_mask(loss_mask)
    logp, prox_logp, advantages = widen_float16(logp, prox_logp, advantages)
    if clean is None:
        clean = ZeroOutside(mask)
        logp, prox_logp, advantages = map(clean, (logp, prox_logp, advantages))
    log_ratio = logp - prox_logp
    mean = log_ratio.sum(-1, keepdim=True) / clean.counts.clamp_min(1)
    approx_kl = -mean.detach()
    if form == "token":
        mean = mean.detach() + logp - logp.detach()
    ratio = exp_clamped(mean, _SEQUENCE_LIMIT)
    return clipped_surrogate(ratio, approx_kl, advantages, clip_low, clip_high, dual_clip)


@register_policy_loss("geo_mean", scope="sequence")
def geo_mean(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    clean: ZeroOutside | None = None,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> TokenLoss:
    """``-A exp(mean_t c_t)`` with the sequence's mean advantage and log-ratios ``c_t`` clipped one by one.

    A log-ratio is clipped to ``[-low, high]`` on the side where the advantage pulls it. Every token of a sequence holds the
    sequence's loss, so that ``seq-mean-token-mean`` is the paper's objective.

    Paper: GMPO, arXiv 2507.20673.
    Elsewhere: ``geo_mean`` (verl, RLLaVA).

    Args:
        clip_low, clip_high: bounds of the log-ratio (not of the ratio).
    """
    check_token_fields(logp=logp, prox_logp=prox_logp, advantages=advantages, loss_mask=loss_mask)
    check_positive("geo_mean", clip_low=clip_low, clip_high=clip_high)
    mask = as_mask(loss_mask)
    logp, prox_logp, advantages = widen_float16(logp, prox_logp, advantages)
    if clean is None:
        logp, prox_logp, advantages = map(ZeroOutside(mask), (logp, prox_logp, advantages))
    log_ratio = logp - prox_logp
    sign = advantages.sign()
    bounded = log_ratio.clamp(-clip_low, clip_high)
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * bounded)
    ratio = exp_clamped(masked_mean(pessimistic, mask, dim=-1, keepdim=True))
    loss = -masked_mean(advantages, mask, dim=-1, keepdim=True) * ratio
    metrics = {
        "mean/ratio": ratio.detach(),
        "max/ratio": ratio.detach(),
        "mean/approx_kl": -log_ratio.detach(),
        "mean/clip_fraction": (log_ratio != bounded) & (sign != 0),
    }
    return TokenLoss(loss.expand_as(logp), metrics)
