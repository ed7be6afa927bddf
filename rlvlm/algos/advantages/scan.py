"""Discounted sums over the later policy tokens of each row, without a loop over time.

Masked tokens (observations of an environment) are skipped: what comes after them is carried to the token before.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 64


def discounted_sums(values: Tensor, mask: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """For each policy token ``y_t = x_t + decay · y_next``, and the ``y_next`` of the policy token after it.

    Args:
        values: x, [B, L], zero outside the mask.
        mask: [B, L] bool, the policy tokens.

    Returns ``y`` and ``y_next``, [B, L]; what they hold outside the mask is of no use.
    """
    order = mask.cumsum(-1) - 1
    width = values.shape[-1]
    compact = torch.zeros(values.shape[0], width + 1, dtype=values.dtype, device=values.device)
    slots = torch.where(mask, order, width)
    compact.scatter_(-1, slots, values)
    after = _contiguous_after(compact[:, :width], decay)
    later = after.gather(-1, order.clamp_min(0))
    return values + decay * later, later


def _contiguous_after(values: Tensor, decay: float) -> Tensor:
    """``y_{t+1}`` of ``y_t = x_t + decay · y_{t+1}`` for rows without gaps."""
    rows, length = values.shape
    pad = -length % _CHUNK
    chunks = torch.nn.functional.pad(values, (0, pad)).view(rows, -1, _CHUNK)
    distance = torch.arange(_CHUNK, device=values.device)
    power = torch.full((), decay, dtype=values.dtype, device=values.device)
    inside = torch.where(distance[:, None] > distance, power ** (distance[:, None] - distance - 1).clamp_min(0), 0)
    after = chunks @ inside
    first = after[..., 0] * decay + chunks[..., 0]
    carry = torch.zeros(rows, chunks.shape[1], dtype=values.dtype, device=values.device)
    for chunk in range(chunks.shape[1] - 2, -1, -1):
        carry[:, chunk] = first[:, chunk + 1] + power**_CHUNK * carry[:, chunk + 1]
    after += carry.unsqueeze(-1) * power ** (_CHUNK - 1 - distance)
    return after.view(rows, -1)[:, :length]
