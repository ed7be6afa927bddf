"""``Rows``: what one forward pass reads, as plain tensors made from a batch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rlvlm.models.attention import AttentionLayout

T = TypeVar("T")


@dataclass(frozen=True)
class Pictures:
    """The pictures of one forward and where their features go.

    Attributes:
        pixels: the family's processed tensors, joined over the pictures; a stand-in picture when there are none, so
            that every forward makes one vision call.
        slots: [F] flat positions in the rows that take a feature, ascending.
        sources: [F] which row of the features each slot takes; ``None`` when they come in order.
    """

    pixels: dict[str, Tensor]
    slots: Tensor
    sources: Tensor | None = None

    def pick(self, features: Tensor) -> Tensor:
        """The features [F, H] in the order of the slots."""
        if self.sources is not None:
            return features.index_select(0, self.sources)
        return features if len(features) == len(self.slots) else features[: len(self.slots)]


@dataclass(frozen=True)
class Rows:
    """Tensors of one forward: R rows of T tokens, N tokens to be judged, a batch of B samples and L tokens behind them.

    Attributes:
        ids: [R, T] int64.
        positions: [R, T], or [3, R, T] for M-RoPE.
        reads: [N] flat positions in the rows whose hidden state predicts a token.
        targets: [N] the tokens predicted; ``None`` asks for next-token logits [N, V] instead of log-probs.
        judged: [B, L] bool, true for the N tokens predicted.
        temperature: [N] divides the logits; ``None`` is 1.
        attention_mask: [R, T] bool for padded rows; ``None`` with a layout.
        layout: says how tokens attend; travels as a forward keyword.
        pictures: ``None`` only where no rank makes a vision call (decoding).
    """

    ids: Tensor
    positions: Tensor
    reads: Tensor
    targets: Tensor | None = None
    judged: Tensor | None = None
    temperature: Tensor | None = None
    attention_mask: Tensor | None = None
    layout: AttentionLayout | None = None
    pictures: Pictures | None = None

    def scatter(self, values: Tensor) -> Tensor:
        """[N] values at the judged tokens of [B, L], zero elsewhere."""
        assert self.judged is not None  # rows with targets say which tokens they are
        return values.new_zeros(self.judged.shape).masked_scatter(self.judged, values)

    def to(self, device: torch.device | str) -> Rows:
        """The same rows on a device; what is there already is shared."""
        return self if self.ids.device == torch.device(device) else move(self, device)


def move(thing: T, device: torch.device | str) -> T:
    """Moves every tensor in a nest of dataclasses, dicts and tuples to a device."""
    if isinstance(thing, Tensor):
        return thing.to(device, non_blocking=True)  # type: ignore[return-value]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        changes = {f.name: move(getattr(thing, f.name), device) for f in dataclasses.fields(thing)}
        return dataclasses.replace(thing, **changes)
    if isinstance(thing, dict):
        return {key: move(value, device) for key, value in thing.items()}  # type: ignore[return-value]
    if isinstance(thing, (tuple, list)):
        return type(thing)(move(value, device) for value in thing)  # type: ignore[return-value, call-arg]
    return thing
