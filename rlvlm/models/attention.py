"""One attention function for every model, registered once with transformers and never toggled.

A forward pass may carry a ``layout`` keyword, an object whose ``attend`` says which tokens see which. Without one the
function is plain scaled-dot-product attention. The keyword travels with the call, so it survives recomputation under
gradient checkpointing, and nothing is global.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvlm.errors import EngineError

ATTENTION = "rlvlm"
"""The name of the attention implementation that models are loaded with."""

_FEW_SCORES = 1_048_576  # as many may stand in memory at once, for each layer


class AttentionLayout(Protocol):
    """Anything that knows how the tokens of a forward attend."""

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention of ``query`` [R, Hq, T, D] to ``key`` and ``value`` [R, Hk, T, D], rotated already; returns [R, T, Hq, D]."""
        ...


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: AttentionLayout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: the layout's own where there is one, else sdpa with the model's mask.

    Raises ``EngineError`` for attention dropout under a layout: samples of a group would share the prompt's dropped entries.
    """
    if layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if dropout:
        raise EngineError(
            f"attention dropout is {dropout}, but rows that share a prompt need 0; set attention_dropout to 0 or model.layout to padded."
        )
    return layout.attend(module, query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling), None


def grouped_sdpa(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attention of [S, Hq, Tq, D] to [S, Hk, Tk, D] where each key head serves Hq / Hk query heads; returns [S, Tq, Hq, D].

    Args:
        mask: [S or 1, 1, Tq, Tk] bool, true where a query may look.
        causal: query t sees keys up to t (top-left aligned); for as many queries as keys.
    """
    grouped = query.shape[1] != key.shape[1]
    if mask is not None:
        if query.shape[:3].numel() * key.shape[2] <= _FEW_SCORES:
            return _plain_attention(query, key, value, scaling, mask).transpose(1, 2)
        if grouped and query.is_cuda:  # the fast kernels take a mask or grouped heads, not both
            key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], 1) for states in (key, value))
            grouped = False
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=grouped
    )
    return out.transpose(1, 2)


def _plain_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float, mask: Tensor) -> Tensor:
    """The same by products and a softmax, which is quicker for many short queries; query heads of a key head stand in one block."""
    segments, heads, length, size = query.shape
    each = heads // key.shape[1]
    block = (query * scaling).reshape(segments, key.shape[1], each * length, size)
    scores = (block @ key.transpose(-1, -2)).view(segments, -1, each, length, key.shape[2])
    scores = scores + torch.where(mask[:, :, None], 0.0, -torch.inf).to(scores.dtype)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return (weights.flatten(2, 3) @ value).view(query.shape)


def register_attention() -> None:
    """Makes :data:`ATTENTION` known to transformers, which is imported only here: settings are checked without it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)  # without one, padded rows silently get no mask
