"""What must not matter: the order of rows, padding, what stands in masked places, and how a mini-batch is split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlvlm.algos.registries import ADVANTAGES, AGGREGATIONS, CORRECTIONS, FILTERS, POLICY_LOSSES
from tests.algos.drawn import draw, spoil, take, widen

quick = settings(max_examples=8, deadline=None, derandomize=True)
seeds, fills = st.integers(0, 10_000), st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e30])

ADVANTAGE_NODES: list[Any] = [{"name": "gae", "gamma": 0.97, "lam": 0.9}, "grpo", {"name": "grpo", "std": "batch"}]
ADVANTAGE_NODES += [{"name": "grpo", "mean": "batch", "leave_one_out": True, "whiten_tokens": True}, "grpo_passk"]
ADVANTAGE_NODES += [
    "rloo",
    "remax",
    "opo",
    "gpg",
    "reinforce_plus_plus",
    {"name": "reinforce_plus_plus", "masked": "reset"},
]
ADVANTAGE_NODES += ["reinforce_plus_plus_baseline", "gdpo"]
ADVANTAGE_NODES += [{"name": "grpo", "whiten_tokens": True, "equal_groups": choice} for choice in ("zero", "whitened")]
LOSS_NODES: list[Any] = ["ppo_clip", "decoupled_clip", "gspo", {"name": "gspo", "form": "token"}, "gpg", "reinforce"]
LOSS_NODES += ["geo_mean", "cispo", "sapo", "dppo_tv", "dppo_kl", {"name": "kl_cov", "share": 0.2}]
LOSS_NODES += [{"name": "clip_cov", "share": 0.2, "low": 0.0}]
AGGREGATION_NODES: list[Any] = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "prompt-mean"]
AGGREGATION_NODES += [{"name": "seq-mean-token-sum-norm", "length": 20}]
CORRECTION_NODES: list[Any] = ["tis", {"name": "icepop", "level": "sequence"}, "ratio_mask", "rejection"]
CORRECTION_NODES += [{"name": "rejection", "statistic": "ratio", "level": "max", "high": 1.5, "low": 0.7}]
CORRECTION_NODES += [{"name": "areal_rejection", "level": "sequence", "agg": "max", "upper": 1.5}]
CORRECTION_NODES += [{"name": "areal_rejection", "action": "clamp", "upper": 1.5, "lower": 0.7}]
FILTER_NODES: list[Any] = ["reward_spread", {"name": "mean_window", "of": "exact"}, {"name": "length", "shortest": 3.0}]

every = pytest.mark.parametrize


def advantages(node: Any, fields: dict[str, Any]) -> Tensor:
    result = ADVANTAGES.build(node)(fields)
    return result.advantages if isinstance(result, tuple) else result


def loss_and_gradient(node: Any, aggregation: Any, fields: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The aggregated loss and its gradient; the draws of the generator start anew."""
    logp = fields["logp"].clone().requires_grad_()
    fresh = {**fields, "logp": logp, "generator": torch.Generator().manual_seed(1)}
    token_loss = POLICY_LOSSES.build(node)(fresh).loss
    loss = AGGREGATIONS.build(aggregation)({**fresh, "token_loss": token_loss})
    loss.backward()
    assert logp.grad is not None
    return loss.detach(), logp.grad


def assert_same(ours: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-10)


