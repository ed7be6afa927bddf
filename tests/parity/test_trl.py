"""Ours against TRL 1.16.0: what its trainer's methods gave on a CPU is stored by ``make_fixtures.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlvlm.algos.registries import ADVANTAGES, AGGREGATIONS, KL_ESTIMATORS, POLICY_LOSSES
from tests.parity.fixtures import assert_equal, inputs, read

ADVANTAGE_NODES: dict[str, Any] = {
    "grpo_group": {"name": "grpo", "eps": 1e-4},
    "grpo_batch": {"name": "grpo", "std": "batch", "eps": 1e-4},
    "grpo_none": {"name": "grpo", "std": "none"},
    "rloo": "rloo",
}


@pytest.mark.parametrize("name", ADVANTAGE_NODES)
def test_advantages_equal_trl_with_unscorable_samples(name: str) -> None:
    part = ADVANTAGES.build(ADVANTAGE_NODES[name])
    group_ids = torch.arange(12) // 4
    rewards = read("trl_advantages", "rewards")
    for number, expected in read("trl_advantages", name).items():
        given = {"rewards": rewards[number], "group_ids": group_ids, "loss_mask": torch.ones(12, 1, dtype=torch.bool)}
        assert_equal(part(given)[:, 0], expected, number)


CLIP = {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}
LOSS_NODES: dict[str, tuple[dict[str, Any], Any]] = {
    "grpo": (CLIP, "seq-mean-token-mean"),
    "bnpo": (CLIP, "token-mean"),
    "dapo": (CLIP, "token-mean"),
    "dr_grpo": (CLIP, {"name": "seq-mean-token-sum-norm", "length": 11}),
    "gspo": ({"name": "gspo", "clip_low": 0.2, "clip_high": 0.28}, "seq-mean-token-mean"),
    "two_sided": ({**CLIP, "dual_clip": 2.0}, "seq-mean-token-mean"),
    "with_kl": (CLIP, "token-mean"),
    "cispo": ({"name": "cispo", "clip_low": 1.0, "clip_high": 0.5}, "token-mean"),
    "sapo": ({"name": "sapo"}, "seq-mean-token-mean"),
}


@pytest.mark.parametrize("name", LOSS_NODES)
def test_losses_equal_trl_in_value_and_gradient(name: str) -> None:
    node, aggregation = LOSS_NODES[name]
    loss_part, aggregate, k3 = POLICY_LOSSES.build(node), AGGREGATIONS.build(aggregation), KL_ESTIMATORS.build("k3")
    gradients = read("trl_losses", f"{name}_grad")
    for number, expected in read("trl_losses", name).items():
        batch = inputs(number)
        mask, logp = batch["mask"], batch["logp"].clone().requires_grad_()
        advantages = batch["advantages"][:, :1].expand_as(mask)
        given = {"logp": logp, "prox_logp": batch["prox_logp"], "advantages": advantages, "loss_mask": mask}
        token_loss = loss_part(given).loss
        if name == "with_kl":
            token_loss = token_loss + 0.1 * k3({"logp": logp, "ref_logp": batch["ref_logp"]})
        counts = {"num_tokens": float(mask.sum()), "num_sequences": float(len(mask))}
        loss = aggregate({"token_loss": token_loss, "loss_mask": mask, **counts})
        loss.backward()
        assert logp.grad is not None
        assert_equal(loss.detach(), expected, number)
        assert_equal(logp.grad[mask], gradients[number], number)
