"""Cases that the maths decides: advantages, losses, aggregation, KL."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos import ADVANTAGES, AGGREGATIONS, FILTERS, KL_ESTIMATORS, POLICY_LOSSES
from rlvlm.batch import Batch
from tests.engines.inference import test_loss_cases as of_sampling
from tests.loss_cases import CASES, Case, cases_of, close, numbers, table
from tests.models import test_loss_cases as of_models
from tests.roles import test_loss_cases as of_roles


def dtype_of(x: Case) -> torch.dtype:
    return torch.float32 if x.get("dtype") == "float32" else torch.float64


def group_advantage(x: Case, expected: Case, case: Case) -> None:
    node = {
        "name": "grpo",
        "eps": x["eps"],
        "unbiased": x["ddof"] == 1,
        "std": "group" if x["scale_by_std"] else "none",
    }
    rows = advantages(node, x)
    assert rows.isfinite().all()
    if "advantages" in expected:
        close(rows, expected["advantages"], case)
    else:
        assert list(rows.shape) == expected["shape"]


def rloo_advantage(x: Case, expected: Case, case: Case) -> None:
    close(advantages("rloo", x), expected["advantages"], case)


def advantages(node: Any, x: Case) -> Tensor:
    rewards = numbers(x["rewards"], dtype_of(x))
    mask = torch.ones(len(rewards), 3, dtype=torch.bool)
    given = {"rewards": rewards, "group_ids": torch.tensor(x["group_ids"]), "loss_mask": mask}
    tokens: Tensor = ADVANTAGES.build(node)(given)
    return tokens[:, 0]


def drop_zero_variance_groups(x: Case, expected: Case, case: Case) -> None:
    ids = torch.tensor(x["group_ids"])
    keep = FILTERS.build("reward_spread")({"rewards": numbers(x["rewards"]), "group_ids": ids})
    assert ids[keep].unique().tolist() == expected["keep_group_ids"]


def through_algorithm(
    node: Any, x: Case, fields: dict[str, Tensor], aggregation: str = "token-mean"
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss, gradient and metrics by the Algorithm, which is where masked places are kept out of a token's loss."""
    made = Algorithm(AlgorithmConfig(policy_loss=node, aggregation=aggregation))
    logp = numbers(x["logprobs"], torch.float32).requires_grad_()
    batch = Batch({"group_ids": torch.arange(len(logp)), "loss_mask": torch.tensor(x["mask"]).bool(), **fields})
    outputs = Outputs(logp)
    loss, metrics = made.loss(outputs, batch, made.denominators(batch))
    loss.backward()
    assert logp.grad is not None
    assert not logp.grad[~batch["loss_mask"]].any()
    return loss.detach(), logp.grad, metrics


class Outputs:
    def __init__(self, logp: Tensor) -> None:
        self.logp, self.entropy, self.value_preds = logp, None, None


def ppo_token_loss(x: Case, expected: Case, case: Case) -> None:
    fields = {
        "prox_logp": numbers(x["prox_logprobs"], torch.float32),
        "advantages": numbers(x["advantages"], torch.float32),
    }
    node = {"name": "ppo_clip", "clip_low": x["eps_low"], "clip_high": x["eps_high"]}
    if "behave_logprobs" in x:
        fields["behav_logp"] = numbers(x["behave_logprobs"], torch.float32)
        node.update(name="decoupled_clip", cap=x["behave_weight_cap"], over_cap=x["behave_weight_mode"])
    loss, gradient, _ = through_algorithm(node, x, fields)
    close(loss, expected["loss"], case)
    close(gradient, expected["grad_logprobs"], case)


def gspo_loss(x: Case, expected: Case, case: Case) -> None:
    fields = {
        "prox_logp": numbers(x["old_logprobs"], torch.float32),
        "advantages": numbers(x["sequence_advantages"], torch.float32)[:, None]
        .expand(-1, len(x["mask"][0]))
        .contiguous(),
    }
    for form in ("sequence", "token"):
        node = {"name": "gspo", "clip_low": x["eps_low"], "clip_high": x["eps_high"], "form": form}
        loss, gradient, metrics = through_algorithm(node, x, fields, "seq-mean-token-mean")
        close(loss, expected["loss"], case)
        close(gradient, expected["grad_logprobs"], case)
        assert float(metrics["max/ratio"]) == pytest.approx(max(expected["sequence_ratio"]), abs=1e-6)
    given = {"logp": numbers(x["logprobs"]), "loss_mask": torch.tensor(x["mask"]).bool()}
    given |= {name: value.double() for name, value in fields.items()}
    ratio = POLICY_LOSSES.build(node)(given).metrics["mean/ratio"]
    close(ratio[:, 0], expected["sequence_ratio"], {"tolerance": 1e-6})


