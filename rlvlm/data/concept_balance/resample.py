"""From nearest concepts to weights that are inverse to how frequent a picture's concepts are, and to a balanced choice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvlm.errors import ConfigError

_CHUNK = 1 << 20

Ints = NDArray[np.integer[Any]]


def concept_counts(nearest: Ints, concepts: int, rows: Ints | None = None) -> NDArray[np.int64]:
    """[C] how many pictures have each concept among their nearest.

    Args:
        nearest: [N, K] concept numbers, -1 for none.
        rows: count these rows, repeats included; ``None`` counts all once.
    """
    counts = np.zeros(concepts, np.int64)
    total = len(nearest) if rows is None else len(rows)
    for start in range(0, total, _CHUNK):
        block = nearest[start : start + _CHUNK] if rows is None else nearest[rows[start : start + _CHUNK]]
        flat = np.asarray(block).ravel()
        counts += np.bincount(flat[flat >= 0], minlength=concepts)
    return counts


def inverse_weights(nearest: Ints, counts: Ints, power: float = 1.0) -> NDArray[np.float64]:
    """[N] mean of ``count ** -power`` over a picture's concepts, scaled to sum to 1; 0 for pictures without concepts.

    ``power`` 1 gives each concept the same expected share of the draws, 0 leaves the data as it is.
    """
    if not 0 <= power <= 2:
        raise ConfigError(f"power is between 0 (as it is) and 2, got {power}.")
    rare = np.where(counts > 0, np.maximum(counts, 1).astype(np.float64) ** -power, 0.0)
    weights = np.empty(len(nearest), np.float64)
    for start in range(0, len(nearest), _CHUNK):
        block = np.asarray(nearest[start : start + _CHUNK])
        weights[start : start + len(block)] = np.where(block >= 0, rare[block], 0.0).mean(1)
    total = weights.sum()
    return weights / total if total > 0 else weights


def resample(weights: NDArray[np.float64], count: int, *, replace: bool, seed: int = 0) -> NDArray[np.int64]:
    """``count`` rows drawn with probability proportional to their weights, sorted.

    Without replacement the draws are one after another from what is left (Efraimidis and Spirakis 2006: the largest
    ``log(u) / weight``). Raises ``ConfigError`` for more draws without replacement than rows of positive weight.
    """
    if count < 1:
        raise ConfigError(f"at least 1 row is drawn, got {count}.")
    rng = np.random.default_rng(seed)
    able = np.flatnonzero(weights > 0)
    if not len(able):
        raise ConfigError("no picture has a concept, so there is nothing to draw.")
    if replace:
        edges = np.cumsum(weights[able])
        drawn = np.searchsorted(edges, rng.random(count) * edges[-1], side="right")
        return np.sort(able[np.minimum(drawn, len(able) - 1)])
    if count > len(able):
        raise ConfigError(
            f"{count} rows can't be drawn without replacement from {len(able)}; draw fewer, or with replacement."
        )
    keys = np.log(-np.log(rng.random(len(able)))) - np.log(weights[able])
    return np.sort(able[np.argpartition(keys, count - 1)[:count]])


def gini(counts: Ints) -> float:
    """How unequal counts are: 0 for all equal, near 1 for one that has all."""
    ordered = np.sort(np.asarray(counts, np.float64))
    total, size = ordered.sum(), len(ordered)
    if total == 0:
        return 0.0
    return float((2 * np.arange(1, size + 1) - size - 1).dot(ordered) / (size * total))


def coverage(counts: Ints, least: int = 1) -> float:
    """Share of the concepts that at least so many pictures have."""
    return float((np.asarray(counts) >= least).mean()) if len(counts) else 0.0
