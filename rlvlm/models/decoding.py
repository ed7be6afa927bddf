"""Generation's cache: a prompt's keys and values kept once, however many samples go on from it.

Both row types of generation enter through the policy's forward like any others. Prefill rows carry packed prompts and
a :class:`Prefill` layout, which attends within each prompt and stores its keys and values. Decode rows carry the newest
token of every sample and the :class:`GenerationCache` itself as the layout: the queries of a prompt's samples are laid
side by side against the prompt's keys, which are never copied for each sample, and each sample's own keys come second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvlm.batch import Batch
from rlvlm.errors import DataError
from rlvlm.models.attention import grouped_sdpa
from rlvlm.models.families.base import Family
from rlvlm.models.rows import Rows
from rlvlm.models.segments import Segments
from rlvlm.models.spans import gather_pictures, span_table

_FIRST_ROOM = 32  # tokens of room that a sample starts with; doubled when it is full
_WORTH = 0.75  # dropped rows are cut out of the cache when at most this share of it would be left


@dataclass
class _LayerCache:
    """One layer's keys and values: of prompts [P, Hk, Lp, D], and of their samples [P, Hk, n, room, D]."""

    prompt_key: Tensor
    prompt_value: Tensor
    own_key: Tensor
    own_value: Tensor


class GenerationCache:
    """Keys and values of P prompts and of n samples of each, and how the samples' newest tokens attend to them.

    The cache is the ``layout`` of decode rows: one row for each sample, those of a prompt side by side. Every layer
    stores its token's key and value; then :meth:`advance` ends the token. Rows can be dropped, from any prompt: they
    leave the forward at once, and the cache when that pays.

    Args:
        lengths: tokens of each prompt.
        samples: n.
        max_tokens: the most tokens that a sample will have.
    """

    def __init__(
        self, lengths: Sequence[int], samples: int, max_tokens: int, device: torch.device | str = "cpu"
    ) -> None:
        self.tokens = 0
        self.position_axes: Sequence[int] = ()  # (3,) for M-RoPE
        self._prompts, self._samples, self._max_tokens = len(lengths), samples, max_tokens
        self._width = max(lengths)
        self._layers: dict[int, _LayerCache] = {}
        self._places: Tensor | None = None  # [rows] of each row in the block [P, n]; None when it is full
        self._bias: Tensor | None = None  # [P, 1, 1, Lp], -inf behind the end of a shorter prompt
        if min(lengths) < self._width:
            behind = torch.arange(self._width) >= torch.tensor(list(lengths)).unsqueeze(1)
            self._bias = torch.zeros(behind.shape).masked_fill(behind, float("-inf"))[:, None, None].to(device)

    def store_prompts(self, layer: int, first: int, key: Tensor, value: Tensor) -> None:
        """Stores keys and values [p, Hk, Lp', D] of the prompts from ``first`` on, of one layer."""
        if layer not in self._layers:
            _, heads, _, size = key.shape
            room = min(_FIRST_ROOM, self._max_tokens)
            prompt, own = (self._prompts, heads, self._width, size), (self._prompts, heads, self._samples, room, size)
            # zeros, since behind a prompt's end a weight of 0 meets whatever stands there
            self._layers[layer] = _LayerCache(
                key.new_zeros(prompt), value.new_zeros(prompt), key.new_zeros(own), value.new_zeros(own)
            )
        cache, (count, _, width, _) = self._layers[layer], key.shape
        cache.prompt_key[first : first + count, :, :width] = key
        cache.prompt_value[first : first + count, :, :width] = value

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention of one new token of each sample to its prompt and its own earlier tokens.

        Args:
            query: [rows, Hq, 1, D]; key, value: [rows, Hk, 1, D].

        Returns [rows, 1, Hq, D].
        """
        cache, now = self._layers[module.layer_idx], self.tokens  # type: ignore[index]
        self._make_room(cache)
        groups, each = key.shape[1], query.shape[1] // key.shape[1]  # key heads, query heads of each
        cache.own_key[:, :, :, now] = self._block(key.squeeze(2))
        cache.own_value[:, :, :, now] = self._block(value.squeeze(2))
        own_key, own_value = cache.own_key[:, :, :, : now + 1], cache.own_value[:, :, :, : now + 1]

        own = self._block(query.view(len(query), groups, each, -1) * scaling)  # [P, Hk, n, each, D]
        to_prompt = own.flatten(2, 3) @ cache.prompt_key.transpose(-1, -2)  # [P, Hk, n * each, Lp]
        if self._bias is not None:
            to_prompt = to_prompt + self._bias.to(to_prompt.dtype)
        to_own = (own @ own_key.transpose(-1, -2)).flatten(2, 3)
        weights = torch.softmax(torch.cat([to_prompt, to_own], dim=-1), dim=-1, dtype=torch.float32).to(value.dtype)
        out = (weights[..., : self._width] @ cache.prompt_value).view_as(own)
        out = out + weights[..., self._width :].unflatten(2, (self._samples, each)) @ own_value
        rows = out.transpose(1, 2).reshape(-1, 1, query.shape[1], out.shape[-1])
        return rows if self._places is None else rows.index_select(0, self._places)

    def advance(self) -> None:
        """Ends a token: the next one goes behind it."""
        self.tokens += 1

    def drop(self, ended: Tensor) -> None:
        """Forgets the rows where ``ended`` [rows] is true; the others stay in order."""
        places = ended.logical_not().nonzero().squeeze(1)
        if self._places is not None:
            places = self._places[places]
        if len(places) <= _WORTH * self._prompts * self._samples:
            places = self._shrink(places)
        self._places = None if len(places) == self._prompts * self._samples else places

    def _shrink(self, places: Tensor) -> Tensor:
        """Cuts the block down to the prompts that have rows left and the most that any has, if that pays; new places."""
        size = self._prompts * self._samples
        taken = torch.zeros(size, dtype=torch.bool, device=places.device).index_fill_(0, places, True)
        taken = taken.view(self._prompts, self._samples)
        left = taken.sum(1)
        prompts, most = left.nonzero().squeeze(1), int(left.max())
        if len(prompts) * most > _WORTH * size:
            return places
        samples = taken.int().argsort(dim=1, descending=True, stable=True)[prompts, :most]
        self._cut(prompts, samples)
        return taken[prompts].gather(1, samples).flatten().nonzero().squeeze(1)

    def _block(self, rows: Tensor) -> Tensor:
        """[rows, Hk, …] as [P, Hk, n, …], zeros where a row was dropped."""
        if self._places is not None:
            whole = rows.new_zeros(self._prompts * self._samples, *rows.shape[1:])
            rows = whole.index_copy_(0, self._places, rows)
        return rows.unflatten(0, (self._prompts, self._samples)).transpose(1, 2)

    def _cut(self, prompts: Tensor, samples: Tensor) -> None:
        """Keeps these prompts [P'] and, of each, these samples [P', n'] (indices among its n)."""
        fewer = len(prompts) < self._prompts
        for cache in self._layers.values():
            if fewer:
                cache.prompt_key, cache.prompt_value = cache.prompt_key[prompts], cache.prompt_value[prompts]
            at = (prompts.unsqueeze(1), slice(None), samples)  # [P', n', Hk, …]
            cache.own_key = cache.own_key[..., : self.tokens, :][at].transpose(1, 2).contiguous()
            cache.own_value = cache.own_value[..., : self.tokens, :][at].transpose(1, 2).contiguous()
        if self._bias is not None:
            self._bias = self._bias[prompts]
        self._prompts, self._samples = samples.shape

    def _make_room(self, cache: _LayerCache) -> None:
        room = cache.own_key.shape[3]
        if self.tokens < room:
            return
        more = (0, 0, 0, min(max(room, _FIRST_ROOM), self._max_tokens - room))
        cache.own_key, cache.own_value = F.pad(cache.own_key, more), F.pad(cache.own_value, more)


@dataclass(frozen=True)
class Prefill:
    """Layout of prompts packed into one row: each attends causally within itself and leaves its keys and values in a cache.

    Attributes:
        cache: where they go.
        first: number of the row's first prompt in the cache.
        prompts: the prompts as segments of the row.
        places: [T] of the row's tokens in the segments' block; ``None`` when they are in order.
    """

    cache: GenerationCache
    first: int
    prompts: Segments
    places: Tensor | None

    @staticmethod
    def of(cache: GenerationCache, first: int, lengths: Tensor) -> Prefill:
        """The layout of prompts of these lengths [p], side by side."""
        prompts = Segments.of(lengths, 0)
        if prompts.index is None:
            return Prefill(cache, first, prompts, None)
        inside = torch.arange(prompts.length, device=lengths.device) < lengths.unsqueeze(1)
        return Prefill(cache, first, prompts, inside.flatten().nonzero().squeeze(1))

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Causal attention within each prompt of a packed row [1, H, T, D]; returns [1, T, Hq, D].

        Shorter prompts are filled up on the right, where causality alone keeps the filling out of sight.
        """
        query, key, value = (self.prompts.take(states[0].transpose(0, 1)) for states in (query, key, value))
        self.cache.store_prompts(module.layer_idx, self.first, key, value)  # type: ignore[arg-type]
        out = grouped_sdpa(query, key, value, scaling, causal=True).flatten(0, 1)
        return (out if self.places is None else out.index_select(0, self.places)).unsqueeze(0)


def prefill_rows(
    batch: Batch, groups: Sequence[int], family: Family, cache: GenerationCache, first: int
) -> tuple[Rows, Tensor]:
    """One packed row of prompts that fills the cache and asks for the logits of each first token; each picture once.

    Args:
        groups: which prompts of the batch's table, p of them.
        first: number of the first of them in the cache.

    Returns the row and the position [p] that comes after each prompt. Raises ``DataError`` naming the prompt whose
    placeholders are not where its pictures are.
    """
    device = batch.device
    prompts = [batch.prompts[group] for group in groups]
    ids = torch.cat([prompt.ids for prompt in prompts])
    lengths = torch.tensor([len(prompt.ids) for prompt in prompts], device=device)
    ends = lengths.cumsum(0)
    spans = span_table([prompt.spans for prompt in prompts], batch, family)
    positions, after = family.positions(lengths, spans)

    def name(number: int) -> str:
        return f"prompt '{prompts[number].uid}'"

    pictures = gather_pictures(spans, (ends - lengths)[spans.segment] + spans.offset, batch, family, False, name)
    misplaced = (ids == family.placeholder_id).index_fill(0, pictures.slots, False)
    misplaced[pictures.slots] = ids[pictures.slots] != family.placeholder_id
    if bool(misplaced.any()):
        token = int(misplaced.nonzero()[0])
        number = int(torch.searchsorted(ends, token, right=True))
        raise DataError(
            f"{name(number)} has {len(prompts[number].spans)} pictures, whose spans and placeholder tokens differ at token "
            f"{token - int(ends[number] - lengths[number])}; encode the prompt with this model's family."
        )
    cache.position_axes = positions.shape[:-1]
    layout = Prefill.of(cache, first, lengths)
    rows = Rows(ids[None], positions.unsqueeze(-2), reads=ends - 1, layout=layout, pictures=pictures)
    return rows, after


def decode_rows(cache: GenerationCache, ids: Tensor, positions: Tensor) -> Rows:
    """One row for each sample, which holds its newest token ``ids`` [N] at ``positions`` [N] and asks for the next logits."""
    positions = positions.expand(*cache.position_axes, -1).unsqueeze(-1)
    return Rows(ids.unsqueeze(1), positions, reads=torch.arange(len(ids), device=ids.device), layout=cache)
