"""The order in which records are drawn: a position is enough to go on from, and no permutation is kept in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlvlm.errors import DataError

_MASK64 = (1 << 64) - 1
_ROUNDS = 4
_ROUNDING = 1e-6  # shares after billions of draws are exact to this


@dataclass(frozen=True)
class Draw:
    """One record drawn: the source's number, the index in it, and how often that source was gone through before."""

    source: int
    index: int
    epoch: int


class Mixture:
    """Draws from several sources, in order or shuffled anew each epoch, as one pool or by weights.

    With weights, after any number of draws each source has given its share to within one record, and so any stretch of draws holds
    the shares to within two; without, the sources are one pool and an epoch draws each record once.

    Args:
        lengths: records of each source.
        weights: share of each source, or ``None`` for one pool.
        seed: decides the order.
    """

    def __init__(
        self, lengths: Sequence[int], weights: Sequence[float] | None = None, *, shuffle: bool = True, seed: int = 0
    ) -> None:
        self.lengths, self.weights, self.shuffle, self.seed = list(lengths), weights, shuffle, seed
        self.taken = [0] * (len(lengths) if weights else 1)
        self.total = sum(self.lengths)
        if self.total == 0 or (weights and 0 in self.lengths):
            raise DataError(f"the data has no records in a source (records of each source: {self.lengths}).")

    @property
    def drawn(self) -> int:
        """Draws so far."""
        return sum(self.taken)

    @property
    def epoch(self) -> float:
        """How often the records were gone through so far, all sources together."""
        return self.drawn / self.total

    def draw(self) -> Draw:
        """The next record."""
        if self.weights is None:
            epoch, place = divmod(self.taken[0], self.total)
            self.taken[0] += 1
            index = self._shuffled(place, self.total, 0, epoch)
            for source, length in enumerate(self.lengths):
                if index < length:
                    return Draw(source, index, epoch)
                index -= length
        assert self.weights is not None  # one pool has returned
        source = self._next_source(self.weights)
        epoch, place = divmod(self.taken[source], self.lengths[source])
        self.taken[source] += 1
        return Draw(source, self._shuffled(place, self.lengths[source], source, epoch), epoch)

    def _next_source(self, weights: Sequence[float]) -> int:
        """Of the sources that are behind, the one that would first fall a record behind its share.

        R. Tijdeman, "The chairman assignment problem", 1980: no source is ever off by more than ``1 - 1 / (2k - 2)`` for k sources.
        """
        slack = 1 / max(1, 2 * len(weights) - 2)
        total, number = sum(weights), self.drawn + 1
        due = [number * weight / total - taken for taken, weight in zip(self.taken, weights, strict=True)]
        behind = [source for source, amount in enumerate(due) if amount >= slack - _ROUNDING]
        return min(behind, key=lambda source: ((1 - slack - due[source]) / weights[source], source))

    def _shuffled(self, place: int, length: int, source: int, epoch: int) -> int:
        return shuffled(place, length, f"{self.seed},{source},{epoch}") if self.shuffle else place

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it is a position in."""
        return {"taken": list(self.taken), "lengths": list(self.lengths), "seed": self.seed, "shuffle": self.shuffle}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved position; ``DataError`` if it was one in other data or another order."""
        ours = self.state_dict()
        for name, said in (("lengths", "records"), ("seed", "seed"), ("shuffle", "shuffle")):
            if state[name] != ours[name]:
                raise DataError(
                    f"the saved position is one in other data ({said}: saved {state[name]}, now {ours[name]}); "
                    "resume with the data and seed of the run, or start a new one."
                )
        if len(state["taken"]) != len(self.taken):
            raise DataError(
                "the saved position is one of sources mixed by weights, or the other way round; resume with the same data."
            )
        self.taken = list(state["taken"])


def shuffled(place: int, length: int, key: str) -> int:
    """The element at ``place`` of the permutation of ``range(length)`` that ``key`` names, in constant memory and time.

    A Feistel network permutes the next power of four; places that land outside are walked on until they land inside
    (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
    """
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = _round_keys(key)
    while True:
        left, right = place >> half, place & mask
        for round_key in keys:
            left, right = right, left ^ (_mixed(right ^ round_key) & mask)
        place = (left << half) | right
        if place < length:
            return place


@lru_cache(maxsize=256)
def _round_keys(key: str) -> tuple[int, ...]:
    digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest()
    return tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS))


def _mixed(value: int) -> int:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