@every("node", ADVANTAGE_NODES, ids=str)
@quick
@given(seed=seeds)
def test_advantages_follow_the_rows_in_any_order(node: Any, seed: int) -> None:
    fields = draw(seed, rows=9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    assert_same(advantages(node, take(fields, order)), advantages(node, fields)[order])


@every("node", ADVANTAGE_NODES, ids=str)
@quick
@given(seed=seeds, columns=st.integers(1, 70), fill=fills)
def test_advantages_do_not_see_padding(node: Any, seed: int, columns: int, fill: float) -> None:
    fields = draw(seed)
    wide = advantages(node, widen(fields, columns, fill))
    assert_same(wide[:, :9], advantages(node, fields))
    assert not wide[:, 9:].any()


@every("node", ADVANTAGE_NODES, ids=str)
@quick
@given(seed=seeds, fill=fills)
def test_advantages_do_not_see_masked_places(node: Any, seed: int, fill: float) -> None:
    fields = draw(seed)
    assert_same(advantages(node, spoil(fields, fill)), advantages(node, fields))


@every("node", ["grpo", {"name": "grpo", "std": "none"}, "rloo"], ids=str)
@quick
@given(seed=seeds)
def test_group_advantages_sum_to_zero(node: Any, seed: int) -> None:
    fields = draw(seed, rows=12)
    fields["loss_mask"] = torch.ones_like(fields["loss_mask"])
    rows = advantages(node, fields)[:, 0]
    for name in fields["group_ids"].unique():
        assert abs(float(rows[fields["group_ids"] == name].sum())) < 1e-9


@every("node", ["grpo", "rloo", "opo", "gpg", "grpo_passk", "reinforce_plus_plus_baseline"])
@quick
@given(seed=seeds, value=st.floats(-1e6, 1e6, width=32), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_groups_of_equal_rewards_get_exactly_zero(node: str, seed: int, value: float, dtype: torch.dtype) -> None:
    fields = draw(seed, rows=10, dtype=dtype)
    equal = fields["group_ids"] == fields["group_ids"][0]
    fields["rewards"][equal] = value
    assert not advantages(node, fields)[equal].any()


@every("aggregation", AGGREGATION_NODES, ids=str)
@every("node", LOSS_NODES, ids=str)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(seed=seeds, columns=st.integers(1, 30))
def test_losses_see_neither_order_nor_padding_nor_masked_places(
    node: Any, aggregation: Any, seed: int, columns: int
) -> None:
    fields = draw(seed, rows=7)
    loss, gradient = loss_and_gradient(node, aggregation, fields)
    wide_loss, wide_gradient = loss_and_gradient(node, aggregation, widen(fields, columns, 0.0))
    assert_same(wide_loss, loss)
    assert_same(wide_gradient[:, :9], gradient)
    if "clip_cov" not in str(node):  # its draw goes by the order of rows
        order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
        moved_loss, moved_gradient = loss_and_gradient(node, aggregation, take(fields, order))
        assert_same(moved_loss, loss)
        assert_same(moved_gradient, gradient[order])


@every("aggregation", AGGREGATION_NODES, ids=str)
@every("node", [node for node in LOSS_NODES if "_cov" not in str(node)], ids=str)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(seed=seeds, cut=st.integers(1, 6), order_seed=seeds)
def test_micro_batches_and_ranks_add_up_to_the_mini_batch(
    node: Any, aggregation: Any, seed: int, cut: int, order_seed: int
) -> None:
    fields = draw(seed, rows=7)
    loss, gradient = loss_and_gradient(node, aggregation, fields)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(order_seed))
    total, pieces = torch.zeros((), dtype=torch.float64), torch.zeros_like(gradient)
    for rows in (order[:cut], order[cut:]):
        part, part_gradient = loss_and_gradient(node, aggregation, take(fields, rows))
        total, pieces[rows] = total + part, part_gradient
    assert_same(total, loss)
    assert_same(pieces, gradient)


@every("node", CORRECTION_NODES, ids=str)
@quick
@given(seed=seeds, columns=st.integers(1, 20), fill=fills)
def test_corrections_see_neither_order_nor_padding(node: Any, seed: int, columns: int, fill: float) -> None:
    fields, part = draw(seed, rows=7), CORRECTIONS.build(node)
    whole, wide = part(fields), part(widen(spoil(fields, fill), columns, fill))
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    moved = part(take(fields, order))
    for name in ("weights", "mask"):
        assert_same(getattr(wide, name)[:, :9], getattr(whole, name))
        assert not getattr(wide, name)[:, 9:].any()
        assert_same(getattr(moved, name), getattr(whole, name)[order])


@every("node", FILTER_NODES, ids=str)
@quick
@given(seed=seeds)
def test_filters_follow_the_rows_and_keep_or_drop_whole_groups(node: Any, seed: int) -> None:
    fields, part = draw(seed, rows=12), FILTERS.build(node)
    keep = part(fields)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    assert part(take(fields, order)).equal(keep[order])
    for name in fields["group_ids"].unique():
        assert len(set(keep[fields["group_ids"] == name].tolist())) == 1
