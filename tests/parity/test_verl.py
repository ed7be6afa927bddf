"""Ours against verl 0.9.1, whose functions run on a CPU: what they gave is stored by ``make_fixtures.py``.

``gdpo`` and ``grpo_vectorized`` there compute in float32 whatever their input, so they are compared to 1e-5; the latter also
gives a group with the equal rewards 0.7 the advantage 0.012 (ours: 0), so rows of such groups are left out for it. Their
whitening divides by ``N + 1e-8`` and then by ``sqrt(1e-8)`` where all tokens are equal: up to 5e-5 in place of our 0.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algos.correction import mismatch
from rlvlm.algos.registries import (
    ADVANTAGES,
    AGGREGATIONS,
    CONTROLLERS,
    CORRECTIONS,
    KL_ESTIMATORS,
    POLICY_LOSSES,
    VALUE_LOSSES,
)
from tests.parity.fixtures import assert_equal, cases, names, read

RAW = {"singleton": "reward"}

ADVANTAGE_NODES: dict[str, dict[str, Any]] = {
    "gae": {"name": "gae", "gamma": 0.97, "lam": 0.9},
    "gae_plain": {"name": "gae"},
    "grpo": {"name": "grpo", **RAW},
    "grpo_no_std": {"name": "grpo", "std": "none", **RAW},
    "grpo_vectorized": {"name": "grpo", **RAW},
    "rloo": {"name": "rloo", **RAW},
    "rloo_vectorized": {"name": "rloo"},
    "opo": {"name": "opo", **RAW},
    "gpg": {"name": "gpg", "scale": "nonzero", **RAW},
    "grpo_passk": {"name": "grpo_passk"},
    "grpo_passk_no_std": {"name": "grpo_passk", "divide": False},
    "reinforce_plus_plus": {"name": "reinforce_plus_plus", "gamma": 0.95},
    "reinforce_plus_plus_baseline": {"name": "reinforce_plus_plus_baseline", "equal_groups": "whitened", **RAW},
    "remax": {"name": "remax"},
    "gdpo": {"name": "gdpo", "weights": {"a": 1.0, "b": 0.5}, "equal_groups": "whitened", **RAW},
}


def advantage_inputs(batch: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "rewards": batch["rewards"],
        "token_rewards": batch["token_rewards"],
        "values": batch["values"],
        "group_ids": batch["groups"],
        "loss_mask": batch["mask"],
        "greedy_rewards": batch["greedy"][torch.arange(int(batch["groups"].max()) + 1) % len(batch["greedy"])],
        "scores_by_rule": {"a": batch["rewards"], "b": batch["rewards2"]},
    }


def in_equal_group(batch: dict[str, Tensor]) -> Tensor:
    """True [B] for rows whose group's rewards are all the same."""
    same_group = batch["groups"][:, None] == batch["groups"]
    return (~same_group | (batch["rewards"][:, None] == batch["rewards"])).all(-1)


@pytest.mark.parametrize("name", ADVANTAGE_NODES)
def test_advantages_equal_verl(name: str) -> None:
    part = ADVANTAGES.build(ADVANTAGE_NODES[name])
    returns = read("verl_advantages", f"{name}_returns") if f"{name}_returns" in names("verl_advantages") else {}
    count = 0
    for number, batch, expected in cases("verl_advantages", name):
        mask = batch["mask"]
        result = part(advantage_inputs(batch))
        advantages = result.advantages if isinstance(result, tuple) else result
        assert not advantages[~mask].any()
        if name == "grpo_vectorized":
            kept = (~in_equal_group(batch))[:, None].expand_as(mask)[mask]
            assert_equal(advantages[mask][kept], expected[kept], number, 1e-5)
        elif not advantages.any():
            assert expected.abs().max() < 5e-5
        else:
            assert_equal(advantages[mask], expected, number, 1e-5 if name == "gdpo" else 1e-6)
        if number in returns:
            assert_equal(result.returns[mask], returns[number], number)
        count += 1
    assert count >= 30


