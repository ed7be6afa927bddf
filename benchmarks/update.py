"""The update's forward and backward: each group's prompt once, against padded rows.

One prompt of one 392×392 picture, 238 tokens, and 24 response tokens for each of G samples, on a Qwen2.5-VL of 4 M
parameters. Both sides make their rows, keep only the response logits and use the same head. ``law_g*`` is the ratio of
the operations that both sides really do, counted; ``speedup_g*`` is the ratio of the times. With a GPU the same runs in
bf16 on random weights of Qwen2.5-VL-3B's size.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import transformers
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.generate import SHAPES, make_prompts, qwen2_5_vl
from rlvlm.batch import Batch
from rlvlm.models.policy import Policy

GROUPS = (8, 16)
REPEATS = 9
WARM_UP = 2
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
"""One, unless set: what is compared is the work, and not how well products of this size split over cores."""


def small_policy() -> Policy:
    """4 layers of width 256, a vision tower of 4 layers of width 128; fp32."""
    torch.manual_seed(0)
    parts = qwen2_5_vl()
    return Policy.from_parts(parts.model, parts.tokenizer, parts.image_processor)


def large_policy() -> Policy:
    """Random weights of Qwen2.5-VL-3B's size, bf16, on the GPU, with the small one's tokenizer."""
    small = qwen2_5_vl()
    marks = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    text = {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6},
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config = transformers.Qwen2_5_VLConfig(
        text_config=text,
        vision_config={
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 2048,
        },
        tie_word_embeddings=True,
        **{mark: getattr(small.model.config, mark) for mark in marks},
    )
    with torch.device("cuda"):
        model = transformers.Qwen2_5_VLForConditionalGeneration(config).bfloat16()
    return Policy.from_parts(model, small.tokenizer, small.image_processor).cuda()


def make_batch(policy: Policy, samples: int) -> Batch:
    """Random answers to one prompt with one picture."""
    shape = dataclasses.replace(SHAPES[0], prompts=1, samples=samples)
    asked = make_prompts(policy, shape)
    prompt = asked.prompts[0].ids
    answers = torch.randint(0, 900, (samples, shape.tokens), generator=torch.Generator().manual_seed(1))
    ids = torch.cat((prompt.expand(samples, -1), answers), 1)
    judged = torch.zeros_like(ids, dtype=torch.bool)
    judged[:, len(prompt) :] = True
    fields = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(judged),
        "loss_mask": judged,
        "group_ids": torch.zeros(samples, dtype=torch.int64),
    }
    return Batch(fields, prompts=asked.prompts, media=asked.media)


def update_of(policy: Policy, batch: Batch, kind: str) -> Callable[[], Tensor]:
    """Rows, forward and backward; returns the log-probs."""
    device = policy.banned.device

    def run() -> Tensor:
        policy.zero_grad()
        logp: Tensor = policy(policy.layout(batch, kind).to(device)).logp
        logp.sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return logp.detach()

    return run


def gradient(policy: Policy) -> Tensor:
    """All gradients as one vector."""
    return torch.cat([weight.grad.flatten().float() for weight in policy.parameters() if weight.grad is not None])


def compare(policy: Policy, samples: int) -> dict[str, float]:
    """Operations and median seconds of both sides, taken in turn."""
    batch = make_batch(policy, samples)
    sides = {kind: update_of(policy, batch, kind) for kind in ("padded", "shared")}
    counts, gradients = {}, {}
    seconds: dict[str, list[float]] = {kind: [] for kind in sides}
    for kind, run in sides.items():
        with FlopCounterMode(display=False) as counter:
            run()
        counts[kind], gradients[kind] = counter.get_total_flops(), gradient(policy)
    for step in range(WARM_UP + REPEATS):
        for kind, run in sides.items():
            start = time.perf_counter()
            run()
            if step >= WARM_UP:
                seconds[kind].append(time.perf_counter() - start)
    padded, shared = (statistics.median(seconds[kind]) for kind in ("padded", "shared"))
    law, speedup = counts["padded"] / counts["shared"], padded / shared
    apart = float((gradients["shared"] - gradients["padded"]).norm() / gradients["padded"].norm())
    print(
        f"G = {samples:>2}   padded {padded:7.3f} s {counts['padded'] / 1e9:8.1f} GFLOP   shared {shared:7.3f} s "
        f"{counts['shared'] / 1e9:8.1f} GFLOP   law {law:5.2f}x   speed-up {speedup:5.2f}x   gradients {apart:.1e} apart"
    )
    return {f"law_g{samples}": round(law, 3), f"speedup_g{samples}": round(speedup, 3)}


def main() -> None:
    """Prints the table, then one line of JSON."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(THREADS)
    policy = large_policy() if torch.cuda.is_available() else small_policy()
    parameters = sum(weight.numel() for weight in policy.parameters())
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {place}, {parameters / 1e6:.1f} M parameters"
    )
    figures: dict[str, float] = {}
    for samples in GROUPS:
        figures |= compare(policy, samples)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
