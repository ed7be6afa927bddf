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
from rlvlm.algos.numerics import (
    as_mask,
    exp_clamped,
    fill_masked,
    log_difference,
    masked_mean,
    masked_sum,
    widen_float16,
)
from rlvlm.algos.registries import register_correction
from rlvlm.algos.results import Correction
from rlvlm.errors import ConfigError

Level = Literal["token", "sequence", "geometric"]

_INFINITE = 1e4
"""A log-ratio that is infinite counts as this in a sum."""


@register_correction("tis")
@torch.no_grad()
def truncated_importance(
    prox_logp: Tensor,
    behav_logp: Tensor,
    loss_mask: Tensor,
    *,
    level: Level = "token",
    cap: float = 2.0,
    floor: float = 0.0,
    normalize: bool = False,
) -> Correction:
    """Importance weight ``min(max(ratio, floor), cap)``: truncated importance sampling.

    Elsewhere: ``rollout_is`` with one threshold (verl); ``vllm_importance_sampling_mode`` ``…_truncate`` (TRL).

    Args:
        level: whose ratio it is.
        cap: largest weight.
        floor: smallest weight.
        normalize: divide the weights by their mean over the batch.
    """
    check_positive("tis", cap=cap)
    check_not_negative("tis", floor=floor)
    if floor > cap:
        raise ConfigError(f"option 'floor' of 'tis', the smallest weight, is at most cap {cap}, got {floor}.")
    ratio, mask = ratios(prox_logp, behav_logp, loss_mask, level)
    outside = ((ratio > cap) | (ratio < floor)) & mask
    weights = fill_masked(ratio.clamp(floor, cap), mask)
    weights = _normalized(weights, mask, level) if normalize else weights
    return Correction(weights, mask, {"mean/weight": weights, "mean/clamped": outside})


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

    Elsewhere: geometric mask (SkyRL, slime).

    Args:
        level: whose ratio it is.
    """
    check_not_negative("ratio_mask", low=low)
    check_window("ratio_mask", low, high)
    ratio, mask = ratios(prox_logp, behav_logp, loss_mask, level)
    keep = mask & (ratio >= low) & (ratio <= high)
    return Correction(fill_masked(torch.ones_like(ratio), mask), keep, {"mean/rejected": ~keep})


@register_correction("rejection", acts_with={"k1_ratio": ("statistic", ("k1",))})
@torch.no_grad()
def rejection(
    prox_logp: Tensor,
    behav_logp: Tensor,
    loss_mask: Tensor,
    *,
    statistic: Literal["k1", "k2", "k3", "ratio"] = "k1",
    level: Literal["token", "sum", "mean", "max"] = "mean",
    high: float = 1.01,
    low: float | None = None,
    k1_ratio: Literal["trainer/engine", "engine/trainer"] = "trainer/engine",
) -> Correction:
    """A statistic of a token, or its sum, mean or maximum over the sequence, inside bounds; else rejected; weights are 1.

    Elsewhere: ``rollout_rs`` (verl): ``token_k1``, ``seq_sum_k2``, ``seq_mean_k3``, ``seq_max_k3``, ….

    With ``d = prox_logp - behav_logp``: ``k1 = d``, ``k2 = d²/2``, ``k3 = exp(d) - d - 1``. ``k2`` and ``k3`` are kept up
    to ``high``. ``k1`` is kept between ``log low`` and ``log high``, that is, the bounds are ratios. So they are for
    ``ratio``, whose sum over a sequence is the product of its ratios, its mean their geometric mean, and its maximum the
    largest of them.

    Args:
        low: lower bound of the ratio; where it is null, 1 / ``high`` for ``k1``, and none for ``ratio``.
        k1_ratio: what the bounds of ``k1`` are a ratio of. verl tests ``-d``, which is ``engine/trainer``.
    """
    check_positive("rejection", high=high)
    mask = as_mask(loss_mask)
    difference = _log_ratio(prox_logp, behav_logp, mask).clamp(-20, 20)
    low_bound, high_bound = _rejection_bounds(statistic, level, low, high)
    if statistic == "ratio":
        value = difference
    elif statistic == "k1":
        value = difference if k1_ratio == "trainer/engine" else -difference
    elif statistic == "k2":
        value = 0.5 * difference.square()
    else:
        value = exp_clamped(difference) - difference - 1
    value = _over_sequence(value, mask, level)
    keep = mask & (value >= low_bound) & (value <= high_bound)
    return Correction(mask.to(difference.dtype), keep, {"mean/rejected": ~keep})


@register_correction("areal_rejection", acts_with={"agg": ("level", ("sequence",))})
@torch.no_grad()
def areal_rejection(
    prox_logp: Tensor,
    behav_logp: Tensor,
    loss_mask: Tensor,
    *,
    level: Literal["token", "sequence"] = "token",
    action: Literal["mask", "clamp"] = "mask",
    metric: Literal["ratio", "kl_k1", "kl_k2", "kl_k3"] = "ratio",
    agg: Literal["sum", "mean", "max"] = "mean",
    upper: float = 5.0,
    lower: float | None = None,
) -> Correction:
    """The behaviour weight, 0 (``mask``) or clamped to ``[lower, upper]`` (``clamp``) where a metric is out of bounds.

    A token of weight 0 still counts in every denominator. The weight is the token's ratio, or with ``level: sequence`` and
    ``metric: ratio`` the geometric mean of the sequence, whatever ``agg`` is.

    Elsewhere: ``RejectionSamplingConfig``, option for option (AReaL).

    Args:
        level: whose metric it is.
        metric: ``ratio``; or of ``d = prox_logp - behav_logp``: ``d``, ``d²/2``, ``exp(-d) - 1 + d``.
        agg: from tokens to a sequence; of ratios the product (``sum``), geometric mean or largest.
        lower: lower bound, none where it is null; the smallest weight is then 0.
    """
    _check_areal(metric, action, upper, lower)
    mask = as_mask(loss_mask)
    difference = _log_ratio(prox_logp, behav_logp, mask).clamp(-_INFINITE, _INFINITE)
    if metric in ("ratio", "kl_k1"):
        value = difference
    else:
        value = 0.5 * difference.square() if metric == "kl_k2" else exp_clamped(-difference) - 1 + difference
    value = value if level == "token" else _over_sequence(value, mask, agg)
    value = exp_clamped(value) if metric == "ratio" else value
    inside = (value <= upper) & (value >= (-math.inf if lower is None else lower))
    by_sequence = level == "sequence" and metric == "ratio"
    raw = exp_clamped(_over_sequence(difference, mask, "mean") if by_sequence else difference)
    outside = torch.zeros_like(raw) if action == "mask" else raw.clamp(lower or 0.0, upper)
    weights = fill_masked(torch.where(inside, raw, outside), mask)
    return Correction(weights, mask, {"mean/weight": weights, "mean/clamped": ~inside})


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
        "mean/correction/k3": masked_mean(exp_clamped(difference) - difference.clamp(max=_INFINITE) - 1, mask),
    }


def ratios(prox_logp: Tensor, behav_logp: Tensor, loss_mask: Tensor, level: Level) -> tuple[Tensor, Tensor]:
    """Ratio trainer / engine of each token's level [B, L], and the mask as bool."""
    mask = as_mask(loss_mask)
    difference = _log_ratio(prox_logp, behav_logp, mask)
    if level != "token":
        bounded = difference.clamp(-_INFINITE, _INFINITE)  # that inf and -inf in one sequence add up to a number
        difference = _over_sequence(bounded, mask, "sum" if level == "sequence" else "mean")
    return exp_clamped(difference), mask


