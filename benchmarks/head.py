"""The chunked head against full logits at a vocabulary of 151,936: peak memory and time, forward and backward.

Both sides give every token's log-prob, with its gradient, and its entropy, which is only logged: an update without an
entropy bonus. The full side is the plain one that keeps least: logits, fused cross-entropy, and the entropy from the
same logits in slices. Memory is what a process of its own reaches above inputs, weight and weight gradient. Making each
logit twice costs four products against three, so 1.33 is the floor of the time.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

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


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """States, weight (both with gradients) and targets."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH).requires_grad_()
    weight = torch.empty(VOCABULARY, WIDTH).normal_(0, WIDTH**-0.5)  # in place: no second copy in the peak
    return hidden, weight.requires_grad_(), torch.randint(0, VOCABULARY, (TOKENS,))


def run(side: str, hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Forward and backward; returns the outputs."""
    hidden.grad = weight.grad = None
    logp, entropy = SIDES[side](hidden, weight, targets)
    logp.sum().backward()
    return logp.detach(), entropy.detach()


def peak_bytes(side: str) -> int:
    """What forward and backward reach above inputs, weight and weight gradient; for a process of its own."""
    hidden, weight, targets = inputs()
    small = [tensor[:8].detach().requires_grad_() for tensor in (hidden, weight)]
    run(side, *small, torch.zeros(8, dtype=torch.int64))  # loads the kernels
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(side, hidden, weight, targets)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (after - before) * 1024 - weight.numel() * weight.element_size()


def peak_apart(side: str) -> int:
    """:func:`peak_bytes` in a new process."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.head", side], capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints the table, then one line of JSON."""
    memory = {side: peak_apart(side) for side in SIDES}
    arguments = inputs()
    results, seconds = {}, {side: [] for side in SIDES}
    for step in range(WARM_UP + REPEATS):
        for side in SIDES:
            start = time.perf_counter()
            outputs = run(side, *arguments)
            if step >= WARM_UP:
                seconds[side].append(time.perf_counter() - start)
            results[side] = (*outputs, arguments[1].grad)
    times = {side: statistics.median(values) for side, values in seconds.items()}
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {TOKENS} tokens of width {WIDTH}, {VOCABULARY} ids, fp32"
    )
    for side in SIDES:
        print(f"{side:<8} {times[side]:7.3f} s   {memory[side] / 2**20:8.0f} MiB above inputs, weight and its gradient")
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
    if len(sys.argv) > 1:
        print(peak_bytes(sys.argv[1]))
    else:
        main()
