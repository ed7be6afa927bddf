"""Drawing tokens: counter-based noise, the distribution that log-probs are of, top-k/top-p cuts, inverse CDF."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def noise_keys(seed: int, step: int, uids: Sequence[str], n: int) -> np.ndarray:
    """One 64-bit key for each sample, [P, n] uint64, from nothing but (seed, step, prompt uid, sample)."""
    prompts = np.array([_digest(f"{seed}/{step}/{uid}") for uid in uids], dtype=np.uint64)
    samples = np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN
    return _mix(prompts[:, None] + samples)


def uniforms(keys: np.ndarray, start: int, stop: int) -> Tensor:
    """The noise of tokens ``start`` to ``stop`` of each sample: [N, stop - start] float64 in [0, 1), from keys [N].

    SplitMix64 (Steele et al., https://doi.org/10.1145/2714064.2660195) read at a position instead of stepped: the
    number of a token depends on its key and its place only.
    """
    tokens = np.arange(start + 1, stop + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(keys.reshape(-1, 1) + tokens)
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def log_probs(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) in fp32, [R, V]; ids that may not be sampled come in, and go out, as -inf."""
    scores = logits.float()
    return torch.log_softmax(scores if temperature == 1.0 else scores / temperature, dim=-1)


def cut(logp: Tensor, top_k: int, top_p: float) -> Tensor:
    """``logp`` [R, V] with -inf outside the ``top_k`` most likely ids, and of those outside the nucleus ``top_p``.

    The nucleus is the fewest ids whose probabilities, renormalised after the first cut, add up to ``top_p``
    (Holtzman et al., https://arxiv.org/abs/1904.09751). Ids as likely as the k-th are kept with it.
    """
    floor = float("-inf")
    if 0 < top_k < logp.shape[-1]:
        logp = logp.masked_fill(logp < logp.topk(top_k, dim=-1).values[:, -1:], floor)
    if top_p < 1:
        ordered, order = logp.sort(dim=-1, descending=True, stable=True)
        share = torch.softmax(ordered, dim=-1, dtype=torch.float64)
        beyond = share.cumsum(-1) - share >= top_p  # true from the first id that the nucleus does without
        logp = logp.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), floor)
    return logp


def draw(logp: Tensor, uniform: Tensor) -> Tensor:
    """Ids [R, k] by inverse CDF over each row of logp [R, V] (need not be normalised), one ``uniform`` [R, k] for each.

    An id of probability 0 is never drawn: the drawn id is the first whose CDF is strictly above ``uniform`` times the
    CDF's end. Rows that are not numbers give an id all the same; whoever asks must look at its log-prob.
    """
    cdf = logp.exp().cumsum(-1, dtype=torch.float64)
    ids = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True)
    return ids.clamp_(max=logp.shape[-1] - 1)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(bits: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, elementwise on uint64 (products wrap)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
