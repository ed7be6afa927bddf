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

_WORTH = 0.75  # finished rows are dropped when at most this share of the rows would be left

Logits = Callable[[Rows], Tensor]


def decode(
    forward: Logits,
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
    progress = Progress(len(positions), params.n, noise.shape[1], noise.device)
    positions = positions.repeat_interleave(params.n)
    for token in range(noise.shape[1]):
        rows = progress.slots.flatten()
        ids, logp = pick(logits, noise[rows, token].view(len(logits), -1), params)
        if not progress.take(token, ids.flatten(), logp.flatten(), stop) or token + 1 == noise.shape[1]:
            break
        if (kept := progress.compact()) is not None:
            cache.keep(*kept)
            rows = progress.slots.flatten()
        logits = forward(decode_rows(cache, progress.ids[rows, token], positions[rows] + token))
        cache.advance()
    return progress.responses()


def pick(logits: Tensor, noise: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Ids [R, k] for logits [R, V] and noise [R, k], and their log-probs before any cut."""
    logp = log_probs(logits, params.logp_temperature)
    if params.is_greedy:
        ids = logp.argmax(-1, keepdim=True).expand(noise.shape)
    else:
        ids = draw(cut(logp, params.top_k, params.top_p), noise)
    return ids, logp.gather(-1, ids)


class Progress:
    """What the samples of P prompts have drawn so far, and which sample stands in which row of the forward.

    Rows come as a block [prompts, samples of each] because the cache lays a prompt's samples side by side. When enough
    samples have ended, the block shrinks to the most that any prompt has left; a place too many holds an ended sample.

    Attributes:
        ids: [P * n, T] drawn tokens.
        slots: [P', n'] the sample in each row.
    """

    def __init__(self, prompts: int, samples: int, tokens: int, device: torch.device) -> None:
        count = prompts * samples
        self.ids = torch.zeros(count, tokens, dtype=torch.int64, device=device)
        self.slots = torch.arange(count, device=device).view(prompts, samples)
        self._logp = torch.zeros(count, tokens, device=device)
        self._lengths = torch.full((count,), tokens, device=device)
        self._running = torch.ones(count, dtype=torch.bool, device=device)
        self._changed = False

    def take(self, token: int, ids: Tensor, logp: Tensor, stop: StopTable) -> bool:
        """Notes the newest token of each row; returns whether any sample goes on."""
        rows = self.slots.flatten()
        self.ids[rows, token], self._logp[rows, token] = ids, logp
        ended = stop.stopped(self.ids, rows, token + 1) & self._running[rows]
        self._changed = bool(ended.any())
        if not self._changed:
            return True
        rows = rows[ended]
        self._lengths[rows] = token + 1
        self._running[rows] = False
        return bool(self._running.any())

    def compact(self) -> tuple[Tensor, Tensor] | None:
        """Drops ended samples if that pays: the prompts [P''] and samples of each [P'', n''] that stay, else ``None``."""
        if not self._changed:
            return None
        running = self._running[self.slots]
        left = running.sum(1)
        prompts, most = left.nonzero().squeeze(1), int(left.max())
        if len(prompts) * most > _WORTH * self.slots.numel():
            return None
        samples = running.int().argsort(dim=1, descending=True, stable=True)[prompts, :most]
        self.slots = self.slots[prompts].gather(1, samples)
        return prompts, samples

    def responses(self) -> Responses:
        """Everything that was drawn; samples that still go on are truncated."""
        return Responses(self.ids, self._logp, self._lengths, self._running)
