"""float16 and bfloat16: nothing overflows, neither a loss, nor a gradient, nor a sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algos.advantages.group import grpo
from rlvlm.algos.advantages.returns import gae, reinforce_plus_plus
from rlvlm.algos.correction import mismatch
from rlvlm.algos.numerics import LOG_RATIO_LIMIT, exp_clamped, masked_mean, widen_float16
from rlvlm.algos.registries import AGGREGATIONS, CORRECTIONS, KL_ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES
from rlvlm.algos.results import TokenLoss
from rlvlm.algos.value_losses import explained_variance
from tests.algos.drawn import counted, draw

HALF = [torch.float16, torch.bfloat16]
SHIFTS = [-1000.0, -15.0, -11.0, 11.0, 15.0, 1000.0]
LOSSES = [entry.name for entry in POLICY_LOSSES.own_entries()]
OPTIONS: dict[str, dict[str, Any]] = {"decoupled_clip": {"cap": 1e6}, "dppo_tv": {"cap": 1e9}, "dppo_kl": {"cap": 1e9}}


def far_apart(shift: float, dtype: torch.dtype) -> dict[str, Any]:
    """Log-ratios of about ``shift`` on all rows, of both signs of the advantage."""
    fields = draw(3, rows=8, length=12, dtype=dtype)
    if shift < 0:
        fields["logp"] = fields["logp"] + shift
    fields["prox_logp"] = fields["ref_logp"] = fields["logp"] - shift
    fields["behav_logp"] = fields["prox_logp"] - shift
    fields["advantages"] = fields["advantages"] * 4
    return fields


def run(part: Any, fields: dict[str, Any], wrt: str = "logp") -> tuple[TokenLoss, Tensor]:
    leaf = fields[wrt].clone().requires_grad_()
    result = part({**fields, "generator": torch.Generator().manual_seed(1), wrt: leaf})
    result = result if isinstance(result, TokenLoss) else TokenLoss(result)
    (gradient,) = torch.autograd.grad(result.loss.sum(), leaf)
    return result, gradient


def in_float32(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.float() if isinstance(value, Tensor) and value.dtype.is_floating_point else value
        for name, value in fields.items()
    }


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses_stay_finite_whatever_the_ratio(name: str, shift: float, dtype: torch.dtype) -> None:
    part = POLICY_LOSSES.build({"name": name, **OPTIONS.get(name, {})})
    result, gradient = run(part, far_apart(shift, dtype))
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()
    for value in (result.loss, result.loss.sum(), *result.metrics.values()):
        assert value.isfinite().all()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("name", [entry.name for entry in KL_ESTIMATORS.own_entries()])
def test_kl_estimates_stay_finite_whatever_the_ratio(name: str, shift: float, dtype: torch.dtype) -> None:
    result, gradient = run(KL_ESTIMATORS.build(name), far_apart(shift, dtype))
    assert result.loss.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(
    "part",
    [registry.build(entry.name) for registry in (POLICY_LOSSES, KL_ESTIMATORS) for entry in registry.own_entries()],
    ids=lambda part: f"{part.entry.kind} {part.name}",
)
def test_float16_gives_what_float32_gives_as_far_as_its_gradient_reaches(part: Any, shift: float) -> None:
    fields = far_apart(shift, torch.float16)
    result, gradient = run(part, fields)
    exact, exact_gradient = run(part, in_float32(fields))
    assert result.loss.equal(exact.loss)
    assert gradient.equal(exact_gradient.clamp(-65504, 65504).half())


def test_the_case_of_a_token_that_rose_by_e_to_the_15() -> None:
    fields = {"logp": torch.zeros(1, 1), "prox_logp": torch.full((1, 1), -15.0), "advantages": -torch.ones(1, 1)}
    result, gradient = run(POLICY_LOSSES.build("ppo_clip"), {name: value.half() for name, value in fields.items()})
    assert float(result.loss.detach()) == pytest.approx(3269017.37, rel=1e-6)
    assert float(gradient) == 65504


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", [entry.name for entry in VALUE_LOSSES.own_entries()])
def test_value_losses_square_errors_that_float16_could_not(name: str, dtype: torch.dtype) -> None:
    fields = draw(1, dtype=dtype)
    result, gradient = run(VALUE_LOSSES.build(name), {**fields, "returns": fields["returns"] + 3000}, "value_preds")
    assert result.loss.isfinite().all()
    assert result.loss.max() > 4e6
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", [entry.name for entry in AGGREGATIONS.own_entries()])
def test_aggregations_sum_more_than_float16_could(name: str, dtype: torch.dtype) -> None:
    fields = {**draw(rows=8, length=64, dtype=dtype), "token_loss": torch.full((8, 64), 1000.0, dtype=dtype)}
    fields["token_loss"].requires_grad_()
    fields = counted({**fields, "loss_mask": torch.ones(8, 64, dtype=torch.bool)})
    loss = AGGREGATIONS.build({"name": name, "length": 64.0} if name.endswith("norm") else name)(fields)
    loss.backward()
    assert loss.isfinite()
    assert fields["token_loss"].grad.isfinite().all()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shift", SHIFTS)
def test_corrections_and_what_they_report_stay_finite(shift: float, dtype: torch.dtype) -> None:
    fields = far_apart(shift, dtype)
    for entry in CORRECTIONS.own_entries():
        for options in ({}, {"level": "token"}):
            assert CORRECTIONS.build({"name": entry.name, **options})(fields).weights.isfinite().all()
    rejection = CORRECTIONS.build({"name": "rejection", "statistic": "k2", "level": "sum", "high": 1e9})
    assert rejection(fields).mask.equal(fields["loss_mask"])
    found = mismatch(fields["prox_logp"], fields["behav_logp"], fields["loss_mask"])
    assert all(value.isfinite() for value in found.values())


def test_statistics_over_more_tokens_than_float16_counts() -> None:
    mask = torch.ones(32, 4096, dtype=torch.bool)
    rewards = (torch.arange(32) % 4).half()
    tokens = grpo(rewards, torch.arange(32) // 4, mask, whiten_tokens=True)
    exact = grpo(rewards.float(), torch.arange(32) // 4, mask, whiten_tokens=True)
    assert tokens.dtype == torch.float16
    torch.testing.assert_close(tokens.float(), exact, rtol=2e-3, atol=2e-3)
    sparse = torch.zeros(32, 4096, dtype=torch.float16)
    sparse[:, -1] = rewards
    for estimate in (gae(sparse, torch.zeros_like(sparse), mask), reinforce_plus_plus(sparse, mask)):
        assert all(value.isfinite().all() and value.any() for value in estimate)
    assert float(masked_mean(torch.full((32, 4096), 3.0).half(), mask)) == 3
    assert float(explained_variance(tokens, tokens, mask)) == 1


def test_widening_leaves_other_dtypes_alone_and_holds_the_gradient() -> None:
    single, half = torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.float16, requires_grad=True)
    kept, widened = widen_float16(single, half)
    assert kept is single
    (widened * torch.tensor([1e6, -1e6])).sum().backward()
    assert half.grad is not None
    assert half.grad.tolist() == [65504, -65504]
    assert exp_clamped(torch.full((1,), 1000.0).half()).tolist() == pytest.approx([torch.e**LOG_RATIO_LIMIT], rel=1e-6)
