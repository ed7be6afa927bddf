"""Advantages and losses against the functions of verl 0.9.1 and TRL 1.16.0 that do the same.

Both sides run in one process in turns, on all cores unless ``OMP_NUM_THREADS`` says otherwise, on the same tensors, each with
the mask it is used to (ours bool, theirs float). Losses are timed forward and backward, from log-probs to the gradient with
respect to them, metrics included: on our side ``Algorithm.loss``. A turn is one call, or as many as take a tenth of a second;
of each side the fastest turn counts. Memory that is freed stays with the process, for both sides alike, as with the caching
allocator of a device: else fresh pages from the kernel cost more than the arithmetic. Peak memory is the most that one call holds above
what was there before it, as the kernel counts it (on Linux). TRL's advantages are statements in the middle of a method; they are
cut out of it and run as they are.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import inspect
import json
import math
import os
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import peer_python
from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos import ADVANTAGES
from rlvlm.batch import Batch

ROWS, LENGTH = 512, 8192
GROUPS, SAMPLES, ANSWER = 512, 16, 256
TURNS = 8
KEEP_FREED_MEMORY = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(1 << 32))  # of glibc

Run = Callable[[], Any]


def token_tensors(holes: bool) -> dict[str, Tensor]:
    """[512, 8192]: answers of a quarter to the whole length, as one run of tokens or with a fifth of them masked."""
    g = torch.Generator().manual_seed(0)

    def normal(scale: float = 1.0) -> Tensor:
        return torch.randn(ROWS, LENGTH, generator=g) * scale

    lengths = torch.randint(LENGTH // 4, LENGTH + 1, (ROWS, 1), generator=g)
    mask = torch.arange(LENGTH) < lengths
    if holes:
        mask &= torch.rand(ROWS, LENGTH, generator=g) > 0.2
    logp = -normal().abs()
    advantages = torch.randn(ROWS, 1, generator=g).expand(ROWS, LENGTH) * mask
    near = {"prox_logp": logp + normal(0.1), "behav_logp": logp + normal(0.1)}
    return {"mask": mask, "logp": logp, **near, "advantages": advantages, "rewards": normal(), "values": normal()}


def group_tensors() -> dict[str, Tensor]:
    """512 groups of 16 samples with answers of up to 256 tokens; rewards are 0 or 1, on the last token for verl."""
    g = torch.Generator().manual_seed(0)
    rows = GROUPS * SAMPLES
    mask = torch.arange(ANSWER) < torch.randint(16, ANSWER + 1, (rows, 1), generator=g)
    rewards = torch.randint(0, 2, (rows,), generator=g).float()
    tokens = torch.zeros(rows, ANSWER).scatter(1, mask.sum(-1, keepdim=True) - 1, rewards[:, None])
    return {"mask": mask, "rewards": rewards, "token_rewards": tokens, "groups": torch.arange(rows) // SAMPLES}


# -------------------------------------------------------------------------------------------------- ours


def our_advantage(node: Any, x: dict[str, Tensor], mask: Tensor) -> Run:
    """An estimator of ours by name."""
    part = ADVANTAGES.build(node)
    given = {"rewards": x["rewards"], "token_rewards": x["rewards"], "loss_mask": mask}
    given |= {"values": x["values"]} if "values" in x else {"group_ids": x["groups"]}
    return lambda: part(given)


def our_loss(x: dict[str, Tensor], **settings: Any) -> Run:
    """Loss, gradient and metrics by the Algorithm."""
    made = Algorithm(AlgorithmConfig(**settings))
    fields = {name: x[name] for name in ("prox_logp", "behav_logp", "advantages")}
    batch = Batch({"group_ids": torch.arange(ROWS), "loss_mask": x["mask"], **fields})
    denominators = made.denominators(batch)

    def run() -> Tensor:
        logp = x["logp"].detach().requires_grad_()
        loss, metrics = made.loss(SimpleNamespace(logp=logp, entropy=None, value_preds=None), batch, denominators)
        loss.backward()
        _ = {key: value.item() for key, value in metrics.items()}  # the peers give numbers
        return loss.detach()

    return run


# ------------------------------------------------------------------------------------------------ theirs


def verl_gae(x: dict[str, Tensor]) -> Run:
    """verl's loop over time."""
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    mask = x["mask"].float()
    return lambda: compute_gae_advantage_return(x["rewards"], x["values"], mask, 0.99, 0.95)


