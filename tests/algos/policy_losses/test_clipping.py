from __future__ import annotations

import math

import pytest
import torch

from rlvlm.algos.policy_losses.clipping import decoupled_clip, ppo_clip
from rlvlm.algos.results import TokenLoss


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_metrics_say_what_was_clipped() -> None:
    ratio = row(1.5, 1.1, 0.5, 5.0)
    result = ppo_clip(ratio.log(), row(0, 0, 0, 0), row(1, 1, 1, -1), clip_high=0.28, dual_clip=3.0)
    assert result.metrics["mean/clip_fraction"].tolist() == [[True, False, False, False]]
    assert result.metrics["mean/dual_clip_fraction"].tolist() == [[False, False, False, True]]
    assert result.metrics["mean/ratio"][0].tolist() == pytest.approx([1.5, 1.1, 0.5, 5])
    assert result.metrics["mean/approx_kl"][0].tolist() == pytest.approx([-math.log(x) for x in (1.5, 1.1, 0.5, 5)])
    assert result.loss[0].tolist() == pytest.approx([-1.28, -1.1, -0.5, 3])


def weighted(over_cap: str) -> TokenLoss:
    behav = row(-0.5, -6.0, 0.0)  # weights e^0.5, e^6 (over the cap), 1
    return decoupled_clip(row(0, 0, 0), row(0, 0, 0), behav, row(1, 1, 1), over_cap=over_cap)  # type: ignore[arg-type]


def test_a_behaviour_weight_over_the_cap_is_clamped_or_masked() -> None:
    assert weighted("clamp").loss[0].tolist() == pytest.approx([-math.exp(0.5), -5, -1])
    assert weighted("mask").loss[0].tolist() == pytest.approx([-math.exp(0.5), 0, -1])


def test_behaviour_weights_are_reported_before_the_cap() -> None:
    metrics = weighted("clamp").metrics
    assert metrics["max/behav_weight"][0].tolist() == pytest.approx([math.exp(0.5), math.exp(6), 1])
    assert metrics["mean/behav_capped"].tolist() == [[False, True, False]]


def test_no_gradient_flows_through_the_behaviour_weight() -> None:
    prox = row(-1.0).requires_grad_()
    decoupled_clip(row(-1.0).requires_grad_(), prox, row(-1.5), row(1.0)).loss.sum().backward()
    assert prox.grad is not None
    assert float(prox.grad) == pytest.approx(math.exp(0.5))  # of the ratio alone; through the weight it would be 0
