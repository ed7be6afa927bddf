"""Runs the functions of verl 0.9.1 and TRL 1.16.0 on random batches and stores inputs and outputs beside this script.

The tests need only what is stored. To make it again, in an environment of its own:

    python -m venv /tmp/peers && . /tmp/peers/bin/activate
    pip install torch transformers accelerate datasets peft tensordict hydra-core codetiming orjson ray
    pip install --no-deps verl==0.9.1 trl==1.16.0
    python tests/parity/make_fixtures.py

Batches are ragged: each has its own size, masks with holes, empty rows, groups of any size in any order, and in a third of
them log-ratios up to ± 40. All numbers are float64. Arrays of all batches are joined into one for each name; of outputs
[B, L] only the entries inside the mask are kept.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent
NUM_BATCHES = 200
Arrays = dict[str, Tensor]


def random_batch(number: int) -> Arrays:
    """One batch; every third one is extreme, every fourth has equal rewards in its first group."""
    g = torch.Generator().manual_seed(number)
    rows, length = int(torch.randint(2, 8, (), generator=g)), int(torch.randint(2, 9, (), generator=g))

    def normal(scale: float = 1.0) -> Tensor:
        return torch.randn(rows, length, generator=g, dtype=torch.float64) * scale

    mask = torch.rand(rows, length, generator=g) > 0.3
    if number % 5 == 0:
        mask[0] = False
    mask[1, :2] = True
    groups = torch.randint(0, max(2, rows // 2), (rows,), generator=g)
    rewards = torch.randint(-4, 9, (rows,), generator=g).double() / 8
    if number % 4 == 0:
        rewards[groups == groups[0]] = 0.7
    spread = 12.0 if number % 3 == 0 else 0.4
    logp = -normal().abs() - 0.05
    return {
        "mask": mask,
        "groups": groups,
        "rewards": rewards,
        "rewards2": torch.randint(0, 3, (rows,), generator=g).double() / 2,
        "greedy": torch.randint(0, 3, (rows,), generator=g).double() / 2,
        "token_rewards": normal() * (torch.rand(rows, length, generator=g) > 0.5),
        "values": normal(),
        "value_preds": normal(),
        "logp": logp,
        "prox_logp": logp - normal(spread).clamp(-40, 40),
        "behav_logp": logp - normal(spread).clamp(-40, 40),
        "ref_logp": logp - normal(spread).clamp(-40, 40),
        "advantages": normal() * (torch.rand(rows, 1, generator=g) > 0.1),
        "weights": normal().exp(),
    }


def is_extreme(number: int) -> bool:
    """Whether the batch has log-ratios at which functions without a clamp overflow."""
    return number % 3 == 0


def outcome(batch: Arrays) -> Tensor:
    """The reward of each row on its last policy token, or on its last column where it has none."""
    mask = batch["mask"]
    places = torch.arange(mask.shape[1]).expand_as(mask)
    last = torch.where(mask, places, -1).amax(-1)
    last = torch.where(last < 0, mask.shape[1] - 1, last)
    return torch.zeros(mask.shape, dtype=torch.float64).scatter(1, last[:, None], batch["rewards"][:, None])


# ------------------------------------------------------------------------------------------------ verl


def verl_advantages(number: int, batch: Arrays) -> Arrays:
    """Every estimator of verl that we have, with outcome rewards where it takes only those."""
    import verl.trainer.ppo.core_algos as verl

    mask, tokens = batch["mask"].double(), outcome(batch)
    index = batch["groups"].numpy()
    out: Arrays = {}
    gae = verl.compute_gae_advantage_return(batch["token_rewards"], batch["values"], mask, 0.97, 0.9)
    out["gae"], out["gae_returns"] = gae
    out["gae_plain"], _ = verl.compute_gae_advantage_return(batch["token_rewards"], batch["values"], mask, 1.0, 1.0)
    out["grpo"] = verl.compute_grpo_outcome_advantage(tokens, mask, index)[0]
    out["grpo_no_std"] = verl.compute_grpo_outcome_advantage(tokens, mask, index, norm_adv_by_std_in_grpo=False)[0]
    out["grpo_vectorized"] = verl.compute_grpo_vectorized_outcome_advantage(tokens, mask, index)[0]
    out["rloo"] = verl.compute_rloo_outcome_advantage(tokens, mask, index)[0]
    out["rloo_vectorized"] = verl.compute_rloo_vectorized_outcome_advantage(tokens, mask, index)[0]
    out["opo"] = verl.compute_opo_outcome_advantage(tokens, mask, index)[0]
    out["gpg"] = verl.compute_gpg_outcome_advantage(tokens, mask, index)[0]
    baseline = verl.compute_reinforce_plus_plus_baseline_outcome_advantage(tokens, mask, index)
    out["reinforce_plus_plus_baseline"] = baseline[0]
    config = SimpleNamespace(gamma=0.95)
    plus, returns = verl.compute_reinforce_plus_plus_outcome_advantage(batch["token_rewards"], mask, config)
    out["reinforce_plus_plus"], out["reinforce_plus_plus_returns"] = plus, returns
    greedy = batch["greedy"][batch["groups"] % len(batch["greedy"])]
    out["remax"], out["remax_returns"] = verl.compute_remax_outcome_advantage(batch["token_rewards"], greedy, mask)
    sizes = np.unique(index, return_counts=True)[1]
    if sizes.min() > 1:
        for name, divide in (("grpo_passk", True), ("grpo_passk_no_std", False)):
            settings = {"norm_adv_by_std_in_grpo": divide}
            out[name] = verl.compute_grpo_passk_outcome_advantage(tokens, mask, index, config=settings)[0]
    settings = {"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0, 0.5]}
    scores = {"a": batch["rewards"].numpy(), "b": batch["rewards2"].numpy()}
    shapes = {"prompts": torch.zeros(len(mask), 1), "attention_mask": torch.ones(len(mask), 1 + mask.shape[1]).long()}
    out["gdpo"] = verl.compute_gdpo_outcome_advantage(
        tokens, mask, index, config=settings, non_tensor_batch=scores, batch=shapes
    )[0]
    return out


def verl_config(**options: Any) -> Any:
    """An actor configuration of verl; ``policy_loss`` options are given with the prefix ``pl_``."""
    from verl.workers.config import ActorConfig
    from verl.workers.config.actor import PolicyLossConfig

    policy = PolicyLossConfig(**{key[3:]: options.pop(key) for key in list(options) if key.startswith("pl_")})
    plain = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "use_dynamic_bsz": True}
    return ActorConfig(**plain, policy_loss=policy, **options)


VERL_LOSSES: dict[str, tuple[str, dict[str, Any], bool]] = {
    # name: (their name, options, whether their function clamps log-ratios)
    "ppo_clip": ("vanilla", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}, True),
    "dppo_tv": ("dppo_tv", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.15, "clip_ratio_c": 20.0}, True),
    "dppo_kl": ("dppo_kl", {"clip_ratio_low": 0.05, "clip_ratio_high": 0.08, "clip_ratio_c": 20.0}, True),
    "gspo": ("gspo", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2}, True),
    "sapo": ("sapo", {}, True),
    "gpg": ("gpg", {}, True),
    "clip_cov": ("clip_cov", {"pl_clip_cov_ratio": 0.1, "pl_clip_cov_lb": 0.05}, False),
    "kl_cov": ("kl_cov", {"pl_kl_cov_ratio": 0.15, "pl_ppo_kl_coef": 0.7}, False),
    "geo_mean": ("geo_mean", {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}, False),
    "cispo": ("cispo", {"clip_ratio_low": 0.3, "clip_ratio_high": 0.2}, True),
}


def verl_losses(number: int, batch: Arrays) -> Arrays:
    """Value and gradient of every policy loss, without and (``_weighted``) with importance weights."""
    from verl.trainer.ppo.core_algos import compute_policy_loss_reinforce, get_policy_loss_fn

    mask = batch["mask"].double()
    out: Arrays = {}

    def record(name: str, call: Callable[[Tensor], Tensor]) -> None:
        logp = batch["logp"].clone().requires_grad_()
        loss = call(logp)
        loss.backward()
        out[name], out[f"{name}_grad"] = loss.detach(), logp.grad

    for name, (theirs, options, clamped) in VERL_LOSSES.items():
        if is_extreme(number) and not clamped:
            continue
        config, function = verl_config(**options), get_policy_loss_fn(theirs)
        for suffix, weights in (("", None), ("_weighted", batch["weights"])):
            if suffix and name in ("clip_cov", "kl_cov", "geo_mean"):
                continue
            mode = "seq-mean-token-mean" if name in ("gspo", "sapo") else "token-mean"
            torch.manual_seed(number)
            record(
                name + suffix,
                lambda logp, f=function, c=config, w=weights, m=mode: f(
                    batch["prox_logp"], logp, batch["advantages"].expand_as(mask).clone(), mask, m, c, w
                )[0],
            )
    record(
        "reinforce",
        lambda logp: compute_policy_loss_reinforce(
            batch["behav_logp"], logp, batch["advantages"], mask, "token-mean", verl_config(), batch["weights"]
        )[0],
    )
    return out


def verl_aggregations(number: int, batch: Arrays) -> Arrays:
    """Each aggregation of a per-token loss with a constant length of 7."""
    from verl.trainer.ppo.core_algos import agg_loss

    modes = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    mask = batch["mask"].double()
    return {mode: agg_loss(batch["values"], mask, mode, loss_scale_factor=7) for mode in modes}


def verl_values(number: int, batch: Arrays) -> Arrays:
    """The clipped value loss, its gradient and its share of clipped tokens."""
    from verl.trainer.ppo.core_algos import compute_value_loss

    preds = batch["value_preds"].clone().requires_grad_()
    loss, share = compute_value_loss(preds, batch["token_rewards"], batch["values"], batch["mask"].double(), 0.5)
    loss.backward()
    return {"clipped": loss.detach(), "clipped_grad": preds.grad, "clipped_share": share}


def verl_kls(number: int, batch: Arrays) -> Arrays:
    """Value and gradient of each KL estimator; their ``k3`` is clamped to ± 10."""
    from verl.trainer.ppo.core_algos import kl_penalty

    out: Arrays = {}
    for name in ("k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"):
        logp = batch["logp"].clone().requires_grad_()
        value = kl_penalty(logp, batch["ref_logp"], name)
        value.sum().backward()
        out[name], out[f"{name}_grad"] = value.detach(), logp.grad
    return out


def verl_corrections(number: int, batch: Arrays) -> Arrays:
    """Importance weights and rejection masks; ratios are trainer over engine."""
    from verl.trainer.ppo.rollout_corr_helper import (
        compute_offpolicy_metrics,
        compute_rollout_correction_weights,
        compute_rollout_rejection_mask,
    )

    mask = batch["mask"].double()
    ratio = batch["prox_logp"] - batch["behav_logp"]
    out: Arrays = {}
    for level in ("token", "sequence"):
        for name, threshold in (("tis", 1.5), ("icepop", "0.4_2.5")):
            for suffix, normalize in (("", False), ("_normalized", True)):
                try:
                    weights, _ = compute_rollout_correction_weights(ratio, mask, level, threshold, normalize)
                except ZeroDivisionError:  # one of their metrics divides by the weights, here all zero
                    continue
                out[f"{name}_{level}{suffix}"] = weights
    thresholds = {"k1": "0.5_1.6", "k2": "0.3", "k3": "0.25"}
    for level in ("token", "seq_sum", "seq_mean", "seq_max"):
        for statistic, threshold in thresholds.items():
            if level == "seq_max" and statistic == "k1":
                continue
            kept, _ = compute_rollout_rejection_mask(ratio, mask, f"{level}_{statistic}", threshold)
            out[f"rejection_{level}_{statistic}"] = kept.double()
    if not is_extreme(number):
        metrics = compute_offpolicy_metrics(batch["prox_logp"], batch["behav_logp"], mask)
        for name in ("kl", "k3_kl", "chi2_token", "chi2_seq"):
            out[f"metric_{name}"] = torch.tensor(metrics[name], dtype=torch.float64)
    return out


def verl_controllers(number: int, batch: Arrays) -> Arrays:
    """The weight after each of the measured values in the first row of ``values``: 0.2, target 0.5, horizon 1000, 64 samples."""
    from verl.trainer.ppo.core_algos import AdaptiveKLController

    controller, weights = AdaptiveKLController(0.2, 0.5, 1000), []
    for measured in batch["values"][0].tolist():
        controller.update(measured, 64)
        weights.append(float(controller.value))
    return {"adaptive": torch.tensor(weights, dtype=torch.float64)}


# ------------------------------------------------------------------------------------------------- TRL


def cut_out(function: Callable[..., Any], first: str, last: str) -> Any:
    """Compiles the statements of a method from the one that starts with ``first`` to the one that starts with ``last``."""
    body = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body  # type: ignore[attr-defined]
    lines = [ast.unparse(statement) for statement in body]
    start = next(i for i, line in enumerate(lines) if line.startswith(first))
    stop = next(i for i, line in enumerate(lines) if i >= start and line.startswith(last))
    return compile("\n".join(lines[start : stop + 1]), inspect.getsourcefile(function) or "trl", "exec")


def trl_advantages(number: int, batch: Arrays) -> Arrays:
    """TRL's group advantages, which are statements in the middle of a method: they are cut out of it and run as they are.

    Groups there are of one size and in order, so the batch's rewards are repeated to 3 groups of 4, one of them NaN.
    """
    import trl.trainer.grpo_trainer as grpo
    import trl.trainer.rloo_trainer as rloo

    rewards = batch["rewards"].repeat(12)[:12].clone()
    rewards[1], rewards[5] = 0.125, math.nan
    out: Arrays = {"rewards": rewards}

    def run(code: Any, module: Any, **settings: Any) -> Tensor:
        names = {
            **vars(module),
            "self": SimpleNamespace(
                multi_objective_aggregation="sum_then_normalize", reward_weights=torch.ones(1).double(), **settings
            ),
            "rewards_per_func": rewards[:, None].clone(),
            "unscorable_mask": rewards.isnan(),
            "num_generations": 4,
            "device": "cpu",
        }
        exec(code, names)
        return names["advantages"]

    code = cut_out(
        grpo.GRPOTrainer._generate_and_score_completions, "if self.multi_objective", "advantages = torch.nan_to_num"
    )
    for scale in ("group", "batch", "none"):
        out[f"grpo_{scale}"] = run(code, grpo, scale_rewards=scale)
    code = cut_out(rloo.RLOOTrainer._generate_and_score_completions, "rewards = (", "advantages = torch.nan_to_num")
    out["rloo"] = run(code, rloo, normalize_advantages=False, reward_clip_range=None, beta=0.0)
    return out


TRL_LOSSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # name: (their loss_type, their importance_sampling_level, more attributes)
    "grpo": ("grpo", "token", {}),
    "bnpo": ("bnpo", "token", {}),
    "dapo": ("dapo", "token", {}),
    "dr_grpo": ("dr_grpo", "token", {}),
    "gspo": ("grpo", "sequence", {}),
    "two_sided": ("grpo", "token", {"delta": 2.0}),
    "with_kl": ("dapo", "token", {"beta": 0.1}),
    "cispo": ("cispo", "token", {"epsilon_high": 1.5}),
    "sapo": ("sapo", "token", {}),
}


def trl_losses(number: int, batch: Arrays) -> Arrays:
    """``GRPOTrainer._compute_loss`` on given log-probs: value and gradient. Not on extreme batches or empty rows."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    if is_extreme(number) or not bool(batch["mask"].any(-1).all()):
        return {}
    out: Arrays = {}
    for name, (loss_type, level, more) in TRL_LOSSES.items():
        logp = batch["logp"].clone().requires_grad_()
        fake = _fake_trainer(logp, loss_type, level, more)
        mask = batch["mask"].long()
        inputs = {
            "prompt_ids": mask[:, :1],
            "prompt_mask": mask[:, :1],
            "completion_ids": mask,
            "completion_mask": mask,
            "advantages": batch["advantages"][:, 0],
            "old_per_token_logps": batch["prox_logp"],
            "ref_per_token_logps": batch["ref_logp"],
            "num_items_in_batch": mask.sum(),
        }
        loss = GRPOTrainer._compute_loss(fake, None, inputs)
        loss.backward()
        out[name], out[f"{name}_grad"] = loss.detach(), logp.grad
    return out


