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

_FIRST_BLOCK = 32  # tokens of room that a sample starts with; doubled when it is full


@dataclass
class _LayerCache:
    """One layer's keys and values: of prompts [P, Hk, Lp, D], and of their samples [P, Hk, n, room, D]."""

    prompt_key: Tensor
    prompt_value: Tensor
    own_key: Tensor
    own_value: Tensor


class GenerationCache:
    """Keys and values of P prompts and of n samples of each, and how the samples' newest tokens attend to them.

    The cache is the ``layout`` of decode rows: one new token for each sample, [P * n] rows, those of a prompt side by
    side. Every layer stores the token's key and value, then the engine calls :meth:`advance`.

    Args:
        lengths: tokens of each prompt.
        samples: n.
        max_tokens: the most tokens that a sample will have.
    """

    def __init__(
        self, lengths: Sequence[int], samples: int, max_tokens: int, device: torch.device | str = "cpu"
    ) -> None:
        self.prompts, self.samples, self.max_tokens = len(lengths), samples, max_tokens
        self.tokens = 0
        self.position_axes: Sequence[int] = ()  # (3,) for M-RoPE
        self._width = max(lengths)
        self._layers: dict[int, _LayerCache] = {}
        self._bias: Tensor | None = None  # [P, 1, 1, Lp], -inf behind the end of a shorter prompt
        if min(lengths) < self._width:
            behind = torch.arange(self._width) >= torch.tensor(list(lengths)).unsqueeze(1)
            self._bias = torch.zeros(behind.shape).masked_fill(behind, float("-inf"))[:, None, None].to(device)

    def store_prompts(self, layer: int, first: int, key: Tensor, value: Tensor) -> None:
        """Stores keys and values [p, Hk, Lp', D] of the prompts from ``first`` on, of one layer."""
        if layer not in self._layers:
            _, heads, _, size = key.shape
            room = min(_FIRST_BLOCK, self.max_tokens)
            prompt, own = (self.prompts, heads, self._width, size), (self.prompts, heads, self.samples, room, size)
            # zeros, since behind a prompt's end a weight of 0 meets whatever stands there
            self._layers[layer] = _LayerCache(
                key.new_zeros(prompt), value.new_zeros(prompt), key.new_empty(own), value.new_empty(own)
            )
        cache, (count, _, width, _) = self._layers[layer], key.shape
        cache.prompt_key[first : first + count, :, :width] = key
        cache.prompt_value[first : first + count, :, :width] = value

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention of one new token of each sample to its prompt and its own earlier tokens.

        Args:
            query: [P * n, Hq, 1, D]; key, value: [P * n, Hk, 1, D].

        Returns [P * n, 1, Hq, D].
        """
        cache, now = self._layers[module.layer_idx], self.tokens  # type: ignore[index]
        rows, heads, _, size = query.shape
        prompts, samples, groups = self.prompts, self.samples, key.shape[1]
        each = heads // groups  # query heads of one key head
        self._make_room(cache)
        cache.own_key[:, :, :, now] = key.view(prompts, samples, groups, size).transpose(1, 2)
        cache.own_value[:, :, :, now] = value.view(prompts, samples, groups, size).transpose(1, 2)
        own_key, own_value = cache.own_key[:, :, :, : now + 1], cache.own_value[:, :, :, : now + 1]

        own = query.view(prompts, samples, groups, each, size).transpose(1, 2) * scaling  # [P, Hk, n, each, D]
        side_by_side = own.reshape(prompts, groups, samples * each, size)
        to_prompt = side_by_side @ cache.prompt_key.transpose(-1, -2)
        if self._bias is not None:
            to_prompt = to_prompt + self._bias.to(to_prompt.dtype)
        to_own = (own @ own_key.transpose(-1, -2)).view(prompts, groups, samples * each, now + 1)
        weights = torch.softmax(torch.cat([to_prompt, to_own], dim=-1), dim=-1, dtype=torch.float32).to(value.dtype)
        of_prompt, of_own = weights[..., : self._width], weights[..., self._width :]
        out = of_prompt @ cache.prompt_value
        out = out.view_as(own) + of_own.view(prompts, groups, samples, each, now + 1) @ own_value
        return out.transpose(1, 2).reshape(rows, 1, heads, size)

    def advance(self) -> None:
        """Ends a token: the next one goes behind it."""
        self.tokens += 1

    def keep(self, prompts: Tensor, samples: Tensor) -> None:
        """Keeps these prompts [P'] and, of each, these samples [P', n'] (indices among its n), and forgets the rest."""
        for cache in self._layers.values():
            cache.prompt_key, cache.prompt_value = cache.prompt_key[prompts], cache.prompt_value[prompts]
            at = (prompts.unsqueeze(1), slice(None), samples)
            filled = slice(0, self.tokens)
            cache.own_key = cache.own_key[..., filled, :][at].transpose(1, 2).contiguous()
            cache.own_value = cache.own_value[..., filled, :][at].transpose(1, 2).contiguous()
        if self._bias is not None:
            self._bias = self._bias[prompts]
        self.prompts, self.samples = samples.shape

    def _make_room(self, cache: _LayerCache) -> None:
        room = cache.own_key.shape[3]
        if self.tokens < room:
            return
        more = (0, 0, 0, min(max(room, _FIRST_BLOCK), self.max_tokens - room))
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
