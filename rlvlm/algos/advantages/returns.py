"""Advantages from discounted returns: one for each token, carried across observation tokens.

All take ``token_rewards`` [B, L] and ``loss_mask`` [B, L]; a reward outside ``loss_mask`` is not counted. A row with a
reward, value or baseline that is not finite is left out: its advantages are 0, and the others get what they would get
without it. There is no group baseline: a group of equal rewards is not at 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlvlm.algos.advantages.scan import Scan, scan_with_decays
from rlvlm.algos.checks import check_factor, check_ids, check_rows_of, check_token_fields
from rlvlm.algos.numerics import (
    Moments,
    as_mask,
    fill_masked,
    keep_bits,
    leave_out_rows,
    mask_bits,
    row_blocks,
    whiten,
    widen_float16,
)
from rlvlm.algos.registries import register_advantage
from rlvlm.algos.results import AdvantageEstimate
from rlvlm.errors import FieldError


@register_advantage("gae")
@torch.no_grad()
def gae(
    token_rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten_tokens: bool = True,
) -> AdvantageEstimate:
    """``A_t = δ_t + γλ A_next`` with ``δ_t = r_t + γ V_next - V_t``, whitened; returns ``A + V``.

    "Next" is the next policy token. A row that is left out has its values for returns, so that a critic learns nothing of it.

    Paper: GAE, arXiv 1506.02438.
    Elsewhere: ``gae`` (verl, EasyR1, RLLaVA, OpenRLHF).

    Args:
        gamma: discount, from 0 to 1.
        lam: λ, from 0 (one step) to 1 (whole return).
        whiten_tokens: normalise the advantages (not the returns) over the tokens of the batch.
    """
    check_factor("gae", gamma=gamma, lam=lam)
    check_token_fields(token_rewards=token_rewards, values=values, loss_mask=loss_mask)
    token_rewards, values = widen_float16(token_rewards, values)
    sampled = as_mask(loss_mask)
    mask = leave_out_rows(sampled, token_rewards, values)
    advantages, returns = torch.empty_like(values), torch.empty_like(values)
    scan, moments = Scan(gamma * lam, values), Moments()
    for rows in row_blocks(values):
        reward, value, bits = token_rewards[rows], values[rows], mask_bits(mask[rows], values.dtype)
        # With Z = (1 - λ) V + λ R the recursion closes: R_t = r_t + γ Z_next and Z_t = (1 - λ) V_t + λ r_t + γλ Z_next.
        mixed = torch.lerp(value, reward, lam)
        keep_bits(mixed, bits, out=mixed)
        target = scan.after(mixed, mask[rows]).mul_(gamma).add_(reward)
        keep_bits(target, bits, out=returns[rows])
        advantage = keep_bits(target.sub_(value), bits, out=advantages[rows])
        if whiten_tokens:
            moments.add(advantage, bits)
    if mask is not sampled:
        returns = torch.where(sampled & ~mask, values.nan_to_num(0.0, 0.0, 0.0), returns)
    return AdvantageEstimate(moments.whiten(advantages, mask, out=advantages) if whiten_tokens else advantages, returns)


@register_advantage("reinforce_plus_plus")
@torch.no_grad()
def reinforce_plus_plus(
    token_rewards: Tensor,
    loss_mask: Tensor,
    *,
    gamma: float = 1.0,
    masked: Literal["carry", "reset"] = "carry",
) -> AdvantageEstimate:
    """``whiten(R_t)`` with the discounted return ``R_t = r_t + γ R_next`` of each token.

    Paper: REINFORCE++, arXiv 2501.03262.
    Elsewhere: ``reinforce_plus_plus`` (verl, EasyR1, RLLaVA); ``reinforce`` (OpenRLHF).

    Args:
        masked: what a masked token does to the return of those before it: ``carry`` passes it on, ``reset`` cuts it off
            (EasyR1, RLLaVA and verl up to July 2026), so that the turns before an observation see no later reward.
    """
    check_factor("reinforce_plus_plus", gamma=gamma)
    check_token_fields(token_rewards=token_rewards, loss_mask=loss_mask)
    (token_rewards,) = widen_float16(token_rewards)
    mask = leave_out_rows(as_mask(loss_mask), token_rewards)
    rewards = fill_masked(token_rewards, mask)
    if masked == "carry":
        returns = fill_masked(torch.add(rewards, Scan(gamma, rewards).after(rewards, mask), alpha=gamma), mask)
    else:
        next_is_policy = torch.nn.functional.pad(mask[:, 1:], (0, 1)).to(rewards.dtype)
        returns = fill_masked(scan_with_decays(rewards, gamma * next_is_policy), mask)
    return AdvantageEstimate(whiten(returns, mask), returns)


@register_advantage("remax")
@torch.no_grad()
def remax(token_rewards: Tensor, greedy_rewards: Tensor, group_ids: Tensor, loss_mask: Tensor) -> AdvantageEstimate:
    """``R_t - r_greedy``: the undiscounted return minus the reward of one greedy answer to the same prompt.

    ``greedy_rewards`` [P] is looked up by ``group_ids`` [B], from 0 to P - 1; on a device this waits for the smallest and
    largest id.

    Paper: ReMax, arXiv 2310.10505.
    Elsewhere: ``remax`` (verl, EasyR1, RLLaVA).
    """
    check_token_fields(token_rewards=token_rewards, loss_mask=loss_mask)
    check_rows_of(loss_mask, group_ids=group_ids)
    _check_greedy(greedy_rewards, group_ids)
    token_rewards, greedy_rewards = widen_float16(token_rewards, greedy_rewards)
    baseline = greedy_rewards[group_ids].unsqueeze(-1)
    mask = leave_out_rows(as_mask(loss_mask), token_rewards, baseline.expand_as(token_rewards))
    returns = fill_masked(token_rewards, mask).flip(-1).cumsum(-1).flip(-1)
    advantages = returns - baseline
    return AdvantageEstimate(fill_masked(advantages, mask), fill_masked(returns, mask))


def _check_greedy(greedy_rewards: Tensor, group_ids: Tensor) -> None:
    """Raises ``FieldError`` unless ``greedy_rewards`` [P] has an entry for every group id."""
    check_ids(group_ids)
    if greedy_rewards.dim() != 1:
        raise FieldError(
            f"'greedy_rewards' has shape [P], one entry for each prompt, got {list(greedy_rewards.shape)}."
        )
    if not len(group_ids):
        return
    low, high = torch.stack(group_ids.aminmax()).tolist()
    if low < 0:
        raise FieldError(f"'group_ids' counts the prompts of 'greedy_rewards' from 0, got the id {low}.")
    if high >= len(greedy_rewards):
        raise FieldError(
            f"'greedy_rewards' has shape [P] with at least {high + 1} prompts, for the largest of 'group_ids' is {high}, "
            f"got {list(greedy_rewards.shape)}."
        )
