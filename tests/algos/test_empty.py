"""A batch without rows, or of rows without tokens, goes through every part and gives nothing, or 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algos.registries import ADVANTAGES, AGGREGATIONS, CORRECTIONS, COUNTS
from rlvlm.algos.results import AdvantageEstimate, Correction, TokenLoss
from rlvlm.registry import Part
from tests.algos.drawn import counted, draw
from tests.algos.test_shapes import PARTS


def empty(rows: int, length: int) -> dict[str, Any]:
    fields = draw(dtype=torch.float32)

    def cut(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: scores[:rows] for key, scores in value.items()}
        if not isinstance(value, Tensor) or name == "greedy_rewards":
            return value
        return value[:rows, :length] if value.dim() == 2 else value[:rows]

    return counted({name: cut(name, value) for name, value in fields.items() if name not in COUNTS})


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, TokenLoss):
        return [result.loss, *result.metrics.values()]
    if isinstance(result, Correction):
        return [result.weights, result.mask, *result.metrics.values()]
    return list(result) if isinstance(result, AdvantageEstimate) else [result]


OTHERWISE = [
    ADVANTAGES.build({"name": "grpo", "mean": "batch", "std": "batch", "leave_one_out": True, "whiten_tokens": True}),
    ADVANTAGES.build({"name": "reinforce_plus_plus", "masked": "reset"}),
    ADVANTAGES.build({"name": "gae", "whiten_tokens": False}),
    CORRECTIONS.build({"name": "tis", "level": "sequence", "normalize": True}),
    CORRECTIONS.build({"name": "rejection", "statistic": "k2", "level": "max"}),
]


@pytest.mark.parametrize(("rows", "length"), [(0, 9), (6, 0), (0, 0)])
@pytest.mark.parametrize("part", [*PARTS, *OTHERWISE], ids=lambda part: f"{part.entry.kind} {part.name}")
def test_a_part_gives_as_many_rows_and_tokens_as_there_are(part: Part, rows: int, length: int) -> None:
    fields = empty(rows, length)
    fields["logp"] = fields["logp"].clone().requires_grad_()
    found = tensors(part(fields))
    if part.entry.kind in ("advantage", "policy loss", "value loss", "regularizer", "correction"):
        assert found[0].shape == (rows, length)
    if part.entry.kind == "filter":
        assert found[0].shape == (rows,)
    assert all(value.isfinite().all() for value in found)


@pytest.mark.parametrize(("rows", "length"), [(0, 9), (6, 0), (0, 0)])
@pytest.mark.parametrize("name", [entry.name for entry in AGGREGATIONS.own_entries()])
def test_there_is_no_loss_without_tokens(name: str, rows: int, length: int) -> None:
    fields = empty(rows, length)
    token_loss = fields["token_loss"].clone().requires_grad_()
    node = {"name": name, "length": 9.0} if name == "seq-mean-token-sum-norm" else name
    loss = AGGREGATIONS.build(node)({**fields, "token_loss": token_loss})
    loss.backward()
    assert float(loss.detach()) == 0
    assert token_loss.grad is not None
    assert token_loss.grad.shape == (rows, length)