def _log_ratio(prox_logp: Tensor, behav_logp: Tensor, mask: Tensor) -> Tensor:
    """``prox_logp - behav_logp``; 0 where both are -inf, since they agree."""
    check_token_fields(prox_logp=prox_logp, behav_logp=behav_logp, loss_mask=mask)
    prox_logp, behav_logp = widen_float16(prox_logp, behav_logp)
    return log_difference(fill_masked(prox_logp, mask), fill_masked(behav_logp, mask))


def _over_sequence(value: Tensor, mask: Tensor, level: str) -> Tensor:
    if level == "token" or not value.numel():  # there is no largest of no tokens
        return value
    if level == "max":
        row = fill_masked(value, mask, -torch.inf).amax(-1, keepdim=True)
    else:
        row = (masked_sum if level == "sum" else masked_mean)(value, mask, dim=-1, keepdim=True)
    return row.expand_as(value)


def _rejection_bounds(statistic: str, level: str, low: float | None, high: float) -> tuple[float, float]:
    if statistic in ("k2", "k3"):
        if low is not None:
            raise ConfigError(
                f"option 'low' of 'rejection' belongs to statistic k1; {statistic} is never negative, got low {low} "
                "(statistic ratio takes it too)."
            )
        return -math.inf, high
    if statistic == "ratio" and low is None:
        return -math.inf, math.log(high)
    if level == "max" and statistic == "k1":
        raise ConfigError(
            "level max of 'rejection' goes with statistic k2 or k3; k1 is signed, so its maximum bounds one side only "
            "(statistic ratio takes it too)."
        )
    low = 1 / high if low is None else low
    check_positive("rejection", low=low)
    check_window("rejection", low, high)
    return math.log(low), math.log(high)


def _check_areal(metric: str, action: str, upper: float, lower: float | None) -> None:
    if action == "clamp" and metric != "ratio":
        raise ConfigError(f"action clamp of 'areal_rejection' goes with metric ratio, got {metric}; take action: mask.")
    if metric != "kl_k1":
        check_positive("areal_rejection", upper=upper)
    if lower is not None:
        check_window("areal_rejection", lower, upper)
        if metric == "ratio":
            check_positive("areal_rejection", lower=lower)


def _normalized(weights: Tensor, mask: Tensor, level: Level) -> Tensor:
    if level == "token":
        mean = masked_mean(weights, mask)
    else:
        mean = masked_mean(masked_mean(weights, mask, dim=-1), mask.any(-1))
    return torch.where(mean > 1e-8, weights / mean.clamp_min(1e-8), weights)
