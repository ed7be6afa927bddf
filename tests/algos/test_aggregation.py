from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algos.registries import AGGREGATIONS
from rlvlm.errors import ConfigError, RegistryError
from tests.algos.drawn import counted, draw, spoil, take

NODES: list[Any] = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "prompt-mean"]
NODES += [{"name": "seq-mean-token-sum-norm", "length": 16}]
NODES += [{"name": "seq-mean-token-sum-norm", "length": 16, "per_sequence": False}]
every_aggregation = pytest.mark.parametrize("node", NODES, ids=str)


def aggregate(node: Any, fields: dict[str, Any]) -> Tensor:
    return AGGREGATIONS.build(node)(fields)


def by_hand(node: Any, fields: dict[str, Any]) -> float:
    """The definition, with lists of the losses of each sequence."""
    loss, mask, ids = fields["token_loss"], fields["loss_mask"], fields["group_ids"].tolist()
    rows = [loss[row][mask[row]].tolist() for row in range(len(mask))]
    present = [row for row in rows if row]
    total = sum(map(sum, rows))
    name = node if isinstance(node, str) else node["name"]
    if name == "token-mean":
        return total / sum(map(len, rows))
    if name == "token-sum":
        return total
    if name == "seq-mean-token-sum":
        return total / len(present)
    if name == "seq-mean-token-mean":
        return sum(sum(row) / len(row) for row in present) / len(present)
    if name == "seq-mean-token-sum-norm":
        return total / 16 / (len(present) if node.get("per_sequence", True) else 1)
    prompts = {i: [x for row, j in zip(rows, ids, strict=True) if i == j for x in row] for i in ids}
    means = [sum(losses) / len(losses) for losses in prompts.values() if losses]
    return sum(means) / len(means)


@every_aggregation
@pytest.mark.parametrize("seed", range(3))
def test_each_equals_its_definition(node: Any, seed: int) -> None:
    fields = draw(seed)
    assert float(aggregate(node, fields)) == pytest.approx(by_hand(node, fields), rel=1e-12)


@every_aggregation
def test_shares_of_micro_batches_add_up_even_where_a_group_is_split(node: Any) -> None:
    fields = draw(5, rows=11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    shares = [aggregate(node, take(fields, rows)) for rows in order.split([1, 4, 2, 4])]
    assert float(torch.stack(shares).sum()) == pytest.approx(float(aggregate(node, fields)), rel=1e-12)


@every_aggregation
def test_a_fully_masked_sequence_changes_nothing(node: Any) -> None:
    fields = draw(6)
    assert not fields["loss_mask"][0].any()
    without = counted(take(fields, torch.arange(1, 6)))
    assert float(aggregate(node, fields)) == pytest.approx(float(aggregate(node, without)), rel=1e-12)


@every_aggregation
def test_nothing_to_count_is_a_loss_of_zero_with_a_gradient_of_zero(node: Any) -> None:
    fields = draw(7)
    fields["loss_mask"] = torch.zeros_like(fields["loss_mask"])
    loss = torch.full_like(fields["token_loss"], math.nan).requires_grad_()
    result = aggregate(node, counted({**fields, "token_loss": loss}))
    result.backward()
    assert result == 0
    assert loss.grad is not None
    assert not loss.grad.any()


@every_aggregation
@pytest.mark.parametrize("fill", [math.nan, math.inf])
def test_masked_places_reach_neither_value_nor_gradient(node: Any, fill: float) -> None:
    fields = draw(8)
    clean = aggregate(node, fields)
    loss = spoil(fields, fill)["token_loss"].requires_grad_()
    result = aggregate(node, {**fields, "token_loss": loss})
    result.backward()
    assert result == clean
    assert loss.grad is not None
    assert loss.grad.isfinite().all()
    assert not loss.grad[~fields["loss_mask"]].any()


def test_the_constant_length_is_named_where_it_is_missing() -> None:
    with pytest.raises(RegistryError, match="needs the option 'length'"):
        AGGREGATIONS.build("seq-mean-token-sum-norm")
    with pytest.raises(ConfigError, match="option 'length' of 'seq-mean-token-sum-norm' is above 0"):
        aggregate({"name": "seq-mean-token-sum-norm", "length": 0}, draw(0))
