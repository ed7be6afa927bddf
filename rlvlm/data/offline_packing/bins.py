"""Step 2 of offline packing: which samples share a bin, from integers alone.

Samples of equal cost are interchangeable, so the packing works on counts of distinct costs, not on samples. A bin takes
the largest cost that still fits, again and again (best fit, decreasing); the pattern found is emitted as often as its costs
last. A pattern uses up at least one cost, so there are about as many patterns as distinct costs, however many the samples are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvlm.data.offline_packing.patterns import Pattern, find_patterns
from rlvlm.data.progress import Progress
from rlvlm.errors import ConfigError, DataError

_CHUNK = 1 << 22  # samples handled at once: bounds the memory beyond the inputs and outputs
_CELLS = 1 << 26  # entries of the largest histogram
_DISTINCT = 1 << 19  # distinct costs that patterns are sought for: some twenty seconds' work

Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Budget:
    """What a bin holds at most: tokens, and vision patches where ``patches`` is set."""

    tokens: int
    patches: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"a bin holds at least 1 token, got max_tokens={self.tokens}.")
        if self.patches is not None and self.patches < 1:
            raise ConfigError(
                f"a bin holds at least 1 vision patch, got max_patches={self.patches}; leave it out for no limit."
            )


@dataclass(frozen=True)
class Bins:
    """Samples by bin.

    Attributes:
        samples: [K] sample numbers, bin after bin.
        offsets: [bins + 1] bin b holds ``samples[offsets[b]:offsets[b + 1]]``.
        over_long: [M] samples over a budget; when kept, each has a bin of its own at the end.
        tokens: sum over the samples that fit.
        budget: what was packed to.
    """

    samples: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    over_long: NDArray[np.uint32]
    tokens: int
    budget: Budget
    kept_over_long: bool = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, bin: int) -> NDArray[np.uint32]:
        return self.samples[self.offsets[bin] : self.offsets[bin + 1]]

    @property
    def packed(self) -> int:
        """Bins within the budgets."""
        return len(self) - (len(self.over_long) if self.kept_over_long else 0)

    @property
    def fill(self) -> float:
        """Tokens over token places, of the bins within the budgets; 1 for no bins."""
        return self.tokens / (self.packed * self.budget.tokens) if self.packed else 1.0

    @property
    def lower_bound(self) -> int:
        """Bins that no packing can do without: tokens over the budget, rounded up."""
        return -(-self.tokens // self.budget.tokens)


def pack(
    tokens: Ints,
    budget: Budget,
    patches: Ints | None = None,
    *,
    keep_over_long: bool = False,
    skip_empty: bool = False,
    progress: Progress | None = None,
) -> Bins:
    """Packs samples into bins.

    Args:
        tokens, patches: [N] cost of each sample; ``patches`` is read only where the budget has patches.
        keep_over_long: give samples over a budget a bin of their own.
        skip_empty: pass over samples of 0 tokens, which are rows that were left out.
        progress: counts the samples whose bin is found.

    Equal input gives equal output, to the byte. Every sample that fits the budgets is in exactly one bin; the others are
    listed, and dropped or given bins of their own. Raises ``DataError`` for costs below 1 token or 0 patches.
    """
    if budget.patches is None:
        patches = None
    elif patches is None:
        raise ConfigError("max_patches is set, but the samples' patch counts are not given.")
    _check(tokens, patches, least=0 if skip_empty else 1)
    over_long = _over(tokens, patches, budget)
    costs, histogram = _choose_costs(tokens, patches, budget)
    used = np.flatnonzero(histogram)
    counts, lengths, steps = histogram[used], used // costs.width, used % costs.width
    del histogram
    found = find_patterns(lengths, counts, budget.tokens, None if patches is None else steps, costs.steps)
    patterns = list(found if progress is None else _counted(found, progress))
    by_cost = _sort_by_cost(tokens, patches, costs, used, counts)
    singles = len(over_long) if keep_over_long else 0
    samples = _deal(by_cost, counts, patterns, singles)
    if singles:
        samples[-singles:] = over_long
    total = int((lengths * counts).sum())
    return Bins(samples, _offsets(patterns, singles), over_long, total, budget, keep_over_long)


def _counted(patterns: Iterator[Pattern], progress: Progress) -> Iterator[Pattern]:
    for pattern in patterns:
        progress.add(sum(pattern.uses) * pattern.times)
        yield pattern
    progress.add(progress.total - progress.done)  # those that no bin takes


@dataclass(frozen=True)
class _Costs:
    """Samples' costs as one number each: tokens, and patches in steps of ``step``, rounded up so that no budget is passed.

    The smallest step, a power of two, is taken that leaves at most 2^19 distinct costs; small data is counted exactly.
    """

    budget: Budget
    step: int = 1

    @property
    def steps(self) -> int | None:
        """Steps of patches that a bin holds."""
        return None if self.budget.patches is None else self.budget.patches // self.step

    @property
    def width(self) -> int:
        """Different numbers of steps that a sample may have."""
        return 1 if self.steps is None else self.steps + 1

    def keys(self, tokens: Ints, patches: Ints | None) -> NDArray[np.int64]:
        """tokens * width + steps of each sample, -1 over a budget."""
        keys = tokens.astype(np.int64)
        fits = (keys <= self.budget.tokens) & (keys > 0)
        if patches is not None and self.budget.patches is not None and self.steps is not None:
            fits &= patches <= self.budget.patches
            keys = keys * self.width + np.minimum(-(-patches.astype(np.int64) // self.step), self.steps)
        return np.where(fits, keys, -1)

    def histogram(self, tokens: Ints, patches: Ints | None) -> NDArray[np.int64]:
        """How many samples have each key."""
        counts = np.zeros((self.budget.tokens + 1) * self.width, np.int64)
        for part in _parts(tokens, patches):
            keys = self.keys(*part)
            keys = keys[keys >= 0]
            if self.width == 1:
                counts += np.bincount(keys, minlength=len(counts))
            else:  # the table may be far larger than the chunk
                found, times = np.unique(keys, return_counts=True)
                counts[found] += times
        return counts

    def coarser(self, counts: NDArray[np.int64]) -> tuple[_Costs, NDArray[np.int64]]:
        """Steps twice as large, and the histogram in them."""
        twice = _Costs(self.budget, self.step * 2)
        table = counts.reshape(-1, self.width)
        folded = np.zeros((len(table), twice.width), np.int64)
        for steps in range(self.width):
            folded[:, min(-(-steps // 2), twice.width - 1)] += table[:, steps]
        return twice, folded.reshape(-1)


def _choose_costs(tokens: Ints, patches: Ints | None, budget: Budget) -> tuple[_Costs, NDArray[np.int64]]:
    """The finest steps that can be handled, and the histogram of keys in them."""
    costs = _Costs(budget)
    while (budget.tokens + 1) * costs.width > _CELLS:
        costs = _Costs(budget, costs.step * 2)
    counts = costs.histogram(tokens, patches)
    while np.count_nonzero(counts) > _DISTINCT and costs.width > 2:
        costs, counts = costs.coarser(counts)
    return costs, counts


def _parts(tokens: Ints, patches: Ints | None) -> Iterator[tuple[Ints, Ints | None]]:
    for start in range(0, len(tokens), _CHUNK):
        end = start + _CHUNK
        yield tokens[start:end], None if patches is None else patches[start:end]


def _check(tokens: Ints, patches: Ints | None, least: int) -> None:
    if patches is not None and len(tokens) != len(patches):
        raise DataError(
            f"there are {len(tokens)} token counts and {len(patches)} patch counts; each sample has one of each."
        )
    if len(tokens) > np.iinfo(np.uint32).max:
        raise DataError(f"{len(tokens):,} samples are more than 2^32; pack them in several runs.")
    if len(tokens) and int(tokens.min()) < least:
        raise DataError(
            f"sample {int(np.argmin(tokens))} has {int(tokens.min())} tokens; a sample has at least {least}."
        )
    if patches is not None and len(patches) and int(patches.min()) < 0:
        raise DataError(
            f"sample {int(np.argmin(patches))} has {int(patches.min())} vision patches; a sample has at least 0."
        )


def _over(tokens: Ints, patches: Ints | None, budget: Budget) -> NDArray[np.uint32]:
    over = tokens > budget.tokens
    if patches is not None and budget.patches is not None:
        over |= patches > budget.patches
    return np.flatnonzero(over).astype(np.uint32)


def _deal(
    by_cost: NDArray[np.uint32], counts: NDArray[np.int64], patterns: list[Pattern], singles: int
) -> NDArray[np.uint32]:
    """Deals the samples of each cost, in their order, to the bins of the patterns; leaves ``singles`` places at the end."""
    next_of = (np.cumsum(counts) - counts).tolist()
    samples = np.empty(len(by_cost) + singles, np.uint32)
    place = 0
    for pattern in patterns:
        width = sum(pattern.uses)
        block = samples[place : place + width * pattern.times].reshape(pattern.times, width)
        column = 0
        for cost, uses in zip(pattern.costs, pattern.uses, strict=True):
            start = next_of[cost]
            next_of[cost] = end = start + uses * pattern.times
            block[:, column : column + uses] = by_cost[start:end].reshape(pattern.times, uses)
            column += uses
        place += width * pattern.times
    return samples


def _offsets(patterns: list[Pattern], singles: int) -> NDArray[np.int64]:
    sizes = np.array([sum(pattern.uses) for pattern in patterns], np.int64)
    times = np.array([pattern.times for pattern in patterns], np.int64)
    return np.concatenate([[0], np.cumsum(np.concatenate([np.repeat(sizes, times), np.ones(singles, np.int64)]))])


def _sort_by_cost(
    tokens: Ints, patches: Ints | None, costs: _Costs, used: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Sample numbers sorted by cost, equal costs in their order: a counting sort, chunk by chunk."""
    number_of = np.full((costs.budget.tokens + 1) * costs.width, -1, np.int32)
    number_of[used] = np.arange(len(used), dtype=np.int32)
    free = np.cumsum(counts) - counts
    by_cost = np.empty(int(counts.sum()), np.uint32)
    start = 0
    for part in _parts(tokens, patches):
        keys = costs.keys(*part)
        inside = np.flatnonzero(keys >= 0)
        numbers = number_of[keys[inside]]
        order = _stable_order(numbers)
        numbers = numbers[order]
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        runs = np.diff(firsts, append=len(numbers))
        within = np.arange(len(numbers)) - np.repeat(firsts, runs)
        by_cost[free[numbers] + within] = inside[order] + start
        free[numbers[firsts]] += runs
        start += len(keys)
    return by_cost


def _stable_order(numbers: NDArray[np.int32]) -> NDArray[np.int64]:
    """A stable argsort in passes of 16 bits, for which numpy has a radix sort."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    if len(numbers) and int(numbers.max()) > 0xFFFF:
        order = order[np.argsort((numbers >> 16).astype(np.uint16)[order], kind="stable")]
    return order
