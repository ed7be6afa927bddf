"""Discounted sums over the later policy tokens of each row, without a loop over time.

Masked tokens (prompt, observations of an environment, padding) are skipped: what comes after them is carried to the
policy token before. Rows are compacted to their policy tokens; then ``y_t = x_t + decay · y_{t+1}`` has constant
coefficients, and is a triangular product inside chunks and the same recursion over the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 16


class Scan:
    """The scan of rows of one length with one decay; holds the small matrices that all blocks of rows share.

    Args:
        decay: the factor of each step, from 0 to 1.
        like: a tensor [B, L] of the length, dtype and device to come.
    """

    def __init__(self, decay: float, like: Tensor) -> None:
        self._levels: list[_Level] = []
        length, step = like.shape[-1] + 1, decay  # + 1 for the slot that takes what is before the first policy token
        while length > 1 or not self._levels:
            self._levels.append(_level(step, like))
            length, step = -(-length // _CHUNK), step**_CHUNK

    def after(self, values: Tensor, mask: Tensor) -> Tensor:
        """For each policy token the ``y`` of the policy token after it, where ``y_t = x_t + decay · y_next``; [B, L].

        Args:
            values: x, [B, L], zero outside the mask.
            mask: [B, L] bool, the policy tokens.

        Returns 0 for the last policy token of a row; entries outside the mask mean nothing.
        """
        if values.device.type == "cpu" and not _has_gaps(mask):  # elsewhere the question would wait for the device
            return self._scan(values, 0)
        slots = mask.cumsum(-1)  # 1 for the first policy token; slot 0 takes the zeros before it
        compact = values.new_zeros(values.shape[0], values.shape[1] + 1).scatter_add_(-1, slots, values)
        return self._scan(compact, 0).gather(-1, slots)

    def _scan(self, values: Tensor, depth: int) -> Tensor:
        """``y_{t+1}`` for rows in which every entry counts."""
        rows, length = values.shape
        level = self._levels[depth]
        count = -(-length // _CHUNK)  # spelt out, for a view of no elements can't tell
        chunks = torch.nn.functional.pad(values, (0, -length % _CHUNK)).view(rows, count, _CHUNK)
        after = chunks @ level.inside
        if count > 1:
            whole = torch.addcmul(chunks[..., 0], after[..., 0], level.decay)  # y of each chunk as if it were the last
            after.addcmul_(self._scan(whole, depth + 1).unsqueeze(-1), level.lift)
        return after.view(rows, count * _CHUNK)[:, :length]


@dataclass(frozen=True)
class _Level:
    """``inside`` [C, C] sums the later entries of a chunk; ``lift`` [C] carries the next chunk's ``y`` back to each entry."""

    decay: Tensor
    inside: Tensor
    lift: Tensor


def _level(decay: float, like: Tensor) -> _Level:
    power = like.new_tensor(decay)
    place = torch.arange(_CHUNK, device=like.device)
    ahead = place[:, None] - place - 1
    inside = torch.where(ahead >= 0, power ** ahead.clamp_min(0), 0.0)
    return _Level(power, inside, power ** (_CHUNK - 1 - place))


def _has_gaps(mask: Tensor) -> bool:
    """True if any row's policy tokens come in more than one run."""
    starts = (mask[:, 1:] > mask[:, :-1]).count_nonzero(-1) + mask[:, :1].sum(-1)
    return bool((starts > 1).any())


def scan_with_decays(values: Tensor, decays: Tensor) -> Tensor:
    """``y_t = x_t + a_t · y_{t+1}`` with a decay for each entry, [B, L] each, by doubling the reach (Hillis and Steele, 1986)."""
    length, reach = values.shape[-1], 1
    while reach < length:
        ahead = torch.nn.functional.pad(values[:, reach:], (0, reach))
        values = torch.addcmul(values, decays, ahead)
        decays = decays * torch.nn.functional.pad(decays[:, reach:], (0, reach))
        reach *= 2
    return values
