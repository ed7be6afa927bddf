"""Masking, masked sums, and the one place where a log-ratio is exponentiated.

Masked places may hold anything, NaN and inf included: they become zeros *before* any arithmetic, so that neither a value
nor a gradient of theirs reaches a valid place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before ``exp``: e^20 is 4.9e8."""

_BLOCK = 1 << 20  # elements of a thread (4 MiB in float32): what stays in a CPU's cache between two passes

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def exp_clamped(log_ratio: Tensor, upper: float = LOG_RATIO_LIMIT) -> Tensor:
    """``exp`` of a log-ratio clamped to [-20, ``upper``]; outside of it the value is constant and the gradient 0.

    Of float16, which holds no e^20, the result is float32.
    """
    (log_ratio,) = widen_float16(log_ratio)
    return clamp(log_ratio, -LOG_RATIO_LIMIT, upper).exp()


def log_difference(logp: Tensor, other: Tensor) -> Tensor:
    """``logp - other`` of two log-probs; 0 and not NaN where both are -inf."""
    return torch.where((logp == other) & logp.isinf(), 0.0, logp - other)


def clamp(values: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """``torch.clamp`` in value and gradient, which passes at the bounds, with a backward pass that a CPU vectorises."""
    return _Clamp.apply(values, low, high)


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, low: float | None, high: float | None) -> Tensor:
        bounded = values.clamp(low, high)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(bounded == values)
        return bounded

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inside,) = ctx.saved_tensors
        return fill_masked(gradients[0], inside), None, None


