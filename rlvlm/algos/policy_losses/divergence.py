"""Trust regions by a divergence of the token's probability in place of a ratio (DPPO, arXiv 2602.04879).

A token keeps its gradient unless it moves further in the direction that its advantage asks for than the divergence
allows. The ratio is a truncated weight without gradient. Arguments are [B, L]; so is the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvlm.algos.checks import check_positive, check_token_fields
from rlvlm.algos.numerics import exp_clamped, widen_float16
from rlvlm.algos.registries import register_policy_loss
from rlvlm.algos.results import TokenLoss

_EPS = 1e-8  # keeps the logarithm of 1 - p finite for a token of probability 1


@register_policy_loss("dppo_tv")
def dppo_tv(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    *,
    threshold_low: float = 0.2,
    threshold_high: float = 0.2,
    cap: float = 20.0,
) -> TokenLoss:
    """``-A sg(min(ρ, cap)) logp`` where the probability moved by at most the threshold (total variation of a binary event).

    Paper: DPPO, arXiv 2602.04879.
    Elsewhere: ``dppo_tv`` (verl), whose clip ratios are the thresholds.

    Args:
        threshold_low, threshold_high: how far the probability may fall (A ≤ 0) or rise (A > 0).
        cap: largest ratio used as a weight.
    """
    _check(logp, prox_logp, advantages, "dppo_tv", threshold_low, threshold_high, cap)
    logp, prox_logp, advantages = widen_float16(logp, prox_logp, advantages)
    moved = logp.detach().exp() - prox_logp.exp()
    keep = torch.where(advantages > 0, moved <= threshold_high, moved >= -threshold_low)
    return _truncated(logp, prox_logp, advantages, keep, cap)


@register_policy_loss("dppo_kl")
def dppo_kl(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    *,
    threshold_low: float = 0.2,
    threshold_high: float = 0.2,
    cap: float = 20.0,
) -> TokenLoss:
    """``-A sg(min(ρ, cap)) logp`` where KL(old || new) of the binary event "this token" is at most the threshold.

    Paper: DPPO, arXiv 2602.04879.
    Elsewhere: ``dppo_kl`` (verl), whose clip ratios are the thresholds.

    Args:
        threshold_low, threshold_high: bound of the divergence where the probability falls (A ≤ 0) or rises (A > 0).
        cap: largest ratio used as a weight.
    """
    _check(logp, prox_logp, advantages, "dppo_kl", threshold_low, threshold_high, cap)
    logp, prox_logp, advantages = widen_float16(logp, prox_logp, advantages)
    new, old = logp.detach().exp(), prox_logp.exp()
    rest = (1 - old) * torch.log((1 - old + _EPS) / (1 - new + _EPS))
    divergence = old * (prox_logp - logp.detach()) + rest
    risen = (divergence <= threshold_high) | (new <= old)
    fallen = (divergence <= threshold_low) | (new >= old)
    return _truncated(logp, prox_logp, advantages, torch.where(advantages > 0, risen, fallen), cap)


def _check(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    part: str,
    threshold_low: float,
    threshold_high: float,
    cap: float,
) -> None:
    check_token_fields(logp=logp, prox_logp=prox_logp, advantages=advantages)
    check_positive(part, threshold_low=threshold_low, threshold_high=threshold_high, cap=cap)


def _truncated(logp: Tensor, prox_logp: Tensor, advantages: Tensor, keep: Tensor, cap: float) -> TokenLoss:
    log_ratio = logp.detach() - prox_logp
    ratio = exp_clamped(log_ratio)
    metrics = {
        "mean/ratio": ratio,
        "max/ratio": ratio,
        "mean/approx_kl": -log_ratio,
        "mean/clip_fraction": ~keep,
        "mean/capped_fraction": keep & (ratio > cap),
    }
    weight = torch.where(keep, ratio.clamp(max=cap), torch.zeros_like(ratio))
    return TokenLoss(-advantages * weight * logp, metrics)
