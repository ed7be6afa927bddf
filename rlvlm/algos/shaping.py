"""Regularisers that act on the reward, or on the weights of tokens, in place of the loss.

A reward penalty [B, L] is not negative; the Algorithm takes ``weight`` times it off the token rewards before advantages.
Token weights [B, L] multiply the policy loss; the Algorithm blends them in as ``1 + weight · (w - 1)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvlm.algos.checks import check_positive, check_token_fields
from rlvlm.algos.numerics import as_mask
from rlvlm.algos.registries import register_regularizer
from rlvlm.errors import ConfigError


@register_regularizer("length", acts_on="weights")
@torch.no_grad()
def length(loss_mask: Tensor, num_tokens: float, num_sequences: float) -> Tensor:
    """Token weight ``mean length / own length``: with weight 1 every sequence counts the same, whatever its length.

    ``num_tokens / num_sequences`` is the mean length over the whole mini-batch.
    """
    check_token_fields(loss_mask=loss_mask)
    own = as_mask(loss_mask).sum(-1, keepdim=True).clamp_min(1)
    mean = num_tokens / max(num_sequences, 1)
    return (mean / own).expand_as(loss_mask)


@register_regularizer("overlong", acts_on="reward")
@torch.no_grad()
def overlong(loss_mask: Tensor, *, max_length: int, buffer: float = 0.2, bounded: bool = True) -> Tensor:
    """``clip((length - max_length + buffer) / buffer, 0, 1)`` on the last policy token: a soft punishment of long answers.

    Paper: DAPO, arXiv 2503.14476.
    Elsewhere: ``overlong_buffer`` of the DAPO reward manager (verl).

    Args:
        max_length: longest answer, in policy tokens.
        buffer: over how many tokens before it the penalty rises; below 1 a share of ``max_length``.
        bounded: stay at 1 beyond ``max_length`` (verl goes on rising).
    """
    check_token_fields(loss_mask=loss_mask)
    check_positive("overlong", max_length=max_length, buffer=buffer)
    tokens = buffer * max_length if buffer < 1 else buffer
    if tokens > max_length:
        raise ConfigError(f"the buffer of 'overlong' is at most max_length {max_length}, got {buffer}.")
    mask = as_mask(loss_mask)
    excess = (mask.sum(-1) - (max_length - tokens)).to(torch.float32) / tokens
    penalty = excess.clamp(0.0, 1.0) if bounded else excess.clamp_min(0.0)
    return _last_token(mask) * penalty.unsqueeze(-1)


@register_regularizer("ngram_repetition", acts_on="reward")
@torch.no_grad()
def ngram_repetition(input_ids: Tensor, loss_mask: Tensor, *, n: int = 4) -> Tensor:
    """Share of the answer's n-grams that occurred before, ``1 - distinct / all``, on the tokens that complete a repeated one.

    An n-gram counts if the policy sampled all of its tokens, side by side.

    Elsewhere: ``repetition`` reward (VLM-R1).

    Args:
        n: tokens in an n-gram.
    """
    check_token_fields(input_ids=input_ids, loss_mask=loss_mask)
    check_positive("ngram_repetition", n=n)
    mask = as_mask(loss_mask)
    rows, length = mask.shape
    penalty = torch.zeros(rows, length, device=mask.device)
    if length < n:
        return penalty
    whole = mask.unfold(1, n, 1).all(-1)
    repeated = _seen_before(_hashes(input_ids, n), whole)
    penalty[:, n - 1 :] = repeated / whole.sum(-1, keepdim=True).clamp_min(1)
    return penalty


def _last_token(mask: Tensor) -> Tensor:
    """True [B, L] at the last token of each row's mask."""
    later = mask.flip(-1).cumsum(-1).flip(-1)
    return mask & (later == 1)


def _hashes(input_ids: Tensor, n: int) -> Tensor:
    """A 64-bit hash [B, L - n + 1] of each window of n ids; arithmetic wraps around."""
    value = torch.zeros_like(input_ids[:, : input_ids.shape[1] - n + 1])
    for offset in range(n):
        ids = input_ids[:, offset : offset + value.shape[1]]
        value = (value ^ (ids + 0x9E3779B9)) * 0x100000001B3
        value = value ^ (value >> 29)
    return value


def _seen_before(hashes: Tensor, whole: Tensor) -> Tensor:
    """True where a whole window has the hash of an earlier whole window of its row."""
    order = torch.argsort(hashes, dim=-1, stable=True)
    by_whole = order.gather(-1, torch.argsort(~whole.gather(-1, order), dim=-1, stable=True))
    ranked, valid = hashes.gather(-1, by_whole), whole.gather(-1, by_whole)
    again = torch.zeros_like(whole)
    again[:, 1:] = (ranked[:, 1:] == ranked[:, :-1]) & valid[:, 1:] & valid[:, :-1]
    return torch.zeros_like(whole).scatter(-1, by_whole, again)
