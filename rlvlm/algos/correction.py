"""Off-policy correction: what the trainer's policy at the start of the step and the engine's differ by.

The log-ratio of a token is ``prox_logp - behav_logp``, trainer over engine. A correction gives two tensors: *weights* that
multiply the policy loss (a token of weight 0 still counts in every denominator), and a *mask* (a rejected token is out of
every loss and denominator). Levels: ``token``; ``sequence``, the product of a sequence's ratios; ``geometric``, their
geometric mean.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rlvlm.algos.checks import check_not_negative, check_positive, check_token_fields, check_window
from rlvlm.algos.numerics import as_mask, exp_clamped, fill_masked, masked_mean, masked_sum, widen_float16
from rlvlm.algos.registries import register_correction
from rlvlm.algos.results import Correction
from rlvlm.errors import ConfigError

Level = Literal["token", "sequence", "geometric"]


@register_correction("tis")
@torch.no_grad()
def truncated_importance(
    prox_logp: Tensor,
    behav_logp: Tensor,
    loss_mask: Tensor,
    *,
    level: Level = "token",
    cap: float = 2.0,
    normalize: bool = False,
) -> Correction:
    """Importance weight ``min(ratio, cap)``: truncated importance sampling.

    Elsewhere: ``rollout_is`` with one threshold (verl); ``vllm_importance_sampling_mode`` ``…_truncate`` (TRL).

    Args:
        level: whose ratio it is.
        cap: largest weight.
        normalize: divide the weights by their mean over the batch.
    """
    check_positive("tis", cap=cap)
    ratio, mask = ratios(prox_logp, behav_logp, loss_mask, level)
    over = (ratio > cap) & mask
    weights = fill_masked(ratio.clamp(max=cap), mask)
    weights = _normalized(weights, mask, level) if normalize else weights
    return Correction(weights, mask, {"mean/weight": weights, "mean/clamped": over})


@register_correction("icepop")
@torch.no_grad()
def icepop(
    prox_logp: Tensor,
    behav_logp: Tensor,
    loss_mask: Tensor,
    *,
    level: Level = "token",
    low: float = 0.5,
    high: float = 5.0,
    normalize: bool = False,
) -> Correction:
    """Importance weight inside ``[low, high]`` and 0 outside: two-sided zeroing, in which denominators do not change.

    Paper: IcePop, arXiv 2510.18855.
    Elsewhere: ``rollout_is`` with a threshold "low_high" (verl); ``vllm_importance_sampling_mode`` ``…_mask`` (TRL).

    Args:
        level: whose ratio it is.
        normalize: divide the weights by their mean over the batch.
    """
    check_positive("icepop", low=low)
    check_window("icepop", low, high)
    ratio, mask = ratios(prox_logp, behav_logp, loss_mask, level)
    inside = (ratio >= low) & (ratio <= high) & mask
    weights = fill_masked(ratio, inside)
    weights = _normalized(weights, mask, level) if normalize else weights
    return Correction(weights, mask, {"mean/weight": weights, "mean/clamped": ~inside})


@register_correction("ratio_mask")
@torch.no_grad()
def ratio_mask(
    prox_logp: Tensor,
    behav_logp: Tensor,
    loss_mask: Tensor,
    *,
    level: Level = "geometric",
    low: float = 0.99,
    high: float = 1.01,
) -> Correction:
    """``low ≤ ratio ≤ high``, else the token or (``sequence``, ``geometric``) the whole sequence is rejected; weights are 1.

    Elsewhere: ``RejectionSamplingConfig`` with action ``mask`` (AReaL); geometric mask (SkyRL, slime).

    Args:
        level: whose ratio it is.
    """
    check_not_negative("ratio_mask", low=low)
    check_window("ratio_mask", low, high)
    ratio, mask = ratios(prox_logp, behav_logp, loss_mask, level)
    keep = mask & (ratio >= low) & (ratio <= high)
    return Correction(fill_masked(torch.ones_like(ratio), mask), keep, {"mean/rejected": ~keep})


@register_correction("rejection")
@torch.no_grad()
def rejection(
    prox_logp: Tensor,
    behav_logp: Tensor,
    loss_mask: Tensor,
    *,
    statistic: Literal["k1", "k2", "k3"] = "k1",
    level: Literal["token", "sum", "mean", "max"] = "mean",
    high: float = 1.01,
    low: float | None = None,
    k1_ratio: Literal["trainer/engine", "engine/trainer"] = "trainer/engine",
) -> Correction:
    """``k1``, ``k2`` or ``k3`` of a token, or its sum, mean or maximum over the sequence, inside bounds; else rejected; weights are 1.

    Elsewhere: ``rollout_rs`` (verl): ``token_k1``, ``seq_sum_k2``, ``seq_mean_k3``, ``seq_max_k3``, ….

    With ``d = prox_logp - behav_logp``: ``k1 = d``, ``k2 = d²/2``, ``k3 = exp(d) - d - 1``. ``k2`` and ``k3`` are kept up
    to ``high``. ``k1`` is kept between ``log low`` and ``log high``, that is, the bounds are ratios.

    Args:
        low: lower bound of ``k1``'s ratio, 1 / ``high`` where it is null.
        k1_ratio: what the bounds of ``k1`` are a ratio of. verl tests ``-d``, which is ``engine/trainer``.
    """
    check_positive("rejection", high=high)
    mask = as_mask(loss_mask)
    difference = _log_ratio(prox_logp, behav_logp, mask).clamp(-20, 20)
    low_bound, high_bound = _rejection_bounds(statistic, level, low, high)
    if statistic == "k1":
        value = difference if k1_ratio == "trainer/engine" else -difference
    elif statistic == "k2":
        value = 0.5 * difference.square()
    else:
        value = exp_clamped(difference) - difference - 1
    value = _over_sequence(value, mask, level)
    keep = mask & (value >= low_bound) & (value <= high_bound)
    return Correction(mask.to(difference.dtype), keep, {"mean/rejected": ~keep})


@torch.no_grad()
def mismatch(prox_logp: Tensor, behav_logp: Tensor, loss_mask: Tensor) -> dict[str, Tensor]:
    """Scalars that say how far trainer and engine are apart, before any cap.

    ``ratio`` is trainer over engine; ``effective_samples`` is ``(Σw)² / (n Σw²)``, 1 for equal weights; ``chi_square`` is
    ``E[w²] - 1``; ``kl`` is the mean of ``behav_logp - prox_logp`` and ``k3`` its estimate that is never negative.
    """
    ratio, mask = ratios(prox_logp, behav_logp, loss_mask, "token")
    difference = _log_ratio(prox_logp, behav_logp, mask)
    count = mask.sum().clamp_min(1)
    square = masked_sum(ratio.square(), mask)
    kept = fill_masked(ratio, mask)
    whole = exp_clamped(masked_sum(difference, mask, dim=-1)).square()
    return {
        "mean/correction/ratio": masked_mean(ratio, mask),
        "max/correction/ratio": kept.amax() if kept.numel() else kept.sum(),
        "mean/correction/effective_samples": masked_sum(ratio, mask).square() / (count * square).clamp_min(1e-30),
        "mean/correction/chi_square": square / count - 1,
        "mean/correction/chi_square_sequence": masked_mean(whole, mask.any(-1)) - 1,
        "mean/correction/kl": masked_mean(-difference, mask),
        "mean/correction/k3": masked_mean(exp_clamped(difference) - difference - 1, mask),
    }


def ratios(prox_logp: Tensor, behav_logp: Tensor, loss_mask: Tensor, level: Level) -> tuple[Tensor, Tensor]:
    """Ratio trainer / engine of each token's level [B, L], and the mask as bool."""
    mask = as_mask(loss_mask)
    difference = _log_ratio(prox_logp, behav_logp, mask)
    if level != "token":
        difference = _over_sequence(difference, mask, "sum" if level == "sequence" else "mean")
    return exp_clamped(difference), mask


