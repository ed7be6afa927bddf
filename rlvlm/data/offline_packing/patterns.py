"""Patterns of samples that share a bin: the longest that fits, again and again, over counts of distinct costs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Pattern:
    """``times`` bins that hold ``uses[i]`` samples of the distinct cost ``costs[i]`` each."""

    costs: tuple[int, ...]
    uses: tuple[int, ...]
    times: int


def find_patterns(
    tokens: NDArray[np.int64],
    counts: NDArray[np.int64],
    max_tokens: int,
    patches: NDArray[np.int64] | None = None,
    max_patches: int | None = None,
) -> Iterator[Pattern]:
    """Patterns that use up all of the counts, each within both budgets.

    Args:
        tokens, patches: [D] distinct costs, sorted by tokens, then patches; each within the budgets.
        counts: [D] how many samples have each.
    """
    shelf = _Shelf(tokens, counts, patches, max_tokens)
    while shelf.at_most(max_tokens):
        chosen = _fill_one(shelf, max_tokens, max_patches)
        more = min(shelf.left[cost] // uses for cost, uses in chosen.items())
        if more:
            for cost, uses in chosen.items():
                shelf.take(cost, more * uses)
        yield Pattern(tuple(chosen), tuple(chosen.values()), 1 + more)


def _fill_one(shelf: _Shelf, room: int, space: int | None) -> dict[int, int]:
    """Takes the samples of one bin from the shelf, the longest that fits first; returns how many of each cost.

    A rest that no sample is short enough for is avoided where two samples fill the place of the last one and the rest.
    """
    chosen: dict[int, int] = {}
    longest = room
    while length := shelf.at_most(min(room, longest)):
        cost = shelf.pick(length, room, space)
        if cost < 0:  # none of this length leaves enough patches; nor will it later, so longer ones need no second look
            longest = shelf.next_within(length, space or 0)
            continue
        uses = min(shelf.left[cost], room // length)
        if space is not None and shelf.patches[cost]:
            uses = min(uses, space // shelf.patches[cost])
        if 0 < room - uses * length < shelf.shortest():
            larger = shelf.larger_of_pair(room - (uses - 1) * length)
            if uses > 1 and larger:
                uses -= 1
            elif larger and (instead := shelf.pick(larger, room, space)) >= 0:
                cost, length = instead, larger
        if space is not None:
            space -= uses * shelf.patches[cost]
        chosen[cost] = chosen.get(cost, 0) + uses
        shelf.take(cost, uses)
        room -= uses * length
    return chosen


class _Shelf:
    """Distinct costs with what is left of each: the longest up to a length, the right patches among equal lengths."""

    def __init__(
        self, tokens: NDArray[np.int64], counts: NDArray[np.int64], patches: NDArray[np.int64] | None, longest: int
    ) -> None:
        self.tokens: list[int] = tokens.tolist()
        self.left: list[int] = counts.tolist()
        self.patches: list[int] = [0] * len(self.tokens) if patches is None else patches.tolist()
        self._of_length: dict[int, list[int]] = {}  # costs of each length, by patches
        for cost, length in enumerate(self.tokens):
            self._of_length.setdefault(length, []).append(cost)
        self._below = list(
            range(longest + 1)
        )  # a length that is there points at itself, others lead to the next shorter
        for length in range(longest, 0, -1):
            if length not in self._of_length:
                self._below[length] = length - 1
        self._fewest = np.full(longest + 1, np.iinfo(np.int64).max)  # fewest patches among the costs of each length
        self._there = np.zeros(longest + 1, bool)
        self._shortest = 1
        for length, costs in self._of_length.items():
            self._fewest[length], self._there[length] = self.patches[costs[0]], True

    def at_most(self, length: int) -> int:
        """The longest length up to this one that is left, 0 when none is."""
        below, root = self._below, length
        while below[root] != root:
            root = below[root]
        while below[length] != root:  # shorten the way for the next look
            below[length], length = root, below[length]
        return root

    def shortest(self) -> int:
        """The shortest length that is left."""
        while self._shortest < len(self._there) - 1 and not self._there[self._shortest]:
            self._shortest += 1
        return self._shortest

    def larger_of_pair(self, room: int) -> int:
        """The larger of two lengths that are left and add up to ``room``, 0 when no two do."""
        pairs = np.flatnonzero(self._there[1:room] & self._there[room - 1 : 0 : -1])
        return int(pairs[-1]) + 1 if len(pairs) else 0

    def next_within(self, length: int, space: int) -> int:
        """The longest length under this one with a cost of at most ``space`` patches, 0 when there is none."""
        fitting = np.flatnonzero(self._fewest[:length] <= space)
        return int(fitting[-1]) if len(fitting) else 0

    def pick(self, length: int, room: int, space: int | None) -> int:
        """A cost of this length that fits: the one whose share of the patches is nearest below its share of the tokens."""
        costs = self._of_length[length]
        if space is None or len(costs) == 1:
            return costs[0] if space is None or self.patches[costs[0]] <= space else -1
        share = space * length // room
        place = bisect_right(costs, share, key=self.patches.__getitem__) - 1
        cost = costs[max(place, 0)]
        return cost if self.patches[cost] <= space else -1

    def take(self, cost: int, count: int) -> None:
        """Takes samples of a cost away."""
        self.left[cost] -= count
        if self.left[cost]:
            return
        length = self.tokens[cost]
        costs = self._of_length[length]
        del costs[bisect_right(costs, cost) - 1]
        if costs:
            self._fewest[length] = self.patches[costs[0]]
        else:
            self._fewest[length] = np.iinfo(np.int64).max
            self._below[length] = length - 1
            self._there[length] = False
