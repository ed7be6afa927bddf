"""Log-probs and entropies of chosen tokens without their logits ever standing in memory.

Logits are made a tile at a time, some tokens by a slice of the vocabulary, and made again in the backward pass, so peak
memory does not depend on the vocabulary. A slice of the weight's gradient is complete after its own products, so it is
written once, without a running sum over the whole matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_BANNED = -1e30  # finite, so that p * log p of an id that can't be sampled is 0 and not nan
_LEAST_WIDTH = 1024  # ids in a slice at least, for products that keep the machine busy


def token_logp(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor | None = None,
    banned: Sequence[int] = (),
    chunk: int = 4_194_304,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution softmax(hidden @ weight.T / temperature), exact gradients.

    Args:
        hidden: [N, H] states.
        weight: [V, H] output embeddings.
        targets: [N] int64.
        temperature: [N] fp32, or ``None`` for 1.
        banned: ids that can't be sampled, left out of the softmax.
        chunk: logits that exist at a time.

    Returns:
        [N] log-probs and [N] entropies in nats, both fp32. N may be 0; the weight's gradient is then zeros.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        compute = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(compute), weight.to(compute)
    logp, entropy = _TokenLogp.apply(hidden, weight, targets, temperature, banned, chunk)
    return logp, entropy


def next_token_logits(hidden: Tensor, weight: Tensor, banned: Tensor | None = None) -> Tensor:
    """[N, V] fp32 logits of the next token, minus infinity for ids that can't be sampled."""
    logits = torch.mm(hidden, weight.t()).float()
    return logits if banned is None else logits.index_fill(1, banned, -torch.inf)


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: Tensor | None,
        banned: Sequence[int],
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        inverse = None if temperature is None else temperature.float().reciprocal()
        tiles = _Tiles(hidden, weight, targets, inverse, banned, chunk)
        logp, entropy, total = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        for rows in tiles.token_tiles():
            logp[rows], entropy[rows], total[rows] = _judge(tiles, rows)
        ctx.save_for_backward(hidden, weight, targets, inverse, entropy, total)
        ctx.banned, ctx.chunk = banned, chunk
        ctx.set_materialize_grads(False)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, inverse, entropy, total = ctx.saved_tensors
        if grad_logp is None and grad_entropy is None:
            return (None,) * 6
        tiles = _Tiles(hidden, weight, targets, inverse, ctx.banned, ctx.chunk)
        scale = 1.0 if inverse is None else inverse
        pull = torch.zeros_like(entropy) if grad_logp is None else grad_logp * scale
        spread = None if grad_entropy is None else grad_entropy * scale
        grad_hidden, grad_weight = None, None
        if ctx.needs_input_grad[0]:
            grad_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.empty_like(weight) if len(hidden) else torch.zeros_like(weight)
        for ids in tiles.id_slices():
            part = None if grad_weight is None else _room(grad_weight[ids], tiles.height >= len(hidden))
            for number, rows in enumerate(tiles.token_tiles()):
                flow = _pull_back(tiles, rows, ids, pull, spread, entropy, total).to(hidden.dtype)
                if grad_hidden is not None:
                    _add_product(grad_hidden[rows], flow, weight[ids])
                if part is not None:
                    _add_product(part, flow.t(), hidden[rows], fresh=number == 0)
            if grad_weight is not None and part is not None and part.dtype != grad_weight.dtype:
                grad_weight[ids] = part
        return None if grad_hidden is None else grad_hidden.to(hidden.dtype), grad_weight, None, None, None, None


