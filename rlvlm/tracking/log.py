"""Collects metrics of the pieces of a step and reduces them once, at its end."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat

from rlvlm.tracking.metrics import reduce_metrics, split_key


class MetricLog:
    """Metrics as they come, tensors included; nothing waits for a device before :meth:`reduced`."""

    def __init__(self) -> None:
        self._parts: list[tuple[Mapping[str, SupportsFloat], SupportsFloat]] = []

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, metrics: Mapping[str, SupportsFloat], weight: SupportsFloat = 1.0) -> None:
        """Takes in the metrics of a piece; ``weight`` (its tokens, its rows) counts in ``mean/`` keys."""
        self._parts.append((metrics, weight))

    def reduced(self) -> dict[str, float]:
        """One value for each key, reduced by its prefix."""
        return reduce_metrics([part for part, _ in self._parts], [weight for _, weight in self._parts])


def add_shares(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Joins the metrics of the micro-batches of one mini-batch, whose ``mean/`` values are shares of its mean.

    Shares and sums add up, ``max/`` and ``min/`` keep the extreme, and NaN where any value is NaN. Tensors stay tensors.
    """
    if len(parts) == 1:
        return dict(parts[0])
    joined: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            joined[key] = value if key not in joined else _JOIN[split_key(key)[0]](joined[key], value)
    return joined


_JOIN: dict[str, Callable[[Any, Any], Any]] = {
    "mean": operator.add,
    "sum": operator.add,
    "max": lambda a, b: a if math.isnan(a) or float(a) >= float(b) else b,  # a comparison with NaN is false: b
    "min": lambda a, b: a if math.isnan(a) or float(a) <= float(b) else b,
    "last": lambda a, b: b,
}
