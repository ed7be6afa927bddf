"""Collects metrics of the pieces of a step and reduces them once, at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsFloat

from rlvlm.tracking.metrics import reduce_metrics


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