def verl_group(name: str, x: dict[str, Tensor]) -> Run:
    """One of verl's group estimators."""
    import verl.trainer.ppo.core_algos as verl

    function, mask, index = getattr(verl, f"compute_{name}_outcome_advantage"), x["mask"].float(), x["groups"].numpy()
    return lambda: function(x["token_rewards"].clone(), mask, index)


def verl_loss(name: str, x: dict[str, Tensor], aggregation: str, corrected: bool = False, **options: Any) -> Run:
    """One of verl's policy losses; ``corrected`` makes and applies truncated importance weights as well."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    plain = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "use_dynamic_bsz": True}
    config, function, mask = ActorConfig(**plain, **options), get_policy_loss_fn(name), x["mask"].float()

    def run() -> Tensor:
        logp = x["logp"].detach().requires_grad_()
        weights = (x["prox_logp"] - x["behav_logp"]).clamp(-20, 20).exp().clamp(max=5.0) if corrected else None
        loss, _ = function(x["prox_logp"], logp, x["advantages"], mask, aggregation, config, weights)
        loss.backward()
        return loss.detach()

    return run


def cut_out(function: Callable[..., Any], first: str, last: str) -> Any:
    """Compiles the statements of a method from the one that starts with ``first`` to the one that starts with ``last``."""
    body = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body  # type: ignore[attr-defined]
    lines = [ast.unparse(statement) for statement in body]
    start = next(i for i, line in enumerate(lines) if line.startswith(first))
    stop = next(i for i, line in enumerate(lines) if i >= start and line.startswith(last))
    return compile("\n".join(lines[start : stop + 1]), "trl", "exec")


def trl_group(name: str, x: dict[str, Tensor]) -> Run:
    """The advantages of TRL's GRPO or RLOO trainer, one for each sample."""
    import trl.trainer.grpo_trainer as grpo
    import trl.trainer.rloo_trainer as rloo

    module, method = (grpo, grpo.GRPOTrainer) if name == "grpo" else (rloo, rloo.RLOOTrainer)
    first = "if self.multi_objective" if name == "grpo" else "rewards = ("
    code = cut_out(method._generate_and_score_completions, first, "advantages = torch.nan_to_num")
    trainer = SimpleNamespace(
        multi_objective_aggregation="sum_then_normalize",
        reward_weights=torch.ones(1),
        scale_rewards="group",
        normalize_advantages=False,
        reward_clip_range=None,
        beta=0.0,
    )
    rewards = x["rewards"][:, None]
    fixed = {**vars(module), "self": trainer, "num_generations": SAMPLES, "device": "cpu"}

    def run() -> Tensor:
        names = {**fixed, "rewards_per_func": rewards, "unscorable_mask": torch.isnan(rewards).all(dim=1)}
        exec(code, names)
        return names["advantages"]

    return run


