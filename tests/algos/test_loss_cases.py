"""Faults that were reported of other libraries, one case each: ``tests/cases/loss.jsonl``.

A case gives inputs, what must come out, and where it was reported. ``null`` in an input stands for NaN, in an expected
value for "anything".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos import ADVANTAGES, AGGREGATIONS, FILTERS, KL_ESTIMATORS, POLICY_LOSSES
from rlvlm.batch import Batch
from rlvlm.engines.inference.stopping import StopTable
from rlvlm.models.families.base import SpanTable, segment_offsets
from rlvlm.models.families.mrope import mrope_positions
from rlvlm.models.head import token_logp

CASES = [json.loads(line) for line in (Path(__file__).parent.parent / "cases/loss.jsonl").read_text().splitlines()]
Case = dict[str, Any]


def numbers(values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor in which ``null`` is NaN."""

    def plain(value: Any) -> Any:
        return [plain(item) for item in value] if isinstance(value, list) else math.nan if value is None else value

    return torch.tensor(plain(values), dtype=dtype)


def close(got: Tensor, expected: Any, case: Case) -> None:
    """Equal to the case's tolerance wherever it expects a number."""
    wanted = numbers(expected)
    assert got.shape == wanted.shape
    anything = wanted.isnan()
    torch.testing.assert_close(
        got.double().masked_fill(anything, 0),
        wanted.masked_fill(anything, 0),
        rtol=1e-9,
        atol=case["tolerance"] or 1e-12,
    )


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


def accumulated_loss(x: Case, expected: Case, case: Case) -> None:
    pieces = [piece["token_losses"] for piece in x["micro_batches"]]
    counts = counts_of([row for rows in pieces for row in rows])
    shares = [aggregated(x["mode"], rows, counts) for rows in pieces]
    close(torch.stack([share for share, _ in shares]).sum(), expected["effective_loss"], case)
    for _, gradient in shares:
        close(gradient[0, 0], expected["weight_of_every_token"], case)


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


def completion_logprobs(x: Case, expected: Case, case: Case) -> None:
    """Entry t of log-probs speaks of token t: its state is the one before it."""
    logits, ids, start = numbers(x["logits"], torch.float32), torch.tensor(x["input_ids"]), x["prompt_len"]
    targets = torch.arange(start, len(ids))
    logp, _ = token_logp(logits[targets - 1], torch.eye(logits.shape[1]), ids[targets])
    close(logp, expected["logprobs"], {"tolerance": 1e-6})


def shift_mask_to_targets(x: Case, expected: Case, case: Case) -> None:
    """``loss_mask`` stands on the axis of ``input_ids``, so the mask of the targets is its tail."""
    mask = torch.tensor([x["token_mask"]]).bool()
    batch = Batch({"input_ids": torch.arange(mask.shape[1])[None], "loss_mask": mask})
    targets = batch["input_ids"][:, 1:]
    assert batch["loss_mask"][:, 1:].int().tolist() == [expected["target_mask"]]
    assert targets[batch["loss_mask"][:, 1:]].tolist() == batch["input_ids"][mask].tolist()


def completion_mask(x: Case, expected: Case, case: Case) -> None:
    """A sample ends with the first stop id that it draws, whichever id pads it afterwards."""
    ids = torch.tensor(x["completion_ids"])
    table = StopTable(None, int(ids.max()) + 1, stop_ids=x["eos_token_ids"])
    rows, open_rows = torch.arange(len(ids)), torch.ones(len(ids), dtype=torch.bool)
    mask = torch.zeros_like(ids)
    for length in range(1, ids.shape[1] + 1):
        mask[open_rows, length - 1] = 1
        open_rows = open_rows & ~table.stopped(ids, rows, length)
    assert mask.tolist() == expected["mask"]


def position_ids(x: Case, expected: Case, case: Case) -> None:
    mask = torch.tensor(x["attention_mask"]).bool()
    got = torch.full(mask.shape, -1).masked_scatter(mask, segment_offsets(mask.sum(1)))
    close(got.double(), expected["position_ids"], case)


def mrope_position_ids(x: Case, expected: Case, case: Case) -> None:
    kinds = [kind for kind, count in x["tokens"] for _ in range(count)]
    mask = torch.tensor([kind != "P" for kind in kinds])
    runs = [(kind, count) for kind, count in x["tokens"] if kind != "P"]
    starts = torch.tensor([0, *(count for _, count in runs)]).cumsum(0).tolist()
    offsets = [start for (kind, _), start in zip(runs, starts, strict=False) if kind == "I"]
    grid = torch.tensor(x["image_grid_thw"]).view(-1, 3) // torch.tensor(
        [1, x["spatial_merge_size"], x["spatial_merge_size"]]
    )
    spans = SpanTable(
        segment=torch.zeros(len(offsets), dtype=torch.int64),
        offset=torch.tensor(offsets, dtype=torch.int64),
        length=grid.prod(-1),
        media=torch.arange(len(offsets)),
        grid=grid,
    )
    positions, after = mrope_positions(mask.sum()[None], spans)
    got = torch.full((3, len(kinds)), -1)
    got[:, mask] = positions
    close(got.double(), expected["position_ids_thw"], case)
    assert after.tolist() == [expected["next_position"]]


OPERATIONS: dict[str, Callable[[Case, Case, Case], None]] = {
    function.__name__: function
    for function in (
        group_advantage,
        rloo_advantage,
        drop_zero_variance_groups,
        ppo_token_loss,
        gspo_loss,
        accumulated_loss,
        aggregate_loss,
        aggregate_loss_with_truncation,
        kl_k3_mean,
        kl_k3_grad,
        completion_logprobs,
        shift_mask_to_targets,
        completion_mask,
        position_ids,
        mrope_position_ids,
    )
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['source']}")
def test_a_fault_reported_of_another_library(case: Case) -> None:
    OPERATIONS[case["input"]["op"]](case["input"], case["expected"], case)
