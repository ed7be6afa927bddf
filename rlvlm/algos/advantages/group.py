"""Baselines from the group: one advantage for a whole sample, spread over the tokens that the policy sampled.

All take ``rewards`` [B], ``group_ids`` [B] (any group sizes, any order) and ``loss_mask`` [B, L], and give advantages
[B, L] that are zero outside ``loss_mask``. A group with equal rewards gets exactly 0, unless an option says otherwise. A
sample whose reward is not finite is left out: it gets 0, and the others get what they would get without it. A group of
one gets 0 (``singleton="zero"``), or its reward as if there were no baseline (``singleton="reward"``, as in verl).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlvlm.algos.checks import check_not_negative, check_rows_of
from rlvlm.algos.grouping import Groups, group, one_group
from rlvlm.algos.numerics import as_mask, fill_masked, keep_bits, mask_bits, row_blocks, whiten, wide
from rlvlm.algos.registries import register_advantage

Level = Literal["group", "batch", "none"]
Singleton = Literal["zero", "reward"]
EqualGroups = Literal["zero", "whitened"]
_OF_A_LEVEL = ("group", "batch")


@register_advantage(
    "grpo",
    group_baseline=True,
    acts_with={
        "leave_one_out": ("mean", _OF_A_LEVEL),
        "unbiased": ("std", _OF_A_LEVEL),
        "eps": ("std", _OF_A_LEVEL),
        "equal_groups": ("whiten_tokens", (True,)),
    },
)
@torch.no_grad()
def grpo(
    rewards: Tensor,
    group_ids: Tensor,
    loss_mask: Tensor,
    *,
    mean: Level = "group",
    std: Level = "group",
    unbiased: bool = True,
    eps: float = 1e-6,
    leave_one_out: bool = False,
    singleton: Singleton = "zero",
    whiten_tokens: bool = False,
    equal_groups: EqualGroups = "zero",
) -> Tensor:
    """``(r - mean) / (std + eps)`` with mean and standard deviation of the group.

    Paper: DeepSeekMath, arXiv 2402.03300; ``std="none"`` is Dr. GRPO, arXiv 2503.20783.
    Elsewhere: ``grpo``, ``grpo_vectorized`` (verl); ``scale_rewards`` (TRL); ``reward_norm`` and ``adv_norm`` (AReaL).

    Args:
        mean: statistics that are subtracted, over the group or the batch, or nothing; a group of equal rewards gets 0
            with ``group``.
        std: statistics that are divided by; ``none`` does not divide. With ``group``, a group of equal rewards gets 0.
        unbiased: divide the variance by n - 1 (else by n).
        leave_one_out: leave the sample itself out of its mean.
        whiten_tokens: normalise once more over the tokens of the batch (AReaL, LLaVA-OneVision-1.5-RL).
        equal_groups: with ``whiten_tokens``, a group of equal rewards stays at ``zero``, or is shifted by the mean of the
            batch like the others (``whitened``, AReaL).
    """
    check_not_negative("grpo", eps=eps)
    groups = group(rewards, group_ids)
    advantage = _deviations(mean, rewards, groups, leave_one_out)
    if std == "group":
        advantage = groups.times(advantage, over_std(groups.std(unbiased), eps))
    elif std == "batch":
        advantage = advantage * over_std(one_group(rewards).std(unbiased), eps)
    if mean != "group" and singleton == "zero":
        advantage = torch.where(groups.alone, 0.0, advantage)
    advantage = settle_singletons(advantage, rewards, groups, singleton, 1 + eps if std == "group" else 1.0)
    if not whiten_tokens:
        return over_tokens(advantage, rewards, loss_mask)
    stays = equal_groups == "zero" and "group" in (mean, std)
    return whiten_over_tokens(advantage, rewards, loss_mask, groups.valid, ~flat(groups, singleton) if stays else None)


@register_advantage("rloo", group_baseline=True)
@torch.no_grad()
def rloo(rewards: Tensor, group_ids: Tensor, loss_mask: Tensor, *, singleton: Singleton = "zero") -> Tensor:
    """``r_i - mean(r_j, j ≠ i)``: reward minus the mean reward of the *other* samples of the group.

    Paper: Back to Basics, arXiv 2402.14740.
    Elsewhere: ``rloo``, ``rloo_vectorized`` (verl); ``RLOOTrainer`` (TRL).
    """
    groups = group(rewards, group_ids)
    advantage = _leave_one_out(groups)
    advantage = settle_singletons(advantage, rewards, groups, singleton)
    return over_tokens(advantage, rewards, loss_mask)


@register_advantage("opo", group_baseline=True)
@torch.no_grad()
def opo(rewards: Tensor, group_ids: Tensor, loss_mask: Tensor, *, singleton: Singleton = "zero") -> Tensor:
    """``r - Σ l_j r_j / Σ l_j``: reward minus the length-weighted mean of the group, the baseline of least variance.

    Lengths are counted in tokens of ``loss_mask``.

    Paper: OPO, arXiv 2505.23585.
    Elsewhere: ``opo`` (verl, RLLaVA).
    """
    check_rows_of(loss_mask, rewards=rewards)
    groups = group(rewards, group_ids)
    lengths = wide(as_mask(loss_mask).sum(-1))
    baseline = groups.sum(lengths * groups.shifted) / groups.sum(lengths).clamp_min(1)
    advantage = groups.minus(groups.shifted, baseline)
    advantage = settle_singletons(advantage, rewards, groups, singleton)
    return over_tokens(advantage, rewards, loss_mask)


@register_advantage("gpg", group_baseline=True)
@torch.no_grad()
def gpg(
    rewards: Tensor,
    group_ids: Tensor,
    loss_mask: Tensor,
    *,
    scale: Literal["informative", "nonzero", "none"] = "informative",
    singleton: Singleton = "zero",
) -> Tensor:
    """``α (r - mean)`` with α = samples / samples that carry a gradient; one left out is a sample that carries none.

    Paper: GPG, arXiv 2504.02546.
    Elsewhere: ``gpg`` (verl, RLLaVA).

    Args:
        scale: which samples carry a gradient: those of groups whose rewards differ (``informative``, the paper), those
            whose reward is not zero (``nonzero``, verl), or do not scale (``none``).
    """
    groups = group(rewards, group_ids)
    advantage = settle_singletons(groups.deviations, rewards, groups, singleton)
    if scale != "none":
        carries = (groups.to_rows(groups.spread) > 0) if scale == "informative" else (rewards != 0)
        advantage = advantage * (carries.numel() / (carries & groups.valid).sum().clamp_min(1))
    return over_tokens(advantage, rewards, loss_mask)


@register_advantage("grpo_passk", group_baseline=True, acts_with={"eps": ("divide", (True,))})
@torch.no_grad()
def grpo_passk(
    rewards: Tensor, group_ids: Tensor, loss_mask: Tensor, *, divide: bool = True, eps: float = 1e-6
) -> Tensor:
    """``(r_1st - r_2nd) / (std + eps)`` for the best sample of the group; 0 for all others, for a tie and for a group of one.

    Paper: Optimizing Language Models for Inference Time Objectives, arXiv 2503.19595.
    Elsewhere: ``grpo_passk`` (verl, EasyR1, RLLaVA).

    Args:
        divide: divide by the group's standard deviation.
    """
    check_not_negative("grpo_passk", eps=eps)
    groups = group(rewards, group_ids)
    best = groups.valid & (groups.shifted == groups.to_rows(groups.spread))
    alone_at_top = groups.sum(wide(best)) == 1
    below = torch.where(best, torch.full_like(groups.shifted, -torch.inf), groups.shifted)
    second = groups.max(below)
    lead = torch.where(alone_at_top & second.isfinite(), groups.spread - second, torch.zeros_like(second))
    if divide:
        lead = lead * over_std(groups.std(), eps)
    return over_tokens(fill_masked(groups.to_rows(lead), best), rewards, loss_mask)


def over_std(std: Tensor, eps: float) -> Tensor:
    """``1 / (std + eps)``; 0 where the standard deviation is 0, for equal rewards carry no signal."""
    return (std + eps).reciprocal_().masked_fill_(std == 0, 0.0)


def settle_singletons(
    advantage: Tensor, rewards: Tensor, groups: Groups, singleton: Singleton, divisor: float = 1.0
) -> Tensor:
    """Gives the only valid sample of a group its reward over ``divisor``, if that is asked for.

    Its deviation from its group's mean is 0 already.
    """
    return torch.where(groups.alone, wide(rewards) / divisor, advantage) if singleton == "reward" else advantage


def over_tokens(advantage: Tensor, rewards: Tensor, loss_mask: Tensor) -> Tensor:
    """Spreads one advantage [B] over the tokens of ``loss_mask`` [B, L], in the dtype of the rewards."""
    check_rows_of(loss_mask, rewards=rewards)
    mask = as_mask(loss_mask)
    dtype = rewards.dtype if rewards.dtype.is_floating_point else torch.get_default_dtype()
    column = advantage.to(dtype).unsqueeze(-1)
    tokens = torch.empty(mask.shape, dtype=dtype, device=mask.device)
    for rows in row_blocks(tokens):
        keep_bits(column[rows], mask_bits(mask[rows], dtype), out=tokens[rows])
    return tokens


def whiten_over_tokens(
    advantage: Tensor, rewards: Tensor, loss_mask: Tensor, valid: Tensor, keep: Tensor | None = None
) -> Tensor:
    """Spreads advantages [B] over tokens and whitens them over the tokens of valid rows; 0 for rows not to ``keep``."""
    mask = as_mask(loss_mask)
    counted = mask & valid.unsqueeze(-1)
    whitened = whiten(over_tokens(advantage, rewards, mask), counted)
    return whitened if keep is None else fill_masked(whitened, counted & keep.unsqueeze(-1))


def flat(groups: Groups, singleton: Singleton) -> Tensor:
    """True [B] for samples whose group has no spread, and so no signal."""
    equal = groups.to_rows(groups.spread) == 0
    return equal & ~groups.alone if singleton == "reward" else equal


def _deviations(level: Level, rewards: Tensor, groups: Groups, leave_one_out: bool) -> Tensor:
    if level == "none":
        return fill_masked(wide(rewards), groups.valid)
    baseline = groups if level == "group" else one_group(rewards)
    return _leave_one_out(baseline) if leave_one_out else baseline.deviations


def _leave_one_out(groups: Groups) -> Tensor:
    """Value minus the mean of the *other* values of the group, [B]."""
    return groups.times(groups.deviations, groups.size / (groups.size - 1).clamp_min(1))
