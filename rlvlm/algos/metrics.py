"""Metrics whose key says how they are reduced: ``mean/clip_fraction``, ``max/ratio``, ``min/…``, ``sum/…``.

A loss gives per-token tensors. ``Algorithm.loss`` turns them into the *share* of one micro-batch: a ``mean`` is the sum over
its tokens divided by the token count of the whole mini-batch. Shares of micro-batches and ranks therefore add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from rlvlm.algos.numerics import fill_masked
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
def token_shares(metrics: Mapping[str, Tensor], mask: Tensor, num_tokens: float) -> dict[str, Tensor]:
    """Reduces per-token metrics [B, L] over the mask to the share of one micro-batch; see the module's docstring."""
    return {key: _share(reduction_of(key), value, mask, num_tokens) for key, value in metrics.items()}


@torch.no_grad()
def token_means(metrics: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
    """Reduces per-token metrics [B, L] over the mask of a whole batch; a batch without tokens gives 0."""
    count = mask.sum().clamp_min(1)
    shares = token_shares(metrics, mask, 1)
    reduced = {key: value / count if reduction_of(key) == "mean" else value for key, value in shares.items()}
    return {key: torch.where(value.isfinite(), value, torch.zeros_like(value)) for key, value in reduced.items()}


def join_shares(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Joins the shares of several blocks of rows, which have the same keys."""
    return {key: _JOIN[reduction_of(key)](torch.stack([part[key] for part in parts])) for key in parts[0]}


_JOIN: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.sum,
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
}


def _share(reduction: str, value: Tensor, mask: Tensor, num_tokens: float) -> Tensor:
    if reduction in ("max", "min"):
        filled = fill_masked(value, mask, -math.inf if reduction == "max" else math.inf)
        return filled.amax() if reduction == "max" else filled.amin()
    total = (value & mask).count_nonzero().float() if value.dtype == torch.bool else fill_masked(value, mask).sum()
    return total / max(num_tokens, 1) if reduction == "mean" else total
