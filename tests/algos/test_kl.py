from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlvlm.algos.registries import KL_ESTIMATORS
from rlvlm.errors import FieldError

LOGP = torch.tensor([-1.0, -2.0, -0.5, -3.0], dtype=torch.float64)
REF = torch.tensor([-1.5, -1.0, -0.5, -0.2], dtype=torch.float64)
D = LOGP - REF


def run(node: object, logp: Tensor = LOGP, ref_logp: Tensor = REF) -> tuple[Tensor, Tensor]:
    leaf = logp.clone().requires_grad_()
    value = KL_ESTIMATORS.build(node)({"logp": leaf, "ref_logp": ref_logp})  # type: ignore[arg-type]
    value.sum().backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@pytest.mark.parametrize(
    ("name", "value", "gradient"),
    [
        ("k1", D, torch.ones(4)),
        ("abs", D.abs(), D.sign()),
        ("k2", D**2 / 2, D),
        ("k3", (-D).exp() + D - 1, 1 - (-D).exp()),
        ("k1+", D, D),
        ("abs+", D.abs(), D),
        ("k2+", D**2 / 2, D),
        ("k3+", (-D).exp() + D - 1, D),
    ],
)
def test_value_and_gradient_of_each_estimator(name: str, value: Tensor, gradient: Tensor) -> None:
    got, slope = run(name)
    assert torch.allclose(got, value, atol=1e-12)
    assert torch.allclose(slope, gradient.double(), atol=1e-12)


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"])
@pytest.mark.parametrize("gap", [-1e10, -800.0, 800.0, 1e10])
def test_extreme_gaps_stay_finite(name: str, gap: float) -> None:
    value, slope = run(name, torch.tensor([0.0]), torch.tensor([gap]))
    assert value.isfinite().all()
    assert slope.isfinite().all()


def test_k3_is_capped_by_option_and_has_no_gradient_there() -> None:
    value, slope = run({"name": "k3", "max_value": 10.0}, torch.tensor([-20.0, -1.0]), torch.tensor([0.0, 0.0]))
    assert value.tolist() == pytest.approx([10, math.e - 2])
    assert slope[0] == 0


def test_in_expectation_k1_and_k3_are_the_kl_and_the_gradient_of_k2_is_its_gradient() -> None:
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, 0.5, 0.2, -0.4], dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    kl = (logp.exp() * (logp - reference)).sum()
    expected = float(kl.detach())
    (exact,) = torch.autograd.grad(kl, logits, retain_graph=True)
    for name in ("k1", "k3"):
        estimate = KL_ESTIMATORS.build(name)({"logp": logp, "ref_logp": reference})
        assert float((logp.exp() * estimate).sum().detach()) == pytest.approx(expected)
    for name in ("k2", "k1+", "k3+"):
        estimate = KL_ESTIMATORS.build(name)({"logp": logp, "ref_logp": reference})
        (gradient,) = torch.autograd.grad((logp.exp().detach() * estimate).sum(), logits, retain_graph=True)
        assert torch.allclose(gradient, exact, atol=1e-12)


def test_shapes_must_agree() -> None:
    with pytest.raises(FieldError, match=r"'ref_logp' has shape \[4\] like 'logp', got \[3\]"):
        run("k3", LOGP, REF[:3])
