"""Patterns for two budgets at once, in several ways: none is best on all data, so the caller takes the one with the fewest bins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rlvlm.data.offline_packing.patterns import Pattern

_BLOCK = 256
_EVEN = 0.01  # how much an uneven rest counts beside its larger share: enough to break ties

Ints = NDArray[np.int64]
Shares = NDArray[np.float64]
Way = Callable[[Ints, Ints, Ints, int, int], Iterator[Pattern]]


def in_parts(
    way: Way, size: int, tokens: Ints, patches: Ints, counts: Ints, max_tokens: int, max_patches: int
) -> Iterator[Pattern]:
    """Patterns of a way to pack, for parts of about ``size`` distinct costs that are alike: the time grows with their square.

    A part costs at most one bin.
    """
    parts = max(1, -(-len(tokens) // size))
    mixed = np.random.default_rng(0).permutation(len(tokens))  # a fixed stride could give each part one kind of picture
    for start in range(parts):
        of_part = np.sort(mixed[start::parts])
        numbers = of_part.tolist()
        for found in way(tokens[of_part], patches[of_part], counts[of_part], max_tokens, max_patches):
            yield Pattern(tuple(numbers[cost] for cost in found.costs), found.uses, found.times)


def first_fit(
    tokens: Ints,
    patches: Ints,
    counts: Ints,
    max_tokens: int,
    max_patches: int,
    size: Callable[[Shares, Shares], Shares],
) -> Iterator[Pattern]:
    """Patterns that use up all of the counts: in an order of size, each bin takes whatever still fits both budgets.

    Args:
        tokens, patches: [D] distinct costs, each within the budgets.
        counts: [D] how many samples have each.
        size: of a sample, from its shares of the two budgets; larger ones are placed first.
    """
    order = np.argsort(-size(tokens / max_tokens, patches / max_patches), kind="stable")
    shelf = _Ordered(tokens[order], patches[order], counts[order])
    numbers = order.tolist()
    while (first := shelf.first(0, max_tokens, max_patches)) >= 0:
        chosen: dict[int, int] = {}
        room, space, place = max_tokens, max_patches, first
        while place >= 0:
            uses = shelf.fitting(place, room, space)
            chosen[place] = uses
            room -= uses * int(shelf.tokens[place])
            space -= uses * int(shelf.patches[place])
            place = shelf.first(place + 1, room, space)
        times = min(int(shelf.left[place]) // uses for place, uses in chosen.items())
        for place, uses in chosen.items():
            shelf.take(place, times * uses)
        yield Pattern(tuple(numbers[place] for place in chosen), tuple(chosen.values()), times)


def evenly(tokens: Ints, patches: Ints, counts: Ints, max_tokens: int, max_patches: int) -> Iterator[Pattern]:
    """Patterns that use up all of the counts: each bin is to hold both costs in the proportion that all samples left have.

    A bin takes the sample after which the larger of the two shares still missing is least. So long samples with few patches meet
    short ones with many, and no kind is left over for the end.
    """
    left, there = counts.copy(), np.arange(len(counts))
    while len(there):
        own_tokens, own_patches, own_left = tokens[there], patches[there], left[there]
        demand = float(own_tokens @ own_left) / max_tokens, float(own_patches @ own_left) / max_patches
        shares = own_tokens / (max_tokens * demand[0]), own_patches / max(max_patches * demand[1], 1e-9)
        room, space = max_tokens, max_patches
        missing = [1.0 / max(demand), 1.0 / max(demand)]
        chosen: dict[int, int] = {}
        fits = np.ones(len(there), bool)
        while fits.any():
            after = missing[0] - shares[0], missing[1] - shares[1]
            cost = np.maximum(*after) + _EVEN * np.abs(after[0] - after[1])
            place = int(np.where(fits, cost, np.inf).argmin())
            chosen[place] = chosen.get(place, 0) + 1
            room -= int(own_tokens[place])
            space -= int(own_patches[place])
            missing = [float(after[0][place]), float(after[1][place])]
            fits &= (own_tokens <= room) & (own_patches <= space)
            fits[place] &= chosen[place] < own_left[place]
        times = min(int(own_left[place]) // uses for place, uses in chosen.items())
        for place, uses in chosen.items():
            left[there[place]] -= times * uses
        yield Pattern(tuple(int(there[place]) for place in chosen), tuple(chosen.values()), times)
        if any(left[there[place]] == 0 for place in chosen):
            there = there[left[there] > 0]


def _largest(tokens: Shares, patches: Shares) -> Shares:
    return np.maximum(tokens, patches)


def _sum(tokens: Shares, patches: Shares) -> Shares:
    return tokens + patches


WAYS: tuple[tuple[Way, int], ...] = (
    (evenly, 1 << 11),
    (partial(first_fit, size=_largest), 1 << 15),
    (partial(first_fit, size=_sum), 1 << 15),
)
"""Ways to pack, each with the number of distinct costs that it takes at once; those first that are best most often."""


class _Ordered:
    """Distinct costs in an order, in blocks that know the least that any of theirs needs."""

    def __init__(self, tokens: Ints, patches: Ints, counts: Ints) -> None:
        padding = -len(tokens) % _BLOCK
        self.gone = np.iinfo(np.int64).max
        self.tokens = np.pad(tokens, (0, padding), constant_values=self.gone)
        self.patches = np.pad(patches, (0, padding), constant_values=self.gone)
        self.left = counts.copy()
        self._tokens, self._patches = self.tokens.reshape(-1, _BLOCK), self.patches.reshape(-1, _BLOCK)
        self._least_tokens, self._least_patches = self._tokens.min(1), self._patches.min(1)

    def first(self, start: int, room: int, space: int) -> int:
        """The first place from ``start`` on that fits, -1 when none does."""
        block, within = divmod(start, _BLOCK)
        if block < len(self._tokens):
            fits = (self._tokens[block, within:] <= room) & (self._patches[block, within:] <= space)
            place = int(fits.argmax())
            if fits[place]:
                return start + place
        block += 1
        hopeful = (self._least_tokens[block:] <= room) & (self._least_patches[block:] <= space)
        for offset in hopeful.nonzero()[0].tolist():
            fits = (self._tokens[block + offset] <= room) & (self._patches[block + offset] <= space)
            place = int(fits.argmax())
            if fits[place]:
                return (block + offset) * _BLOCK + place
        return -1

    def fitting(self, place: int, room: int, space: int) -> int:
        """How many samples of a place that fits go into what is left of a bin."""
        uses = min(int(self.left[place]), room // int(self.tokens[place]))
        patches = int(self.patches[place])
        return min(uses, space // patches) if patches else uses

    def take(self, place: int, count: int) -> None:
        """Takes samples of a place away."""
        self.left[place] -= count
        if self.left[place] == 0:
            self.tokens[place] = self.patches[place] = self.gone
            block = place // _BLOCK
            self._least_tokens[block] = self._tokens[block].min()
            self._least_patches[block] = self._patches[block].min()