def _fake_trainer(logp: Tensor, loss_type: str, level: str, more: dict[str, Any]) -> Any:
    args = SimpleNamespace(
        delta=more.get("delta"),
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        use_bias_correction_kl=False,
        steps_per_generation=1,
    )
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, gather_for_metrics=lambda x: x
    )
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        args=args,
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_low=0.2,
        epsilon_high=more.get("epsilon_high", 0.28),
        beta=more.get("beta", 0.0),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=11,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )


# -------------------------------------------------------------------------------------------- storing


SUITES: dict[str, Callable[[int, Arrays], Arrays]] = {
    "verl_advantages": verl_advantages,
    "verl_losses": verl_losses,
    "verl_aggregations": verl_aggregations,
    "verl_values": verl_values,
    "verl_kls": verl_kls,
    "verl_corrections": verl_corrections,
    "verl_controllers": verl_controllers,
    "trl_advantages": trl_advantages,
    "trl_losses": trl_losses,
}


def store(path: Path, records: dict[int, Arrays], masks: dict[int, Tensor]) -> None:
    """Joins the arrays of all batches by name: flat values, and for each batch its number and shape."""
    joined: dict[str, np.ndarray] = {}
    for name in sorted({key for record in records.values() for key in record}):
        numbers = [number for number, record in records.items() if name in record]
        values = [records[number][name] for number in numbers]
        if path.stem != "inputs":
            values = [v[masks[n]] if v.shape == masks[n].shape else v for n, v in zip(numbers, values, strict=True)]
        flat = torch.cat([value.flatten() for value in values]).numpy()
        joined[f"{name}|values"] = flat
        joined[f"{name}|numbers"] = np.array(numbers, dtype=np.int16)
        joined[f"{name}|shapes"] = np.array([[*v.shape, -1, -1][:2] for v in values], dtype=np.int16)
    np.savez_compressed(path, **joined)
    print(f"{path.name}: {len(joined) // 3} arrays of {len(records)} batches, {path.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    """Writes ``inputs.npz`` and one file for each suite."""
    batches = {number: random_batch(number) for number in range(NUM_BATCHES)}
    masks = {number: batch["mask"] for number, batch in batches.items()}
    store(HERE / "inputs.npz", batches, masks)
    for name, suite in SUITES.items():
        store(
            HERE / f"{name}.npz", {n: suite(n, {k: v.clone() for k, v in b.items()}) for n, b in batches.items()}, masks
        )


if __name__ == "__main__":
    main()
