"""Group filters (dynamic sampling): which samples to keep, as a mask [B] that is the same for all samples of a group."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rlvlm.algos.checks import check_not_negative, check_rows_of, check_window
from rlvlm.algos.grouping import group
from rlvlm.algos.numerics import as_mask
from rlvlm.algos.registries import register_filter
from rlvlm.errors import ConfigError, nearest


@register_filter("reward_spread", names_reward="of", compares=True)
@torch.no_grad()
def reward_spread(
    rewards: Tensor,
    group_ids: Tensor,
    scores: Tensor | None = None,
    scores_by_rule: Mapping[str, Tensor] | None = None,
    reward_details: Mapping[str, Tensor] | None = None,
    *,
    of: str = "rewards",
    above: float = 0.0,
) -> Tensor:
    """``max(r) - min(r) > above``: keeps groups whose rewards differ, for only they carry a gradient.

    Paper: DAPO, arXiv 2503.14476.
    Elsewhere: ``filter_groups`` (verl); ``use_dynamic_sampling`` (NeMo-RL).

    Args:
        of: what is compared: ``rewards`` (after the penalties of regularizers that act on the reward), ``scores`` (before),
            a reward rule, or a number that a rule tells beside its score, by its key or as ``rule.key``.
    """
    check_not_negative("reward_spread", above=above)
    groups = group(_chosen(of, rewards, scores, scores_by_rule, reward_details), group_ids)
    return groups.to_rows(groups.spread > above)


@register_filter("mean_window", names_reward="of")
@torch.no_grad()
def mean_window(
    rewards: Tensor,
    group_ids: Tensor,
    scores: Tensor | None = None,
    scores_by_rule: Mapping[str, Tensor] | None = None,
    reward_details: Mapping[str, Tensor] | None = None,
    *,
    of: str = "rewards",
    low: float = 0.01,
    high: float = 0.99,
) -> Tensor:
    """``low < mean(r) < high``: keeps groups whose mean reward lies inside the window.

    Elsewhere: ``online_filtering``, ``filter_key``, ``filter_low``, ``filter_high`` (EasyR1, RLLaVA).

    Args:
        of: whose mean: ``rewards`` (after the penalties of regularizers that act on the reward), ``scores`` (before), a
            reward rule such as accuracy, or a number that a rule tells beside its score, by its key or as ``rule.key``.
    """
    check_window("mean_window", low, high)
    chosen = _chosen(of, rewards, scores, scores_by_rule, reward_details)
    groups = group(chosen, group_ids)
    mean = (groups.minimum + groups.mean_shifted).to(torch.promote_types(chosen.dtype, torch.float32))
    return groups.to_rows((mean > low) & (mean < high) & (groups.size > 0))


@register_filter("length")
@torch.no_grad()
def length(loss_mask: Tensor, group_ids: Tensor, *, shortest: float = 0.0, longest: float | None = None) -> Tensor:
    """``shortest ≤ mean(length) ≤ longest``: keeps groups by their mean number of policy tokens; ``longest`` may be null."""
    check_rows_of(loss_mask, group_ids=group_ids)
    longest = math.inf if longest is None else longest
    check_not_negative("length", shortest=shortest)
    check_window("length", shortest, longest)
    groups = group(as_mask(loss_mask).sum(-1).to(torch.float32), group_ids)
    mean = groups.minimum + groups.mean_shifted
    return groups.to_rows((mean >= shortest) & (mean <= longest))


def _chosen(
    of: str,
    rewards: Tensor,
    scores: Tensor | None,
    scores_by_rule: Mapping[str, Tensor] | None,
    reward_details: Mapping[str, Tensor] | None,
) -> Tensor:
    known = {**(reward_details or {}), **(scores_by_rule or {}), "rewards": rewards}
    if scores is not None:
        known["scores"] = scores
    if of not in known:
        if not len(rewards):
            return rewards
        raise ConfigError(f"a filter can't look at '{of}', which is no reward of this batch{nearest(of, known)}.")
    return known[of]