LOSS_NODES: dict[str, dict[str, Any]] = {
    "ppo_clip": {"name": "ppo_clip", "clip_high": 0.28, "dual_clip": 3.0},
    "dppo_tv": {"name": "dppo_tv", "threshold_low": 0.1, "threshold_high": 0.15},
    "dppo_kl": {"name": "dppo_kl", "threshold_low": 0.05, "threshold_high": 0.08},
    "gspo": {"name": "gspo", "clip_low": 0.1, "clip_high": 0.2, "form": "token"},
    "sapo": {"name": "sapo"},
    "gpg": {"name": "gpg"},
    "clip_cov": {"name": "clip_cov", "share": 0.1, "low": 0.05},
    "kl_cov": {"name": "kl_cov", "share": 0.15, "coefficient": 0.7},
    "geo_mean": {"name": "geo_mean"},
    "cispo": {"name": "cispo", "clip_low": 0.3, "clip_high": 0.2},
    "reinforce": {"name": "reinforce"},
}
PER_SEQUENCE = ("gspo", "sapo", "geo_mean")


def loss_and_gradient(
    node: dict[str, Any], aggregation: str, batch: dict[str, Tensor], weights: Tensor | None, number: int = 0
) -> tuple[Tensor, Tensor]:
    logp, mask = batch["logp"].clone().requires_grad_(), batch["mask"]
    given = {
        "logp": logp,
        "prox_logp": batch["prox_logp"],
        "advantages": batch["advantages"],
        "loss_mask": mask,
        "generator": torch.Generator().manual_seed(number),
    }
    token_loss = POLICY_LOSSES.build(node)(given).loss
    token_loss = token_loss if weights is None else token_loss * weights
    counts = {"num_tokens": float(mask.sum()), "num_sequences": float(mask.any(-1).sum())}
    loss = AGGREGATIONS.build(aggregation)({"token_loss": token_loss, "loss_mask": mask, **counts})
    loss.backward()
    assert logp.grad is not None
    assert not logp.grad[~mask].any()
    return loss.detach(), logp.grad[mask]


@pytest.mark.parametrize("stored", [name for name in names("verl_losses") if not name.endswith("_grad")])
def test_policy_losses_equal_verl_in_value_and_gradient(stored: str) -> None:
    """Those stored as ``_weighted`` were given importance weights, as ``reinforce`` always is."""
    name = stored.removesuffix("_weighted")
    weighted = stored.endswith("_weighted") or name == "reinforce"
    gradients = read("verl_losses", f"{stored}_grad")
    for number, batch, expected in cases("verl_losses", stored):
        weights = batch["weights"] if weighted else None
        aggregation = "seq-mean-token-mean" if name in PER_SEQUENCE else "token-mean"
        loss, gradient = loss_and_gradient(LOSS_NODES[name], aggregation, batch, weights, number)
        if name == "geo_mean":  # theirs divides by all rows, fully masked ones included
            share = float(batch["mask"].any(-1).float().mean())
            loss, gradient = loss * share, gradient * share
        assert_equal(loss, expected, number)
        assert_equal(gradient, gradients[number], number)


@pytest.mark.parametrize("name", names("verl_aggregations"))
def test_aggregations_equal_verl(name: str) -> None:
    node = {"name": name, "length": 7} if name.endswith("norm") else name
    part = AGGREGATIONS.build(node)
    for number, batch, expected in cases("verl_aggregations", name):
        mask = batch["mask"]
        counts = {"num_tokens": float(mask.sum()), "num_sequences": float(mask.any(-1).sum())}
        assert_equal(part({"token_loss": batch["values"], "loss_mask": mask, **counts}), expected, number)


