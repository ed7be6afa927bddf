"""A loss of many rows as the sum of the losses of a few at a time.

A loss of scope ``token`` or ``sequence`` is a sum over rows. On a CPU its dozen of elementwise passes over [B, L] are bound
by memory; block by block they stay in the cache. Each block's backward runs at once, so that of the whole graph only the
gradients with respect to the outputs of the pass are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlvlm.algos.metrics import join_shares

Outputs = dict[str, Tensor]
Share = Callable[[slice, Outputs], tuple[Tensor, dict[str, Tensor]]]


def add_up(share: Share, outputs: Outputs, blocks: Sequence[slice]) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum of the shares of all blocks, differentiable with respect to the outputs, and their metrics joined.

    Args:
        share: loss (scalar) and metrics of some rows, from the outputs of these rows.
        outputs: tensors [B, L] by name.
        blocks: slices that cover the rows once, in order.
    """
    if len(blocks) == 1:
        return share(blocks[0], outputs)
    metrics: list[dict[str, Tensor]] = []
    total: Tensor = _SumOfShares.apply(share, tuple(outputs), blocks, metrics, *outputs.values())
    return total, join_shares(metrics)


class _SumOfShares(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        share: Share,
        names: tuple[str, ...],
        blocks: Sequence[slice],
        metrics: list[dict[str, Tensor]],
        *outputs: Tensor,
    ) -> Tensor:
        wanted = ctx.needs_input_grad[4:]
        gradients: list[Tensor | None] = [None] * len(outputs)
        losses = []
        for rows in blocks:
            leaves = [output[rows].detach().requires_grad_(want) for output, want in zip(outputs, wanted, strict=True)]
            with torch.enable_grad():
                loss, found = share(rows, dict(zip(names, leaves, strict=True)))
            losses.append(loss.detach())
            metrics.append(found)
            found_gradients = _gradients(loss, leaves)
            for place, output in enumerate(outputs):
                _write(gradients, place, rows, found_gradients.get(place), output)
        ctx.save_for_backward(*gradients)
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = upstream
        if float(scale) == 1:  # the usual backward, of the loss itself
            return (None, None, None, None, *ctx.saved_tensors)
        scaled = (None if gradient is None else gradient * scale for gradient in ctx.saved_tensors)
        return (None, None, None, None, *scaled)


def _write(gradients: list[Tensor | None], place: int, rows: slice, part: Tensor | None, like: Tensor) -> None:
    """Writes the gradient of some rows into that of all; none is 0, and there is none of all as long as no block has one."""
    whole = gradients[place]
    if whole is None and part is not None:
        whole = gradients[place] = torch.empty_like(like)
        whole[: rows.start] = 0
    if whole is not None:
        whole[rows] = 0 if part is None else part


def _gradients(loss: Tensor, leaves: Sequence[Tensor]) -> dict[int, Tensor]:
    """Gradients of the loss by the place of the leaf, of those that it depends on."""
    places = [place for place, leaf in enumerate(leaves) if leaf.requires_grad]
    if not loss.requires_grad:
        return {}
    found = torch.autograd.grad(loss, [leaves[place] for place in places], allow_unused=True)
    return {place: part for place, part in zip(places, found, strict=True) if part is not None}
