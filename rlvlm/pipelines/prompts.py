"""Training prompts, any number at a time, with a position that is exact between the prompts of one batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlvlm.batch import Batch
from rlvlm.data.loader import Loader
from rlvlm.tracking.metrics import reduce_metrics

_USED = "used_prompts"


class PromptStream:
    """Hands out the prompts of a loader in their order; what is left of a batch comes first the next time.

    So a step that needs three prompts more takes three, and no prompt is passed over.

    Args:
        loader: endless.
        size: prompts of a step.
    """

    def __init__(self, loader: Loader, size: int) -> None:
        self.loader, self.size = loader, size
        self._batches: Iterator[Batch] | None = None
        self._rest: Batch | None = None
        self._before: dict[str, Any] = {}
        self._whole = 0

    @property
    def epoch(self) -> float:
        """How often the records were gone through, as of the last batch drawn."""
        return self.loader.epoch

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.take(self.size)

    def take(self, count: int) -> Batch:
        """The next ``count`` prompts; fewer where the loader's own batch turned out smaller."""
        if self._rest is None:
            return self._cut(self._draw(), count)
        first = self._cut(self._rest, count)
        if len(first) == count:
            return first
        more = self._cut(self._draw(), count - len(first))
        metrics = reduce_metrics([batch.meta.get("metrics", {}) for batch in (first, more)])
        return Batch.concat([first, more]).with_meta(metrics=metrics)

    def state_dict(self) -> dict[str, Any]:
        """The loader's position, and how many prompts of the batch behind it were taken, where that is not 0."""
        if self._rest is None:
            return self.loader.state_dict()
        return {**self._before, _USED: self._whole - len(self._rest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a saved position."""
        self.loader.load_state_dict({name: value for name, value in state.items() if name != _USED})
        self._batches, self._rest = None, None
        if state.get(_USED):
            self._cut(self._draw(), int(state[_USED]))

    def _draw(self) -> Batch:
        """The loader's next batch."""
        if self._batches is None:
            self._batches = iter(self.loader)
        self._before = self.loader.state_dict()
        batch = next(self._batches)
        self._whole = len(batch)
        return batch

    def _cut(self, batch: Batch, count: int) -> Batch:
        """The first prompts of a batch; the others are kept, without what was counted when the batch was made."""
        self._rest = None
        if len(batch) <= count:
            return batch
        self._rest = batch.index(range(count, len(batch))).with_meta(metrics={})
        return batch.index(range(count))