def _log_ratio(prox_logp: Tensor, behav_logp: Tensor, mask: Tensor) -> Tensor:
    check_token_fields(prox_logp=prox_logp, behav_logp=behav_logp, loss_mask=mask)
    prox_logp, behav_logp = widen_float16(prox_logp, behav_logp)
    return fill_masked(prox_logp, mask) - fill_masked(behav_logp, mask)


def _over_sequence(value: Tensor, mask: Tensor, level: str) -> Tensor:
    if level == "token" or not value.numel():  # there is no largest of no tokens
        return value
    if level == "max":
        row = fill_masked(value, mask, -torch.inf).amax(-1, keepdim=True)
    else:
        row = (masked_sum if level == "sum" else masked_mean)(value, mask, dim=-1, keepdim=True)
    return row.expand_as(value)


def _rejection_bounds(statistic: str, level: str, low: float | None, high: float) -> tuple[float, float]:
    if statistic != "k1":
        if low is not None:
            raise ConfigError(
                f"option 'low' of 'rejection' belongs to statistic k1; {statistic} is never negative, got low {low}."
            )
        return -math.inf, high
    if level == "max":
        raise ConfigError(
            "level max of 'rejection' goes with statistic k2 or k3; k1 is signed, so its maximum bounds one side only."
        )
    low = 1 / high if low is None else low
    check_positive("rejection", low=low)
    check_window("rejection", low, high)
    return math.log(low), math.log(high)


def _normalized(weights: Tensor, mask: Tensor, level: Level) -> Tensor:
    if level == "token":
        mean = masked_mean(weights, mask)
    else:
        mean = masked_mean(masked_mean(weights, mask, dim=-1), mask.any(-1))
    return torch.where(mean > 1e-8, weights / mean.clamp_min(1e-8), weights)
