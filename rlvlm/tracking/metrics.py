"""Metric keys carry their reduction: how many values of one key become one.

``mean/ratio`` of several micro-batches is averaged with their weights (token or row counts), ``max/ratio`` and
``min/ratio`` keep the extreme, ``sum/errors`` adds up; a key without such a prefix (``lr``, ``time/update``) keeps the
last value seen. Ranks are reduced the same way, by handing in one mapping per rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsFloat

REDUCTIONS = ("mean", "max", "min", "sum")


def split_key(key: str) -> tuple[str, str]:
    """Splits a metric key into its reduction and its name: ``"mean/ratio"`` is ``("mean", "ratio")``, ``"lr"`` ``("last", "lr")``."""
    head, _, rest = key.partition("/")
    return (head, rest) if head in REDUCTIONS and rest else ("last", key)


def reduce_metrics(
    parts: Iterable[Mapping[str, SupportsFloat]], weights: Sequence[SupportsFloat] | None = None
) -> dict[str, float]:
    """Reduces the metrics of several micro-batches, mini-batches or ranks to one mapping.

    Args:
        parts: one mapping per part; a key may be absent from some. Values are numbers or tensors of one element.
        weights: how much each part counts in ``mean/`` keys (its tokens, its rows); equal when ``None``. A key whose
            parts all weigh nothing is left out: there was nothing to average.
    """
    parts = list(parts)
    shares = [1.0] * len(parts) if weights is None else [float(weight) for weight in weights]
    if len(shares) != len(parts):
        raise ValueError(f"expected one weight for each of the {len(parts)} parts, got {len(shares)}.")
    gathered: dict[str, list[tuple[float, float]]] = {}
    for part, share in zip(parts, shares, strict=True):
        for key, value in part.items():
            gathered.setdefault(key, []).append((float(value), share))
    reduced = {key: _reduce(split_key(key)[0], pairs) for key, pairs in gathered.items()}
    return {key: value for key, value in reduced.items() if value is not None}


def _reduce(reduction: str, pairs: list[tuple[float, float]]) -> float | None:
    values = [value for value, _ in pairs]
    if reduction == "mean":
        total = sum(share for _, share in pairs)
        return sum(value * share for value, share in pairs if share) / total if total else None
    if reduction == "sum":
        return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
    if reduction in ("max", "min"):
        if any(math.isnan(value) for value in values):  # Python's max and min would depend on the order
            return math.nan
        return max(values) if reduction == "max" else min(values)
    return values[-1]


def find_metric(metrics: Mapping[str, SupportsFloat], *names: str) -> float | None:
    """The value of the first of ``names`` that is there, with or without a reduction prefix; ``None`` when none is."""
    bare = {split_key(key)[1]: key for key in metrics}
    for name in names:
        key = name if name in metrics else bare.get(name)
        if key is not None:
            return float(metrics[key])
    return None