def test_the_clipped_value_loss_equals_verl_in_value_gradient_and_share() -> None:
    part = VALUE_LOSSES.build("clipped")
    gradients, shares = read("verl_values", "clipped_grad"), read("verl_values", "clipped_share")
    for number, batch, expected in cases("verl_values", "clipped"):
        mask, preds = batch["mask"], batch["value_preds"].clone().requires_grad_()
        term = part({"value_preds": preds, "values": batch["values"], "returns": batch["token_rewards"]})
        loss = term.loss[mask].mean()
        loss.backward()
        assert preds.grad is not None
        assert_equal(loss.detach(), expected, number)
        assert_equal(preds.grad[mask], gradients[number], number)
        assert_equal(term.metrics["mean/value_clip_fraction"][mask].double().mean(), shares[number], number)


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"])
def test_kl_estimators_equal_verl_in_value_and_gradient(name: str) -> None:
    part = KL_ESTIMATORS.build({"name": name, "max_value": 10.0} if name.startswith("k3") else name)
    gradients = read("verl_kls", f"{name}_grad")
    for number, batch, expected in cases("verl_kls", name):
        logp = batch["logp"].clone().requires_grad_()
        value = part({"logp": logp, "ref_logp": batch["ref_logp"]})
        value.sum().backward()
        assert logp.grad is not None
        assert_equal(value.detach()[batch["mask"]], expected, number)
        assert_equal(logp.grad[batch["mask"]], gradients[number], number)


def correction_node(name: str) -> dict[str, Any]:
    """Our node for a stored name such as ``icepop_sequence_normalized`` or ``rejection_seq_mean_k1``."""
    kind, *rest = name.split("_")
    if kind == "rejection":
        *level, statistic = rest
        high = {"k1": 1.6, "k2": 0.3, "k3": 0.25}[statistic]
        node = {"name": kind, "level": level[-1], "statistic": statistic, "high": high}
        return {**node, "low": 0.5, "k1_ratio": "engine/trainer"} if statistic == "k1" else node
    bounds = {"cap": 1.5} if kind == "tis" else {"low": 0.4, "high": 2.5}
    return {"name": kind, "level": rest[0], "normalize": "normalized" in rest, **bounds}


@pytest.mark.parametrize("name", [name for name in names("verl_corrections") if not name.startswith("metric")])
def test_corrections_equal_verl(name: str) -> None:
    part = CORRECTIONS.build(correction_node(name))
    for number, batch, expected in cases("verl_corrections", name):
        mask = batch["mask"]
        given = {"prox_logp": batch["prox_logp"], "behav_logp": batch["behav_logp"], "loss_mask": mask}
        correction = part(given)
        ours = correction.mask if name.startswith("rejection") else correction.weights
        assert_equal(ours[mask], expected, number)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("kl", "kl"), ("k3_kl", "k3"), ("chi2_token", "chi_square"), ("chi2_seq", "chi_square_sequence")],
)
def test_mismatch_metrics_equal_verl(theirs: str, ours: str) -> None:
    """Batches with an empty row are left out of the sequence metric: theirs counts it as a sequence of ratio 1."""
    for number, batch, expected in cases("verl_corrections", f"metric_{theirs}"):
        if theirs == "chi2_seq" and not bool(batch["mask"].any(-1).all()):
            continue
        metrics = mismatch(batch["prox_logp"], batch["behav_logp"], batch["mask"])
        assert_equal(metrics[f"mean/correction/{ours}"], expected, number)


def test_the_adaptive_controller_equals_verl() -> None:
    part = CONTROLLERS.build({"name": "adaptive", "target": 0.5, "horizon": 1000})
    for number, batch, expected in cases("verl_controllers", "adaptive"):
        weight, weights = 0.2, []
        for measured in batch["values"][0].tolist():
            weight = part({"weight": weight, "measured": measured, "num_samples": 64})
            weights.append(weight)
        assert_equal(torch.tensor(weights, dtype=torch.float64), expected, number, 1e-12)
