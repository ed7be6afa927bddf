"""Statistics of groups of rows of any size in any order, without a loop over groups.

They are accumulated in float64 on values shifted by their group's minimum, so that a group of equal values has a
spread and deviations of exactly 0 whatever the value. Rows that are not ``valid`` (a reward that is NaN or infinite) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rlvlm.algos.checks import check_ids, check_row_fields, check_rows_of
from rlvlm.algos.numerics import wide
from rlvlm.algos.segments import EvenSegments, ScatteredSegments, Segments, segment


@dataclass(frozen=True)
class Groups:
    """Values [B] seen as groups of rows.

    Attributes:
        segments: which group each row belongs to.
        finite: [B] bool, rows that count; ``None`` where all are known to.
        shifted: [B], values minus their group's minimum; 0 where not valid.
        minimum: [G], of the valid values; inf for a group that has none.
    """

    segments: Segments
    finite: Tensor | None
    shifted: Tensor
    minimum: Tensor

    @cached_property
    def valid(self) -> Tensor:
        """True [B] for rows that count."""
        return torch.ones_like(self.shifted, dtype=torch.bool) if self.finite is None else self.finite

    @cached_property
    def size(self) -> Tensor:
        """Number of valid rows [G]."""
        if self.finite is None:
            return self.segments.sizes(self.shifted)
        return self.segments.sum(self.finite.to(self.shifted.dtype))

    def to_rows(self, values: Tensor) -> Tensor:
        """What each row's group holds, [B] of [G]."""
        return self.segments.to_rows(values)

    def minus(self, values: Tensor, of_groups: Tensor) -> Tensor:
        """Values [B] minus what their groups hold [G]; 0 for rows that are not valid."""
        return self._where_valid(self.segments.combine(torch.sub, values, of_groups), 0.0)

    def times(self, values: Tensor, of_groups: Tensor) -> Tensor:
        """Values [B] times what their groups hold [G]."""
        return self.segments.combine(torch.mul, values, of_groups)

    def sum(self, values: Tensor) -> Tensor:
        """Sum [G] of values [B] over the valid rows of each group."""
        return self.segments.sum(self._where_valid(values, 0.0))

    def max(self, values: Tensor) -> Tensor:
        """Maximum [G] of values [B] over the valid rows of each group; -inf for a group that has none."""
        return -self.segments.min(self._where_valid(-values, torch.inf))

    @cached_property
    def mean_shifted(self) -> Tensor:
        """Mean [G] of the shifted values; exactly 0 for a group of equal values."""
        return self.segments.sum(self.shifted) / self.size.clamp_min(1)

    @cached_property
    def deviations(self) -> Tensor:
        """Value minus group mean [B]; exactly 0 for a group of equal values and for rows that are not valid."""
        return self.minus(self.shifted, self.mean_shifted)

    def std(self, unbiased: bool = True) -> Tensor:
        """Standard deviation [G], divided by size - 1 (or by size); 0 for a group of one."""
        divisor = (self.size - 1).clamp_min(1) if unbiased else self.size.clamp_min(1)
        return (self.segments.sum(self.deviations.square()) / divisor).sqrt()

    @cached_property
    def spread(self) -> Tensor:
        """Largest minus smallest value [G]; 0 for a group of one or none."""
        return self.max(self.shifted).clamp_min(0)

    @cached_property
    def alone(self) -> Tensor:
        """True [B] for the only valid row of its group."""
        return self.valid & self.to_rows(self.size == 1)

    def _where_valid(self, values: Tensor, otherwise: float) -> Tensor:
        return values if self.finite is None else torch.where(self.finite, values, otherwise)


def group(values: Tensor, group_ids: Tensor) -> Groups:
    """Groups values [B] by ids [B] (any integers, in any order); values that are not finite are not valid.

    Raises ``FieldError`` for shapes other than [B] and for ids that are not integers.
    """
    check_row_fields(rewards=values, group_ids=group_ids)
    check_ids(group_ids)
    return _grouped(values, segment(group_ids))


def one_group(values: Tensor) -> Groups:
    """All rows as one group: statistics over the batch."""
    rows = len(values)
    return _grouped(values, EvenSegments(1, rows) if rows else ScatteredSegments(1, values.long()))


def tokens_of_group(mask: Tensor, group_ids: Tensor) -> Tensor:
    """Number of tokens of the mask [B, L] in each row's whole group, [B] float32."""
    check_rows_of(mask, group_ids=group_ids)
    segments = segment(group_ids)
    return segments.to_rows(segments.sum(mask.sum(-1).to(torch.float32)))


def _grouped(values: Tensor, segments: Segments) -> Groups:
    exact = wide(values)
    rest = exact - exact  # 0, but NaN for NaN and ± inf
    if exact.device.type == "cpu" and float(rest.sum()) == 0:  # elsewhere the question would wait for the device
        minimum = segments.min(exact)
        return Groups(segments, None, segments.combine(torch.sub, exact, minimum), minimum)
    finite = rest == 0
    minimum = segments.min(torch.where(finite, exact, torch.inf))
    shifted = torch.where(finite, segments.combine(torch.sub, exact, minimum), 0.0)
    return Groups(segments, finite, shifted, minimum)
