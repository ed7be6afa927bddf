"""Masked sums and the one place where a log-ratio is exponentiated.

Masked places may hold anything, NaN and inf included: they are replaced by zeros *before* any arithmetic, so that
neither a value nor a gradient of theirs reaches a valid place.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before ``exp``: e^20 is 4.9e8, finite in every dtype but half precision."""


def exp_clamped(log_ratio: Tensor, limit: float = LOG_RATIO_LIMIT) -> Tensor:
    """``exp`` of a log-ratio clamped to ± ``limit``; outside of it the value is constant and the gradient 0."""
    return log_ratio.clamp(-limit, limit).exp()


def as_mask(mask: Tensor) -> Tensor:
    """The mask as bool; a numeric mask counts as true where it is positive."""
    return mask if mask.dtype == torch.bool else mask > 0


def fill_masked(values: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """``values`` with ``fill`` where the mask is false."""
    return torch.where(mask, values, torch.full((), fill, dtype=values.dtype, device=values.device))


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Sum over the places where the mask is true."""
    kept = fill_masked(values, mask)
    return kept.sum() if dim is None else kept.sum(dim, keepdim=keepdim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Mean over the places where the mask is true; 0 where there are none."""
    count = mask.sum() if dim is None else mask.sum(dim, keepdim=keepdim)
    return masked_sum(values, mask, dim, keepdim) / count.clamp_min(1)


def wide(values: Tensor) -> Tensor:
    """``values`` in float64 for accumulation; in float32 on devices that have no float64 (MPS)."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def whiten(values: Tensor, mask: Tensor, *, eps: float = 1e-8) -> Tensor:
    """``(x - mean) / sqrt(var + eps)`` over the tokens of the mask, zero elsewhere; the variance is unbiased.

    Equal values give exactly 0, and so does a single value.
    """
    count = mask.sum()
    first = torch.where(mask, values, torch.full((), torch.inf, dtype=values.dtype, device=values.device)).amin()
    shifted = fill_masked(values - torch.where(count > 0, first, torch.zeros_like(first)), mask)
    mean = shifted.sum(dtype=wide(shifted[:0]).dtype) / count.clamp_min(1)
    centred = fill_masked(shifted - mean.to(values.dtype), mask)
    variance = centred.square().sum(dtype=mean.dtype) / (count - 1).clamp_min(1)
    return centred * (variance + eps).rsqrt().to(values.dtype)
