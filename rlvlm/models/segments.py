"""Attention within segments that are laid end to end in one row, some of them branching from another.

A stem is a causal segment: a prompt, or a whole sample. A branch goes on from a stem: a response, which sees all of its
stem and itself. So a prompt runs once for all its responses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlvlm.models.attention import grouped_sdpa
from rlvlm.models.families.base import segment_offsets


@dataclass(frozen=True)
class Segments:
    """Segments of one row as a block [count, length], shorter ones filled up with some token of the row.

    Attributes:
        count: segments.
        length: tokens of the longest.
        start: where the first begins in the row.
        index: [count * length] positions in the row; ``None`` when all are equally long and stand side by side.
    """

    count: int
    length: int
    start: int
    index: Tensor | None

    @staticmethod
    def of(lengths: Tensor, start: int) -> Segments:
        """Segments of these lengths, side by side from ``start`` on."""
        longest = int(lengths.max())
        if bool((lengths == longest).all()):
            return Segments(len(lengths), longest, start, None)
        begins = start + lengths.cumsum(0) - lengths
        steps = torch.arange(longest, device=lengths.device)
        filled = torch.where(steps < lengths[:, None], begins[:, None] + steps, start)
        return Segments(len(lengths), longest, start, filled.flatten())

    def take(self, row: Tensor) -> Tensor:
        """[T, H, D] of the row as blocks [count, H, length, D]."""
        size = self.count * self.length
        flat = row[self.start : self.start + size] if self.index is None else row.index_select(0, self.index)
        return flat.unflatten(0, (self.count, self.length)).transpose(1, 2)


@dataclass(frozen=True)
class SegmentLayout:
    """Stems first, then branches, in one row.

    Attributes:
        stem_of: [branches] the stem that each goes on from.
        each: branches of a stem, where all have equally many, side by side in the order of the stems; 0 where they don't.
        mask: [branches or 1, 1, length, stem length + length] bool: what each token of a branch may see.
        order: [T] place of each token of the row in the blocks, joined; ``None`` when they are in order.
    """

    stems: Segments
    branches: Segments | None = None
    stem_of: Tensor | None = None
    each: int = 0
    mask: Tensor | None = None
    order: Tensor | None = None

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`rlvlm.models.attention.AttentionLayout`; R is 1."""
        rows = [states[0].transpose(0, 1) for states in (query, key, value)]
        stem_query, *stems = [self.stems.take(row) for row in rows]
        blocks = [grouped_sdpa(stem_query, stems[0], stems[1], scaling, causal=True).flatten(0, 1)]
        if self.branches is not None:
            own_query, *own = [self.branches.take(row) for row in rows]
            keys, values = (self._continue(stem, mine) for stem, mine in zip(stems, own, strict=True))
            blocks.append(grouped_sdpa(own_query, keys, values, scaling, mask=self.mask).flatten(0, 1))
        joined = torch.cat(blocks) if len(blocks) > 1 else blocks[0]
        return (joined if self.order is None else joined.index_select(0, self.order))[None]

    def _continue(self, stems: Tensor, own: Tensor) -> Tensor:
        """[branches, H, stem length + length, D]: of each branch, its stem and itself."""
        if self.each:  # a broadcast, whose gradient is a plain sum
            spread = stems[:, None].expand(-1, self.each, -1, -1, -1)
            return torch.cat((spread, own.unflatten(0, (-1, self.each))), 3).flatten(0, 1)
        assert self.stem_of is not None
        return torch.cat((stems.index_select(0, self.stem_of), own), 2)


def segment_layout(stem_lengths: Tensor, branch_lengths: Tensor, stem_of: Tensor) -> SegmentLayout:
    """The layout of a row of stems [S], then branches [B], each going on from the stem of its number."""
    stems = Segments.of(stem_lengths, 0)
    places = [_places(stem_lengths, stems, 0)]
    filled = stems.index is not None
    if not int(branch_lengths.sum()):
        return SegmentLayout(stems, order=places[0] if filled else None)
    branches = Segments.of(branch_lengths, int(stem_lengths.sum()))
    places.append(_places(branch_lengths, branches, stems.count * stems.length))
    order = torch.cat(places) if filled or branches.index is not None else None
    each = len(branch_lengths) // len(stem_lengths)
    alike = torch.arange(len(stem_lengths), device=stem_of.device).repeat_interleave(each)
    mask = branch_mask(stem_lengths[stem_of], stems.length, branches.length)
    return SegmentLayout(stems, branches, stem_of, each if torch.equal(alike, stem_of) else 0, mask, order)


def branch_mask(stem_lengths: Tensor, stem_length: int, length: int) -> Tensor:
    """[B or 1, 1, length, stem_length + length] bool: all of the stem, and of the branch what came before (bottom-right)."""
    causal = torch.ones(length, length, dtype=torch.bool, device=stem_lengths.device).tril()
    if bool((stem_lengths == stem_length).all()):
        stem_lengths = stem_lengths[:1]
    seen = torch.arange(stem_length, device=stem_lengths.device) < stem_lengths[:, None]
    parts = (seen[:, None, :].expand(-1, length, -1), causal.expand(len(seen), -1, -1))
    return torch.cat(parts, 2)[:, None]


def _places(lengths: Tensor, segments: Segments, start: int) -> Tensor:
    """Place of each token of the segments in their block, which begins at ``start``."""
    number = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    return start + number * segments.length + segment_offsets(lengths)