def padded(rows: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Losses with NaN where a row is shorter, and the mask."""
    width = max(map(len, rows))
    return numbers([row + [None] * (width - len(row)) for row in rows]), torch.tensor(
        [[i < len(row) for i in range(width)] for row in rows]
    )


def aggregated(node: Any, rows: list[list[float]], counts: dict[str, float]) -> tuple[Tensor, Tensor]:
    losses, mask = padded(rows)
    losses.requires_grad_()
    total = AGGREGATIONS.build(node)({"token_loss": losses, "loss_mask": mask, **counts})
    total.backward()
    assert losses.grad is not None
    return total.detach(), losses.grad


def counts_of(rows: list[list[float]]) -> dict[str, float]:
    return {"num_tokens": float(sum(map(len, rows))), "num_sequences": float(len(rows))}


def aggregate_loss(x: Case, expected: Case, case: Case) -> None:
    constant = {"name": "seq-mean-token-sum-norm", "length": x["constant"]}
    node = constant if x["mode"] == "constant-norm" else x["mode"]
    total, gradient = aggregated(node, x["token_losses"], counts_of(x["token_losses"]))
    close(total, expected["loss"], case)
    close(gradient[:, 0], expected["token_weight_per_sequence"], case)


def aggregate_loss_with_truncation(x: Case, expected: Case, case: Case) -> None:
    losses, mask = padded(x["token_losses"])
    made = Algorithm(AlgorithmConfig(policy_loss="reinforce", mask_truncated=x["mask_truncated"]))
    batch = Batch(
        {
            "group_ids": torch.zeros(len(mask), dtype=torch.int64),
            "loss_mask": mask,
            "truncated": torch.tensor(x["truncated"]),
            "advantages": losses.float().nan_to_num(),
        }
    )
    loss, _ = made.loss(Outputs(-torch.ones(mask.shape)), batch, made.denominators(batch))
    close(loss, expected["loss"], case)


def kl_k3_mean(x: Case, expected: Case, case: Case) -> None:
    mask = torch.tensor(x["mask"]).bool()
    logp, ref_logp = (numbers(x[name]).masked_fill(~mask, 0) for name in ("logprobs", "ref_logprobs"))
    estimate = KL_ESTIMATORS.build("k3")({"logp": logp, "ref_logp": ref_logp})
    if "per_token" in expected:
        close(estimate, expected["per_token"], case)
    made = Algorithm(AlgorithmConfig(policy_loss="reinforce", regularizers={"kl_to_reference": 1.0}))
    fields = {"ref_logp": numbers(x["ref_logprobs"], torch.float32), "advantages": torch.zeros(mask.shape)}
    batch = Batch({"group_ids": torch.zeros(len(mask), dtype=torch.int64), "loss_mask": mask, **fields})
    outputs = Outputs(numbers(x["logprobs"], torch.float32).requires_grad_())
    loss, metrics = made.loss(outputs, batch, made.denominators(batch))
    loss.backward()
    assert outputs.logp.grad is not None
    assert outputs.logp.grad.isfinite().all()
    close(loss.detach(), expected["mean"], case)
    close(metrics["mean/kl_to_reference"], expected["mean"], case)


def kl_k3_grad(x: Case, expected: Case, case: Case) -> None:
    logp = numbers(x["logprobs"]).requires_grad_()
    KL_ESTIMATORS.build("k3")({"logp": logp, "ref_logp": numbers(x["ref_logprobs"])}).mean().backward()
    assert logp.grad is not None
    close(logp.grad, expected["grad_logprobs"], case)


OPERATIONS = table(
    group_advantage,
    rloo_advantage,
    drop_zero_variance_groups,
    ppo_token_loss,
    gspo_loss,
    aggregate_loss,
    aggregate_loss_with_truncation,
    kl_k3_mean,
    kl_k3_grad,
)


@cases_of(OPERATIONS)
def test_a_fault_reported_of_another_library(case: Case) -> None:
    OPERATIONS[case["input"]["op"]](case["input"], case["expected"], case)


def test_every_case_is_tested_once() -> None:
    """By one of the folders that share the cases."""
    modules = (OPERATIONS, of_sampling.OPERATIONS, of_models.OPERATIONS, of_roles.OPERATIONS)
    tested = Counter(name for operations in modules for name in operations)
    assert set(tested.values()) == {1}
    assert {case["input"]["op"] for case in CASES} == tested.keys()
