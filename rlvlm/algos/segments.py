"""Which group each row of a batch belongs to, and sums and minima over groups without a loop over them.

A rollout puts the samples of a prompt side by side, the same number for each: :class:`EvenSegments`, whose sums are sums of a
reshaped tensor. Groups of any size, in any order, are :class:`ScatteredSegments`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Segments(Protocol):
    """B rows in G groups, numbered 0 … G-1; a number may belong to no row."""

    @property
    def count(self) -> int:
        """G."""
        ...

    def sizes(self, like: Tensor) -> Tensor:
        """Number of rows [G] of each group, of the dtype and device of ``like``."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """Sum [G] of values [B]."""
        ...

    def min(self, values: Tensor) -> Tensor:
        """Minimum [G] of values [B]; inf for a group without rows."""
        ...

    def to_rows(self, of_groups: Tensor) -> Tensor:
        """What each row's group holds, [B] of [G]."""
        ...

    def combine(self, operation: Callable[[Tensor, Tensor], Tensor], values: Tensor, of_groups: Tensor) -> Tensor:
        """An elementwise operation on values [B] and what their groups hold [G]; [B]."""
        ...


@dataclass(frozen=True)
class EvenSegments:
    """Groups of ``width`` rows each, side by side in order."""

    count: int
    width: int

    def sizes(self, like: Tensor) -> Tensor:
        return like.new_full((self.count,), self.width)

    def sum(self, values: Tensor) -> Tensor:
        return values.view(self.count, self.width).sum(-1)

    def min(self, values: Tensor) -> Tensor:
        return values.view(self.count, self.width).amin(-1)

    def to_rows(self, of_groups: Tensor) -> Tensor:
        return of_groups.repeat_interleave(self.width)

    def combine(self, operation: Callable[[Tensor, Tensor], Tensor], values: Tensor, of_groups: Tensor) -> Tensor:
        return operation(values.view(self.count, self.width), of_groups.unsqueeze(-1)).view(-1)


@dataclass(frozen=True)
class ScatteredSegments:
    """Groups by the number of each row's group, ``index`` [B] int64."""

    count: int
    index: Tensor

    def sizes(self, like: Tensor) -> Tensor:
        return self.sum(like.new_ones(self.index.shape))

    def sum(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.count).index_add_(0, self.index, values)

    def min(self, values: Tensor) -> Tensor:
        return values.new_full((self.count,), torch.inf).scatter_reduce_(0, self.index, values, "amin")

    def to_rows(self, of_groups: Tensor) -> Tensor:
        return of_groups.index_select(0, self.index)

    def combine(self, operation: Callable[[Tensor, Tensor], Tensor], values: Tensor, of_groups: Tensor) -> Tensor:
        return operation(values, self.to_rows(of_groups))


def segment(group_ids: Tensor) -> Segments:
    """Finds the groups of ids [B], any integers.

    On a device this waits for the smallest and largest id, and where they are far apart for the distinct ones too.
    """
    if not len(group_ids):
        return ScatteredSegments(0, group_ids.long())
    if group_ids.device.type == "cpu":
        even = _even(group_ids)
        if even is not None:
            return even
    low, high = torch.stack(group_ids.aminmax()).tolist()
    if high - low < 4 * len(group_ids):
        return ScatteredSegments(high - low + 1, group_ids.long() - low)
    names, index = torch.unique(group_ids, return_inverse=True)
    return ScatteredSegments(len(names), index)


def _even(group_ids: Tensor) -> EvenSegments | None:
    """The groups if they stand side by side, all of one size, with ids that count up; asked where it costs no wait."""
    first, last = int(group_ids[0]), int(group_ids[-1])
    count = last - first + 1
    if count < 1 or len(group_ids) % count:
        return None
    segments = EvenSegments(count, len(group_ids) // count)
    ids = torch.arange(count).add_(first)
    misplaced = segments.combine(torch.ne, group_ids, ids)
    return None if int(misplaced.count_nonzero()) else segments
