"""Segment operations on ``group_ids``: statistics of groups of any size in any order, without a loop over groups.

Statistics are accumulated in float64 on values shifted by their group's minimum, so that a group of equal values has a
spread and deviations of exactly 0 whatever the value. Rows that are not ``valid`` (a reward that is NaN or infinite) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvlm.algos.checks import check_row_fields, check_rows_of
from rlvlm.algos.numerics import wide
from rlvlm.errors import FieldError


@dataclass(frozen=True)
class Groups:
    """Values [B] seen as groups of rows.

    Attributes:
        index: [B] int64, the number of each row's group, 0 … G-1.
        valid: [B] bool, rows that count.
        shifted: [B], values minus their group's minimum; 0 where not valid.
        minimum: [G], of the valid values; 0 for a group that has none.
        size: [G], the number of valid rows.
    """

    index: Tensor
    valid: Tensor
    shifted: Tensor
    minimum: Tensor
    size: Tensor

    def sum(self, values: Tensor) -> Tensor:
        """Sum [G] of values [B] over the valid rows of each group."""
        return _segment_sum(torch.where(self.valid, values, torch.zeros_like(values)), self.index, self.size.shape[0])

    def max(self, values: Tensor) -> Tensor:
        """Maximum [G] of values [B] over the valid rows of each group; -inf for a group that has none."""
        floor = torch.full((), -torch.inf, dtype=values.dtype, device=values.device)
        return _segment_reduce(torch.where(self.valid, values, floor), self.index, self.size.shape[0], "amax")

    @property
    def mean_shifted(self) -> Tensor:
        """Mean [G] of the shifted values; exactly 0 for a group of equal values."""
        return self.sum(self.shifted) / self.size.clamp_min(1)

    @property
    def deviations(self) -> Tensor:
        """Value minus group mean [B]; exactly 0 for a group of equal values and for rows that are not valid."""
        centred = self.shifted - self.mean_shifted[self.index]
        return torch.where(self.valid, centred, torch.zeros_like(centred))

    def std(self, unbiased: bool = True) -> Tensor:
        """Standard deviation [G], divided by size - 1 (or by size); 0 for a group of one."""
        divisor = (self.size - 1).clamp_min(1) if unbiased else self.size.clamp_min(1)
        return (self.sum(self.deviations.square()) / divisor).sqrt()

    @property
    def spread(self) -> Tensor:
        """Largest minus smallest value [G]; 0 for a group of one or none."""
        return self.max(self.shifted).clamp_min(0)

    @property
    def alone(self) -> Tensor:
        """True [B] for the only valid row of its group."""
        return self.valid & (self.size[self.index] == 1)


def group(values: Tensor, group_ids: Tensor) -> Groups:
    """Groups values [B] by ids [B] (any integers, in any order); values that are not finite are not valid.

    Raises ``FieldError`` for shapes other than [B] and for ids that are not integers.
    """
    check_row_fields(rewards=values, group_ids=group_ids)
    if group_ids.dtype.is_floating_point or group_ids.dtype == torch.bool:
        raise FieldError(f"'group_ids' has an integer dtype, got {group_ids.dtype}.")
    names, index = torch.unique(group_ids, return_inverse=True)
    return _grouped(values, index, names.shape[0])


def one_group(values: Tensor) -> Groups:
    """All rows as one group: statistics over the batch."""
    return _grouped(values, torch.zeros_like(values, dtype=torch.int64), 1)


def tokens_of_group(mask: Tensor, group_ids: Tensor) -> Tensor:
    """Number of tokens of the mask [B, L] in each row's whole group, [B] float32."""
    check_rows_of(mask, group_ids=group_ids)
    names, index = torch.unique(group_ids, return_inverse=True)
    return _segment_sum(mask.sum(-1).to(torch.float32), index, names.shape[0])[index]


def _grouped(values: Tensor, index: Tensor, count: int) -> Groups:
    exact = wide(values)
    valid = exact.isfinite()
    zero = torch.zeros((), dtype=exact.dtype, device=exact.device)
    minimum = _segment_reduce(torch.where(valid, exact, zero + torch.inf), index, count, "amin")
    minimum = torch.where(minimum.isfinite(), minimum, zero)
    shifted = torch.where(valid, exact - minimum[index], zero)
    return Groups(index, valid, shifted, minimum, _segment_sum(valid.to(exact.dtype), index, count))


def _segment_sum(values: Tensor, index: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, index, values)


def _segment_reduce(values: Tensor, index: Tensor, count: int, reduce: str) -> Tensor:
    start = torch.full(
        (count,), torch.inf if reduce == "amin" else -torch.inf, dtype=values.dtype, device=values.device
    )
    return start.scatter_reduce_(0, index, values, reduce)
