"""The loop of the in-process engine: prefill once, then one forward for each token of all samples that still go on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlvlm.engines.inference.config import SamplingParams
from rlvlm.engines.inference.responses import Responses
from rlvlm.engines.inference.sampling import cut, draw, log_probs
from rlvlm.engines.inference.stopping import StopTable
from rlvlm.models.decoding import GenerationCache, decode_rows
from rlvlm.models.rows import Rows


def decode(
    forward: Callable[[Rows], Tensor],
    cache: GenerationCache,
    logits: Tensor,
    positions: Tensor,
    noise: Tensor,
    params: SamplingParams,
    stop: StopTable,
) -> Responses:
    """Draws the samples of P prefilled prompts.

    Args:
        forward: next-token logits [N, V] of decode rows.
        cache: holds the prompts.
        logits: [P, V] that predict the first token; -inf at ids that may not be sampled.
        positions: [P] of the first token.
        noise: [P * n, T] float64, one uniform for each token; T is the length limit.
    """
    count, limit = noise.shape
    ids = torch.zeros(count, limit, dtype=torch.int64, device=noise.device)
    logp = torch.zeros(count, limit, device=noise.device)
    lengths = torch.full((count,), limit, device=noise.device)
    rows = torch.arange(count, device=noise.device)  # the samples that go on
    positions = positions.repeat_interleave(params.n)
    for token in range(limit):
        newest, its_logp = pick(logits, noise[rows, token].view(len(logits), -1), params)
        ids[rows, token], logp[rows, token] = newest.flatten(), its_logp.flatten()
        ended = stop.stopped(ids, rows, token + 1)
        if bool(ended.any()):
            lengths[rows[ended]] = token + 1
            rows = rows[~ended]
            if not len(rows):
                break
            cache.drop(ended)
        if token + 1 < limit:
            logits = forward(decode_rows(cache, ids[rows, token], positions[rows] + token))
            cache.advance()
    truncated = torch.zeros(count, dtype=torch.bool, device=noise.device).index_fill_(0, rows, True)
    return Responses(ids, logp, lengths, truncated)


def pick(logits: Tensor, noise: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Ids [R, k] for logits [R, V] and noise [R, k], and their log-probs before any cut."""
    logp = log_probs(logits, params.logp_temperature)
    if params.is_greedy:
        ids = logp.argmax(-1, keepdim=True).expand(noise.shape)
    else:
        ids = draw(cut(logp, params.top_k, params.top_p), noise)
    return ids, logp.gather(-1, ids)
