"""Group baselines that are normalised once more over the tokens of the batch.

As in ``group.py``: ``rewards`` [B], ``group_ids`` [B], ``loss_mask`` [B, L] give advantages [B, L]. Whitening shifts every
token by the batch mean, and so would give a group of equal rewards, which has no signal, a push: unless
``equal_groups="whitened"`` (verl), such a group stays at exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rlvlm.algos.advantages.group import (
    EqualGroups,
    Singleton,
    flat,
    over_std,
    settle_singletons,
    whiten_over_tokens,
)
from rlvlm.algos.checks import check_not_negative, check_row_fields, check_rows_of
from rlvlm.algos.grouping import group
from rlvlm.algos.numerics import wide
from rlvlm.algos.registries import register_advantage
from rlvlm.errors import ConfigError, nearest


@register_advantage("reinforce_plus_plus_baseline", group_baseline=True)
@torch.no_grad()
def reinforce_plus_plus_baseline(
    rewards: Tensor,
    group_ids: Tensor,
    loss_mask: Tensor,
    *,
    singleton: Singleton = "zero",
    equal_groups: EqualGroups = "zero",
) -> Tensor:
    """``whiten(r - mean)`` over all tokens of the batch: long answers weigh more in its mean and variance.

    Paper: REINFORCE++, arXiv 2501.03262.
    Elsewhere: ``reinforce_plus_plus_baseline`` (verl, RLLaVA); ``reinforce_baseline`` (OpenRLHF).
    """
    check_rows_of(loss_mask, rewards=rewards)
    groups = group(rewards, group_ids)
    advantage = settle_singletons(groups.deviations, rewards, groups, singleton)
    keep = ~flat(groups, singleton) if equal_groups == "zero" else None
    return whiten_over_tokens(advantage, rewards, loss_mask, groups.valid, keep)


@register_advantage("gdpo", group_baseline=True, names_rules="weights", acts_with={"eps": ("divide", (True,))})
@torch.no_grad()
def gdpo(
    scores_by_rule: Mapping[str, Tensor],
    group_ids: Tensor,
    loss_mask: Tensor,
    *,
    weights: dict[str, float] | None = None,
    divide: bool = True,
    eps: float = 1e-6,
    singleton: Singleton = "zero",
    equal_groups: EqualGroups = "zero",
) -> Tensor:
    """``whiten(Σ_k w_k (r_k - mean_k) / (std_k + eps))``: each reward rule normalised by itself, so that none drowns another.

    A sample with a score that is not finite in any of these rules is left out of all.

    Paper: GDPO, arXiv 2601.05242.
    Elsewhere: ``gdpo`` (verl); ``multi_objective_aggregation=normalize_then_sum`` (TRL).

    Args:
        weights: the rules that count and their weights; all with weight 1 where it is null.
        divide: divide by each rule's standard deviation in the group.
    """
    check_rows_of(loss_mask, group_ids=group_ids)
    check_not_negative("gdpo", eps=eps)
    chosen = dict.fromkeys(scores_by_rule, 1.0) if weights is None else weights
    if not chosen:
        raise ConfigError("gdpo normalises each reward rule by itself, and there are the scores of none.")
    _check_weights(chosen)
    for rule in chosen:
        if rule not in scores_by_rule:
            raise ConfigError(
                f"gdpo weighs the rule '{rule}', which this batch has not{nearest(rule, scores_by_rule)}."
            )
    check_row_fields(**{rule: scores_by_rule[rule] for rule in chosen})
    valid = torch.stack([scores_by_rule[rule].isfinite() for rule in chosen]).all(0)
    total = wide(torch.zeros_like(group_ids, dtype=torch.float32))
    keep = torch.full_like(group_ids, equal_groups == "whitened", dtype=torch.bool)
    for rule, weight in chosen.items():
        scores = torch.where(valid, scores_by_rule[rule], torch.nan)  # a sample counts for all rules or for none
        groups = group(scores, group_ids)
        advantage = groups.deviations
        if divide:
            advantage = groups.times(advantage, over_std(groups.std(), eps))
        total = total + weight * settle_singletons(advantage, scores, groups, singleton, 1 + eps if divide else 1.0)
        if weight:
            keep = keep | ~flat(groups, singleton)
    return whiten_over_tokens(total, scores, loss_mask, valid, keep)


def _check_weights(weights: Mapping[str, float]) -> None:
    for rule, weight in weights.items():
        if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not math.isfinite(weight):
            raise ConfigError(f"option 'weights' of 'gdpo' gives '{rule}' a finite number, got {weight!r}.")