def trl_loss(x: dict[str, Tensor], loss_type: str, level: str, corrected: bool = False) -> Run:
    """``GRPOTrainer._compute_loss`` on given log-probs."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    mask = x["mask"].long()
    args = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
    accelerator = SimpleNamespace(num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value)
    settings = {
        "loss_type": loss_type,
        "importance_sampling_level": level,
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.0,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "aux_loss_enabled": False,
        "use_vllm": corrected,
        "vllm_importance_sampling_correction": corrected,
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": LENGTH,
        "_entropy_bonus_enabled": False,
    }
    inputs = {
        **dict.fromkeys(("prompt_ids", "prompt_mask"), mask[:, :1]),
        **dict.fromkeys(("completion_ids", "completion_mask"), mask),
        "advantages": x["advantages"][:, 0],
        "old_per_token_logps": x["prox_logp"],
        "num_items_in_batch": mask.sum(),
    }
    entropies = torch.zeros(ROWS, LENGTH)

    def run() -> Tensor:
        logp = x["logp"].detach().requires_grad_()
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropies, None),
            args=args,
            accelerator=accelerator,
            model=SimpleNamespace(training=True),
            _metrics={"train": defaultdict(list)},
            **settings,
        )
        if corrected:
            inputs["importance_sampling_ratio"] = (x["prox_logp"] - x["behav_logp"]).mul(mask).exp().clamp(max=5.0)
        loss = GRPOTrainer._compute_loss(trainer, None, inputs)
        loss.backward()
        return loss.detach()

    return run


# --------------------------------------------------------------------------------------------- comparing


def sides(name: str) -> dict[str, Run]:
    """The sides of one comparison by name, ours first."""
    clips: dict[str, Any] = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
    if name.startswith("gae"):
        x = token_tensors(holes=name == "gae_holes")
        return {"ours": our_advantage({"name": "gae", "gamma": 0.99, "lam": 0.95}, x, x["mask"]), "verl": verl_gae(x)}
    if name in ("grpo", "rloo"):
        x = group_tensors()
        return {
            "ours": our_advantage(name, x, x["mask"]),
            "verl": verl_group(name, x),
            "verl_vectorized": verl_group(f"{name}_vectorized", x),
        }
    if name in ("grpo_one_column", "rloo_one_column"):  # TRL's advantages are not spread over tokens
        x, short = group_tensors(), name.partition("_")[0]
        return {"ours": our_advantage(short, x, x["mask"][:, :1].contiguous()), "trl": trl_group(short, x)}
    x = token_tensors(holes=False)
    if name == "gspo":
        node = {"name": "gspo", "clip_low": 0.2, "clip_high": 0.28}
        return {
            "ours": our_loss(x, policy_loss=node, aggregation="seq-mean-token-mean"),
            "verl": verl_loss("gspo", x, "seq-mean-token-mean", **clips),
            "trl": trl_loss(x, "grpo", "sequence"),
        }
    return {
        "ours": our_loss(x, policy_loss={"name": "decoupled_clip", "clip_low": 0.2, "clip_high": 0.28}),
        "verl": verl_loss("vanilla", x, "token-mean", corrected=True, **clips),
        "trl": trl_loss(x, "dapo", "token", corrected=True),
    }


NAMES = ("gae", "gae_holes", "grpo", "rloo", "grpo_one_column", "rloo_one_column", "gspo", "decoupled_clip")


def compare(name: str) -> dict[str, float]:
    """Prints a row for each side; returns seconds by side."""
    runs = sides(name)
    calls = {side: calls_of_a_turn(run) for side, run in runs.items()}
    fastest = dict.fromkeys(runs, math.inf)
    for _ in range(TURNS):
        for side, run in runs.items():
            fastest[side] = min(fastest[side], seconds_of(run, calls[side]))
    for side, seconds in fastest.items():
        ratio = "" if side == "ours" else f"{seconds / fastest['ours']:9.1f}x"
        print(f"{name:<16} {side:<16} {seconds * 1e3:10.2f} {peak(runs[side]):10.1f} {ratio}", flush=True)
    return fastest


def seconds_of(run: Run, calls: int) -> float:
    """Mean seconds of a call."""
    gc.collect()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def calls_of_a_turn(run: Run) -> int:
    """How many calls take a tenth of a second; the first call, which loads code, is not counted."""
    run()
    return math.ceil(0.1 / seconds_of(run, 1))


def peak(run: Run) -> float:
    """MiB that one call reaches above what is there before it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else memory that an earlier call gave back would be taken again unseen
    Path("/proc/self/clear_refs").write_text("5")  # sets the highest mark back to what is there now
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def resident(mark: str) -> float:
    """One of the kernel's counts of this process's memory, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(mark)) / 1024


def main() -> int:
    """Runs itself in the peers' environment, prints the table and last the ratios, theirs over ours, as one line of JSON."""
    arguments = sys.argv[1:]
    if not arguments:
        command = [str(peer_python()), "-m", "benchmarks.algos", "--inside"]
        return subprocess.run(command, env={**KEEP_FREED_MEMORY, **os.environ}).returncode
    print(f"{torch.get_num_threads()} threads")
    print(f"{'what':<16} {'side':<16} {'ms':>10} {'peak MiB':>10} {'theirs / ours':>10}")
    seconds = {name: compare(name) for name in arguments[1:] or NAMES}
    ratios = {}
    for name, found in seconds.items():
        for side, time_ in found.items():
            if side != "ours":
                ratios[f"{name.removesuffix('_one_column')}_vs_{side}"] = round(time_ / found["ours"], 2)
    print(json.dumps(ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