class _Tiles:
    """Makes tiles of logits, tokens by ids, in one buffer."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        inverse: Tensor | None,
        banned: Sequence[int],
        chunk: int,
    ) -> None:
        self.hidden, self.weight, self.targets, self.inverse = hidden, weight, targets, inverse
        n, vocabulary = len(hidden), len(weight)
        least = min(_LEAST_WIDTH, vocabulary)
        self.height = max(1, min(n, chunk // least))
        self.width = max(1, min(vocabulary, max(least, chunk // self.height)))
        self.banned = banned
        self._raw = hidden.new_empty(self.height * self.width)
        self._low = hidden.dtype != torch.float32
        self._wide = self._raw.float() if self._low else self._raw
        self._spare: Tensor | None = None

    def token_tiles(self) -> Iterator[slice]:
        for start in range(0, len(self.hidden), self.height):
            yield slice(start, min(start + self.height, len(self.hidden)))

    def id_slices(self) -> Iterator[slice]:
        for start in range(0, len(self.weight), self.width):
            yield slice(start, min(start + self.width, len(self.weight)))

    def logits(self, rows: slice, ids: slice) -> Tensor:
        """fp32 logits of a tile over temperature; valid until the next call."""
        shape = (rows.stop - rows.start, ids.stop - ids.start)
        raw = self._raw[: shape[0] * shape[1]].view(shape)
        torch.mm(self.hidden[rows], self.weight[ids].t(), out=raw)
        tile = self._wide[: raw.numel()].view(shape)
        if self._low:
            tile.copy_(raw)
        if self.inverse is not None:
            tile.mul_(self.inverse[rows, None])
        for banned in self.banned:
            if ids.start <= banned < ids.stop:
                tile[:, banned - ids.start] = _BANNED
        return tile

    def spare(self, like: Tensor) -> Tensor:
        """A second buffer of a tile's shape."""
        if self._spare is None:
            self._spare = torch.empty_like(self._wide)
        return self._spare[: like.numel()].view_as(like)

    def own(self, rows: slice, ids: slice) -> tuple[Tensor, Tensor]:
        """Which targets lie in this slice, and their columns (0 for those that don't)."""
        columns = self.targets[rows] - ids.start
        inside = (columns >= 0) & (columns < ids.stop - ids.start)
        return inside, columns.masked_fill(~inside, 0)[:, None]


def _judge(tiles: _Tiles, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and log-sum-exps of a token tile, gathered over slices with a running maximum."""
    n = rows.stop - rows.start
    top = tiles.hidden.new_full((n,), -torch.inf, dtype=torch.float32)
    mass = torch.zeros_like(top)  # sum of e = exp(x - top)
    moment = torch.zeros_like(top)  # sum of e * (x - top)
    own = torch.zeros_like(top)
    for ids in tiles.id_slices():
        tile = tiles.logits(rows, ids)
        inside, columns = tiles.own(rows, ids)
        own = torch.where(inside, tile.gather(1, columns).squeeze(1), own)
        new_top = torch.maximum(top, tile.amax(1))
        drop = torch.where(top.isinf(), 0.0, top - new_top)
        fade = drop.exp()
        tile.sub_(new_top[:, None])
        exp = torch.exp(tile, out=tiles.spare(tile))
        moment = fade * (moment + drop * mass) + torch.linalg.vecdot(exp, tile)
        mass = fade * mass + exp.sum(1)
        top = new_top
    log_mass = mass.log()
    total = top + log_mass
    return own - total, log_mass - moment / mass, total


def _pull_back(
    tiles: _Tiles, rows: slice, ids: slice, pull: Tensor, spread: Tensor | None, entropy: Tensor, total: Tensor
) -> Tensor:
    """Gradient of a tile of logits: pull * (onehot - p) - spread * p * (log p + entropy)."""
    tile = tiles.logits(rows, ids).sub_(total[rows, None])  # log p
    if spread is None:
        tile.exp_().mul_(pull[rows, None].neg())
    else:
        exp = torch.exp(tile, out=tiles.spare(tile))
        level = pull[rows] + spread[rows] * entropy[rows]
        torch.addcmul(level[:, None], tile, spread[rows, None], out=tile)
        tile.mul_(exp).neg_()
    inside, columns = tiles.own(rows, ids)
    tile.scatter_add_(1, columns, torch.where(inside, pull[rows], 0.0)[:, None])
    return tile


def _room(place: Tensor, one_product: bool) -> Tensor:
    """Where a slice of the weight's gradient is summed: in its place, or in fp32 where several low products add up."""
    return place if one_product or place.dtype == torch.float32 else place.new_zeros(place.shape, dtype=torch.float32)


def _add_product(total: Tensor, left: Tensor, right: Tensor, fresh: bool = False) -> None:
    """Adds ``left @ right`` to a sum, or begins it, without a copy where the types allow."""
    if left.dtype != total.dtype:
        total.add_(torch.mm(left, right))
    elif fresh:
        torch.mm(left, right, out=total)
    else:
        total.addmm_(left, right)
