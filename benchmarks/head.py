"""The chunked head against full logits at a vocabulary of 151,936: peak memory and time, forward and backward.

Both sides give every token's log-prob, with its gradient, and its entropy, which is only logged: an update without an
entropy bonus. The full side is the plain one that keeps least: logits, fused cross-entropy, and the entropy from the
same logits in slices. Memory is the most bytes of tensors alive at once, counted as they come and go, without inputs,
weight and weight gradient. Making each logit twice costs four products against three, so 1.33 is the floor of the time
where products are all that counts.
"""

from __future__ import annotations

import json
import statistics
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlvlm.models.head import token_logp

VOCABULARY = 151_936
TOKENS = 384
WIDTH = 1024
REPEATS = 5
WARM_UP = 1
SLICE = 32  # tokens whose entropy the full side makes at a time


def full(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies from full logits."""
    logits = hidden @ weight.T
    logp = -F.cross_entropy(logits, targets, reduction="none")
    with torch.no_grad():
        entropies = []
        for part in logits.split(SLICE):
            log_p = part.log_softmax(-1)
            entropies.append(-torch.linalg.vecdot(log_p.exp(), log_p))
    return logp, torch.cat(entropies)


SIDES: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {"full": full, "chunked": token_logp}


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of new tensors that are alive at once, those of ``ignored`` bytes (the weight's gradient) apart."""

    def __init__(self, ignored: int) -> None:
        super().__init__()
        self.ignored, self.alive, self.peak = ignored, 0, 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        old = {value.untyped_storage()._cdata for value in args if isinstance(value, Tensor)}
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage(), old)
        return out

    def _count(self, storage: Any, old: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in old or key in self._known or size == self.ignored:
            return
        self._known[key] = size
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.alive -= self._known.pop(key)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """States, weight (both with gradients) and targets."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH).requires_grad_()
    weight = torch.empty(VOCABULARY, WIDTH).normal_(0, WIDTH**-0.5)
    return hidden, weight.requires_grad_(), torch.randint(0, VOCABULARY, (TOKENS,))


def run(side: str, hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Forward and backward; returns the outputs."""
    hidden.grad = weight.grad = None
    logp, entropy = SIDES[side](hidden, weight, targets)
    logp.sum().backward()
    return logp.detach(), entropy.detach()


def main() -> None:
    """Prints the table, then one line of JSON."""
    arguments = inputs()
    results, memory = {}, {}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for side in SIDES:
        with PeakBytes(arguments[1].numel() * arguments[1].element_size()) as counter:
            outputs = run(side, *arguments)
        results[side], memory[side] = (*outputs, arguments[1].grad), counter.peak
    for step in range(WARM_UP + REPEATS):
        for side in SIDES:
            start = time.perf_counter()
            run(side, *arguments)
            if step >= WARM_UP:
                seconds[side].append(time.perf_counter() - start)
    times = {side: statistics.median(values) for side, values in seconds.items()}
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads, {TOKENS} tokens of width {WIDTH}, {VOCABULARY} ids, fp32")
    for side in SIDES:
        print(f"{side:<8} {times[side]:7.3f} s   {memory[side] / 2**20:7.1f} MiB above inputs, weight and its gradient")
    apart = [float((a - b).norm() / b.norm()) for a, b in zip(results["chunked"], results["full"], strict=True)]
    print("log-probs, entropies and weight gradient are {:.1e}, {:.1e} and {:.1e} apart".format(*apart))
    figures = {
        "memory_ratio": round(memory["chunked"] / memory["full"], 4),
        "time_ratio": round(times["chunked"] / times["full"], 3),
        "tokens": TOKENS,
        "width": WIDTH,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
