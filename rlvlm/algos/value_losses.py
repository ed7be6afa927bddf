"""Losses of the critic and how well it explains the returns."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvlm.algos.checks import check_positive, check_token_fields
from rlvlm.algos.numerics import as_mask, masked_mean, widen_float16
from rlvlm.algos.registries import register_value_loss
from rlvlm.algos.results import TokenLoss


@register_value_loss("plain")
def plain(value_preds: Tensor, returns: Tensor) -> TokenLoss:
    """``(v - R)² / 2`` of each token.

    Elsewhere: the value loss without ``cliprange_value``.
    """
    check_token_fields(value_preds=value_preds, returns=returns)
    value_preds, returns = widen_float16(value_preds, returns)
    return TokenLoss(0.5 * (value_preds - returns).square(), {"mean/value": value_preds.detach()})


@register_value_loss("clipped")
def clipped(value_preds: Tensor, values: Tensor, returns: Tensor, *, clip: float = 0.5) -> TokenLoss:
    """``max((v - R)², (clip(v, v_old ± clip) - R)²) / 2`` of each token.

    Paper: PPO, arXiv 1707.06347; on its use, arXiv 2005.12729.
    Elsewhere: ``cliprange_value`` (verl, RLLaVA, TRL).

    Args:
        clip: range around the value at the start of the step beyond which a prediction has no gradient.
    """
    check_token_fields(value_preds=value_preds, values=values, returns=returns)
    check_positive("clipped", clip=clip)
    value_preds, values, returns = widen_float16(value_preds, values, returns)
    free = (value_preds - returns).square()
    bounded = (value_preds.clamp(values - clip, values + clip) - returns).square()
    metrics = {"mean/value": value_preds.detach(), "mean/value_clip_fraction": (bounded > free).detach()}
    return TokenLoss(0.5 * torch.maximum(free, bounded), metrics)


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, loss_mask: Tensor) -> Tensor:
    """``1 - Var(returns - values) / Var(returns)`` over the tokens of ``loss_mask``; 0 where the returns do not vary."""
    check_token_fields(values=values, returns=returns, loss_mask=loss_mask)
    values, returns = widen_float16(values, returns)
    mask = as_mask(loss_mask)
    total, left = _variance(returns, mask), _variance(returns - values, mask)
    share = 1 - left / total.clamp_min(torch.finfo(total.dtype).tiny)
    return torch.where(total == 0, torch.zeros_like(total), share)  # NaN stays NaN


def _variance(values: Tensor, mask: Tensor) -> Tensor:
    return masked_mean((values - masked_mean(values, mask)).square(), mask)
