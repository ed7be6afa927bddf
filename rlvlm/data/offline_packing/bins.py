"""Step 2 of offline packing: which samples share a bin, from integers alone.

Samples of equal cost are interchangeable, so the packing works on counts of distinct costs, not on samples. A bin takes
the largest cost that still fits, again and again (best fit, decreasing); the pattern found is emitted as often as its costs
last. A pattern uses up at least one cost, so there are about as many patterns as distinct costs, however many the samples are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvlm.data.offline_packing.patterns import Pattern, find_patterns
from rlvlm.data.offline_packing.two_budgets import WAYS, in_parts
from rlvlm.data.progress import Progress
from rlvlm.errors import ConfigError, DataError

_CHUNK = 1 << 22  # samples handled at once: bounds the memory beyond the inputs and outputs
_CELLS = 1 << 22  # entries of the largest table from costs to their places
_DISTINCT = 1 << 19  # distinct costs that patterns are sought for: some twenty seconds' work
_GOOD = 1.002  # bins over the lower bound that are good enough to look no further
_MOST_BITS, _LEAST_BITS = 13, 3  # significant bits of costs that are rounded

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
        patches: sum over the samples that fit, where the budget has patches.
    """

    samples: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    over_long: NDArray[np.uint32]
    tokens: int
    budget: Budget
    kept_over_long: bool = False
    patches: int = 0

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
        """Bins that no packing can do without: tokens or patches over their budget, rounded up."""
        by_tokens = -(-self.tokens // self.budget.tokens)
        return by_tokens if self.budget.patches is None else max(by_tokens, -(-self.patches // self.budget.patches))


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
    costs, used, counts = _count_costs(tokens, patches, budget)
    lengths, steps = costs.pairs(used)
    found = find_patterns(lengths, counts, budget.tokens, None if patches is None else steps, budget.patches)
    patterns = list(found if progress is None else _counted(found, progress))
    if budget.patches is not None:
        patterns = _best(patterns, lengths, steps, counts, budget, budget.patches)
    by_cost = _sort_by_cost(tokens, patches, costs, used, counts)
    singles = len(over_long) if keep_over_long else 0
    samples = _deal(by_cost, counts, patterns, singles)
    if singles:
        samples[-singles:] = over_long
    totals = [
        0 if c is None else int(c.sum(dtype=np.int64) - c[over_long].sum(dtype=np.int64)) for c in (tokens, patches)
    ]
    return Bins(samples, _offsets(patterns, singles), over_long, totals[0], budget, keep_over_long, totals[1])


def _counted(patterns: Iterator[Pattern], progress: Progress) -> Iterator[Pattern]:
    for pattern in patterns:
        progress.add(sum(pattern.uses) * pattern.times)
        yield pattern
    progress.add(progress.total - progress.done)  # those that no bin takes


def _best(
    patterns: list[Pattern],
    tokens: NDArray[np.int64],
    patches: NDArray[np.int64],
    counts: NDArray[np.int64],
    budget: Budget,
    max_patches: int,
) -> list[Pattern]:
    """The given patterns, or those of another way where they need fewer bins; no other is tried where it could not help."""
    needed = max(-(-int((tokens * counts).sum()) // budget.tokens), -(-int((patches * counts).sum()) // max_patches))
    for way, size in WAYS:
        if _bins_of(patterns) <= needed * _GOOD:
            break
        found = list(in_parts(way, size, tokens, patches, counts, budget.tokens, max_patches))
        patterns = min(patterns, found, key=_bins_of)
    return patterns


def _bins_of(patterns: list[Pattern]) -> int:
    return sum(pattern.times for pattern in patterns)


@dataclass(frozen=True)
class _Costs:
    """Samples' costs as one number each, exact or rounded up to ``bits`` significant bits, so that no budget is passed.

    Data with at most ``_DISTINCT`` different pairs of tokens and patches is counted exactly, whatever the budgets; other data is
    rounded by at most one part in ``2 ** (bits - 1)``.
    """

    budget: Budget
    bits: int = 63

    def keys(self, tokens: Ints, patches: Ints | None) -> NDArray[np.int64]:
        """tokens * (most patches + 1) + patches of each sample, -1 over a budget and for 0 tokens."""
        keys = tokens.astype(np.int64)
        fits = (keys <= self.budget.tokens) & (keys > 0)
        if patches is None or self.budget.patches is None:
            return np.where(fits, keys, -1)
        fits &= patches <= self.budget.patches
        keys, steps = (
            self._rounded(keys, self.budget.tokens),
            self._rounded(patches.astype(np.int64), self.budget.patches),
        )
        return np.where(fits, keys * (self.budget.patches + 1) + steps, -1)

    def pairs(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens and patches of keys that are not negative."""
        if self.budget.patches is None:
            return keys, np.zeros_like(keys)
        return keys // (self.budget.patches + 1), keys % (self.budget.patches + 1)

    def _rounded(self, values: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        if self.bits == 63:
            return values
        surplus = np.maximum(np.frexp(values)[1] - self.bits, 0)  # bits of each value beyond those that are kept
        return np.minimum(-(-values >> surplus) << surplus, most)


def _count_costs(
    tokens: Ints, patches: Ints | None, budget: Budget
) -> tuple[_Costs, NDArray[np.int64], NDArray[np.int64]]:
    """The finest costs that can be handled, their keys in order, and how many samples have each."""
    costs = _Costs(budget)
    if patches is None:
        histogram = np.zeros(budget.tokens + 1, np.int64)
        for part in _parts(tokens, None):
            keys = costs.keys(*part)
            histogram += np.bincount(keys[keys >= 0], minlength=len(histogram))
        used = np.flatnonzero(histogram)
        return costs, used, histogram[used]
    used = counts = np.empty(0, np.int64)
    for part in _parts(tokens, patches):
        keys = costs.keys(*part)
        keys = keys[keys >= 0]
        used, counts = _merged(np.concatenate([used, keys]), np.concatenate([counts, np.ones(len(keys), np.int64)]))
        while len(used) > _DISTINCT and costs.bits > _LEAST_BITS:
            costs = _Costs(budget, min(costs.bits, _MOST_BITS) - 1)
            used, counts = _merged(costs.keys(*costs.pairs(used)), counts)
    return costs, used, counts


def _merged(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each key once, in order, with the sum of its counts."""
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[firsts], np.add.reduceat(counts, firsts) if len(firsts) else counts[:0]


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
    number_of = _numbering(used, costs)
    free = np.cumsum(counts) - counts
    by_cost = np.empty(int(counts.sum()), np.uint32)
    start = 0
    for part in _parts(tokens, patches):
        keys = costs.keys(*part)
        inside = np.flatnonzero(keys >= 0)
        numbers = number_of(keys[inside])
        order = _stable_order(numbers)
        numbers = numbers[order]
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        runs = np.diff(firsts, append=len(numbers))
        within = np.arange(len(numbers)) - np.repeat(firsts, runs)
        by_cost[free[numbers] + within] = inside[order] + start
        free[numbers[firsts]] += runs
        start += len(keys)
    return by_cost


def _numbering(used: NDArray[np.int64], costs: _Costs) -> Callable[[NDArray[np.int64]], NDArray[np.int32]]:
    """From keys to their places among the used ones: a table where one fits into memory, else a search."""
    cells = (costs.budget.tokens + 1) * ((costs.budget.patches or 0) + 1)
    if cells > _CELLS:
        return lambda keys: np.searchsorted(used, keys).astype(np.int32)
    table = np.full(cells, -1, np.int32)
    table[used] = np.arange(len(used), dtype=np.int32)
    return lambda keys: table[keys]


def _stable_order(numbers: NDArray[np.int32]) -> NDArray[np.int64]:
    """A stable argsort in passes of 16 bits, for which numpy has a radix sort."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    if len(numbers) and int(numbers.max()) > 0xFFFF:
        order = order[np.argsort((numbers >> 16).astype(np.uint16)[order], kind="stable")]
    return order
