"""Metrics whose key says how they are reduced: ``mean/clip_fraction``, ``max/ratio``, ``min/…``, ``sum/…``.

A loss gives tensors [B, L], or [B, 1] where all tokens of a sequence have the same. ``Algorithm.loss`` turns them into the
*share* of one micro-batch: a ``mean`` is the sum over its tokens divided by the token count of the whole mini-batch. Shares
of micro-batches and ranks therefore add up. A mini-batch without tokens gives 0 for every metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from rlvlm.algos.numerics import ZeroOutside, fill_masked, widen_float16
from rlvlm.errors import ConfigError, nearest

REDUCTIONS = ("mean", "max", "min", "sum")
"""First part of a metric's key."""


def reduction_of(key: str) -> str:
    """The reduction that a metric's key carries; raises ``ConfigError`` for a key without one."""
    head = key.split("/", 1)[0]
    if head not in REDUCTIONS or "/" not in key:
        raise ConfigError(
            f"metric key '{key}' does not say how it is reduced{nearest(head, REDUCTIONS)}; write 'mean/{key}', for instance."
        )
    return head


@torch.no_grad()
def token_shares(metrics: Mapping[str, Tensor], clean: ZeroOutside, num_tokens: float) -> dict[str, Tensor]:
    """Reduces per-token metrics over the mask of ``clean`` to the share of one micro-batch; see the module's docstring."""
    shares = {}
    for key, value in metrics.items():
        reduction = reduction_of(key)
        if num_tokens == 0:
            shares[key] = torch.zeros((), device=value.device)
        elif reduction in ("max", "min"):
            shares[key] = _extreme(reduction, value, clean)
        else:
            total = _total(value, clean)
            shares[key] = total / max(num_tokens, 1) if reduction == "mean" else total
    return shares


@torch.no_grad()
def token_means(metrics: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
    """Reduces per-token metrics over the mask of a whole batch; one without tokens gives 0, and NaN and infinity show."""
    count = mask.sum().clamp_min(1)
    shares = token_shares(metrics, ZeroOutside(mask), 1)
    reduced = {key: value / count if reduction_of(key) == "mean" else value for key, value in shares.items()}
    return {key: torch.where(mask.any(), value, torch.zeros_like(value)) for key, value in reduced.items()}


def join_shares(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Joins the shares of several blocks of rows, which have the same keys."""
    return {key: _JOIN[reduction_of(key)](torch.stack([part[key] for part in parts])) for key in parts[0]}


_JOIN: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.sum,
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
}


def _extreme(reduction: str, value: Tensor, clean: ZeroOutside) -> Tensor:
    """Largest or smallest value of a token; minus or plus infinity where there is none."""
    nothing = -math.inf if reduction == "max" else math.inf
    if value.numel() == 0:
        return torch.full((), nothing, device=value.device)
    present = clean.mask if value.shape == clean.mask.shape else clean.counts > 0
    kept = fill_masked(value, present, nothing)
    return kept.amax() if reduction == "max" else kept.amin()


def _total(value: Tensor, clean: ZeroOutside) -> Tensor:
    """Sum over tokens."""
    if value.dtype == torch.bool:
        return (value & clean.mask).count_nonzero().float()
    if value.shape == clean.mask.shape:
        return widen_float16(clean(value))[0].sum()
    return (widen_float16(fill_masked(value, clean.counts > 0))[0] * clean.counts).sum()