def widen_float16(*values: Tensor) -> tuple[Tensor, ...]:
    """float16 as float32, other dtypes as they are: for ratios, squares and sums, which soon pass float16's limit of 65504.

    A gradient that float16 can't hold comes back as the largest that it can.
    """
    return tuple(_Widen.apply(value) if value.dtype == torch.float16 else value for value in values)


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.to(torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        limit = torch.finfo(torch.float16).max
        return gradients[0].clamp(-limit, limit).to(torch.float16)


def as_mask(mask: Tensor) -> Tensor:
    """The mask as bool; a numeric mask counts as true where it is positive."""
    return mask if mask.dtype == torch.bool else mask > 0


def fill_masked(values: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """``values`` with ``fill`` where the bool mask is false."""
    return ZeroOutside(mask)(values) if fill == 0.0 else torch.where(mask, values, fill)


def leave_out_rows(mask: Tensor, *fields: Tensor) -> Tensor:
    """The bool mask [B, L] without the rows in which a field [B, L] is NaN or infinite at a place of the mask."""
    left = [fill_masked(field, mask) for field in fields]
    if mask.device.type == "cpu" and all(math.isfinite(float(field.sum())) for field in left):
        return mask  # elsewhere the question would wait for the device
    sound = torch.stack([field.isfinite().all(-1) for field in left]).all(0)
    return mask & sound.unsqueeze(-1)


class ZeroOutside:
    """Puts zeros where a mask is false, for several tensors in turn.

    On a CPU by a bitwise "and" with the mask, widened once: as blind to NaN as ``torch.where``, and ten times faster.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = as_mask(mask)
        self._bits: dict[torch.dtype, Tensor] = {}

    def __call__(self, values: Tensor) -> Tensor:
        dtype = values.dtype
        if values.device.type != "cpu" or dtype not in _BITS or values.shape != self.mask.shape:
            return torch.where(self.mask, values, 0.0 if dtype.is_floating_point else values.new_zeros(()))
        if dtype not in self._bits:
            self._bits[dtype] = mask_bits(self.mask, dtype)
        bits = self._bits[dtype]
        return _KeepBits.apply(values, bits) if values.requires_grad else keep_bits(values, bits)

    @cached_property
    def counts(self) -> Tensor:
        """Number of true entries of each row, [B, 1]."""
        widened = self._bits.get(torch.float32)  # a sum of int32 is vectorised, one of bool is not
        return row_counts(self.mask) if widened is None else -widened.sum(-1, keepdim=True, dtype=torch.int32)


def mask_bits(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The bool mask as integers of the width of a float dtype: all bits set where true, none where false."""
    return (-mask.view(torch.int8)).to(_BITS[dtype])


def keep_bits(values: Tensor, bits: Tensor, out: Tensor | None = None) -> Tensor:
    """Zeros where ``bits`` (of :func:`mask_bits`) are not set, whatever was there.

    Args:
        out: where to write, of the dtype of ``values``.
    """
    if out is None:
        return values.view(bits.dtype).bitwise_and(bits).view(values.dtype)
    torch.bitwise_and(values.view(bits.dtype), bits, out=out.view(bits.dtype))
    return out


class _KeepBits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, bits: Tensor) -> Tensor:
        ctx.save_for_backward(bits)
        return keep_bits(values, bits)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        return keep_bits(gradients[0], bits), None


def row_counts(mask: Tensor) -> Tensor:
    """Number of tokens of each row of a bool mask, [B, 1]."""
    return mask.count_nonzero(-1).unsqueeze(-1)


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Sum over the places where the mask is true."""
    (kept,) = widen_float16(fill_masked(values, mask))
    return kept.sum() if dim is None else kept.sum(dim, keepdim=keepdim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Mean over the places where the mask is true; 0 where there are none."""
    count = mask.sum() if dim is None else mask.sum(dim, keepdim=keepdim)
    return masked_sum(values, mask, dim, keepdim) / count.clamp_min(1)


def wide(values: Tensor) -> Tensor:
    """``values`` in float64 for accumulation; in float32 on devices that have no float64 (MPS)."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def row_blocks(values: Tensor) -> Iterator[slice]:
    """Slices of the rows of [B, L] whose elements fit a CPU's cache; a single one on other devices.

    Row-wise functions of several passes run block by block, so that only their first read and last write go to memory.
    """
    rows, length = values.shape
    elements = _BLOCK * torch.get_num_threads()  # fewer, and waking the threads takes longer than their work
    step = rows if values.device.type != "cpu" else max(1, elements // max(length, 1))
    for start in range(0, max(rows, 1), max(step, 1)):
        yield slice(start, min(start + step, rows))


@torch.no_grad()
def whiten(values: Tensor, mask: Tensor, *, eps: float = 1e-8) -> Tensor:
    """``(x - mean) / sqrt(var + eps)`` over the tokens of the mask, zero elsewhere; the variance is unbiased.

    Equal values, and a single one, give exactly 0.
    """
    if values.dtype == torch.float16:
        return whiten(values.to(torch.float32), mask, eps=eps).to(torch.float16)
    moments = Moments()
    for rows in row_blocks(values):
        bits = mask_bits(mask[rows], values.dtype)
        moments.add(keep_bits(values[rows], bits), bits)
    return moments.whiten(values, mask, eps=eps)


class Moments:
    """Mean and unbiased variance of values that come block by block, merged in float64 (Chan, Golub and LeVeque, 1979).

    A block's mean is corrected by the mean of the deviations from it, which makes the mean of equal values exact.
    """

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []

    def add(self, values: Tensor, bits: Tensor) -> None:
        """Takes in a block of values that are zero where the bits of its mask are not set."""
        count = -bits.sum(dtype=torch.int32)
        mean = values.sum() / count.clamp_min(1)
        deviation = values - mean
        deviation = keep_bits(deviation, bits, out=deviation).flatten()
        correction = wide(deviation.sum()) / count.clamp_min(1)
        square = wide(torch.dot(deviation, deviation)) - count * correction.square()
        self._blocks.append(torch.stack([wide(count), wide(mean) + correction, square]))

    def whiten(self, values: Tensor, mask: Tensor, *, eps: float = 1e-8, out: Tensor | None = None) -> Tensor:
        """The values whitened by what was taken in; ``out``, which may be ``values`` itself, is where to write."""
        mean, variance = self._merged()
        centre, scale = mean.to(values.dtype), (variance + eps).rsqrt().to(values.dtype)
        out = torch.empty_like(values) if out is None else out
        for rows in row_blocks(values):
            normal = torch.sub(values[rows], centre, out=out[rows]).mul_(scale)
            keep_bits(normal, mask_bits(mask[rows], values.dtype), out=normal)
        return out

    def _merged(self) -> tuple[Tensor, Tensor]:
        count, mean, square = torch.stack(self._blocks).unbind(-1)
        total, pivot = count.sum(), mean[count.argmax()]
        centre = pivot + ((mean - pivot) * count).sum() / total.clamp_min(1)
        return centre, (square + count * (mean - centre).square()).sum() / (total - 1).clamp_min(1)
