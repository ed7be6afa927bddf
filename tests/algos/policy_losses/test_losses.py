"""What holds for every policy loss: values and gradients, masked places, extreme ratios, purity, shapes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algos.registries import POLICY_LOSSES
from rlvlm.algos.results import TokenLoss
from rlvlm.errors import ConfigError, FieldError
from tests.algos.drawn import draw
from tests.algos.policy_losses.references import LOSSES

NODES = {
    **{name: node for name, (node, _) in LOSSES.items()},
    "clip_cov": {"name": "clip_cov", "share": 0.2, "low": 0.0},
}
every_loss = pytest.mark.parametrize("name", NODES)


def run(name: str, fields: dict[str, Any]) -> tuple[TokenLoss, Tensor]:
    """The loss and the gradient of its mean over the mask with respect to logp."""
    logp = fields["logp"].clone().requires_grad_()
    result: TokenLoss = POLICY_LOSSES.build(NODES[name])({**fields, "logp": logp})
    result.loss[fields["loss_mask"]].mean().backward()
    assert logp.grad is not None
    return result, logp.grad


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_equal_the_plain_reference(name: str, seed: int) -> None:
    fields = draw(seed)
    mask = fields["loss_mask"]
    result, gradient = run(name, fields)
    logp = fields["logp"].clone().requires_grad_()
    expected = LOSSES[name][1]({**fields, "logp": logp})
    expected[mask].mean().backward()
    assert torch.allclose(result.loss[mask], expected[mask], rtol=1e-12, atol=1e-12)
    assert logp.grad is not None
    assert torch.allclose(gradient[mask], logp.grad[mask], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["reinforce", "gpg", "sapo", "gspo", "geo_mean"])
def test_gradcheck_where_the_loss_is_smooth(name: str) -> None:
    """Where the ratio stays inside the clip; losses with a stopped gradient are no function whose derivative that is."""
    fields = draw(1, rows=3, length=4)
    fields["prox_logp"] = fields["logp"] + 0.01 * fields["values"]
    part, mask = POLICY_LOSSES.build(NODES[name]), fields["loss_mask"]

    def scalar(logp: Tensor) -> Tensor:
        return part({**fields, "logp": logp}).loss[mask].sum()

    assert torch.autograd.gradcheck(scalar, fields["logp"].clone().requires_grad_())


@every_loss
@pytest.mark.parametrize("shift", [-1e10, -800.0, -100.0, 100.0, 800.0, 1e10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_ratios_stay_finite_forward_and_backward(name: str, shift: float, dtype: torch.dtype) -> None:
    fields = draw(2, dtype=dtype)
    fields["prox_logp"] = fields["prox_logp"].clone()
    fields["prox_logp"][2:4] += shift
    fields["advantages"][3] = 0.0
    result, gradient = run(name, fields)
    assert result.loss[fields["loss_mask"]].isfinite().all()
    assert gradient.isfinite().all()


@every_loss
def test_the_first_step_pushes_each_token_by_its_advantage(name: str) -> None:
    """On policy every loss but the regularised and the geometric one has the policy gradient's direction."""
    fields = draw(3)
    fields["prox_logp"] = fields["behav_logp"] = fields["logp"]
    fields["advantages"] = fields["advantages"][:, :1].expand_as(fields["logp"]).clone()
    _, gradient = run(name, fields)
    if name in ("kl_cov", "clip_cov"):
        return
    signs = -fields["advantages"].sign() * fields["loss_mask"]
    assert gradient.sign().equal(signs)


@every_loss
def test_inputs_are_not_changed_and_metrics_carry_no_gradient(name: str) -> None:
    fields = draw(4)
    before = {key: value.clone() for key, value in fields.items() if isinstance(value, Tensor)}
    result, _ = run(name, fields)
    assert all(fields[key].equal(value) for key, value in before.items())
    for key, value in result.metrics.items():
        assert key.split("/")[0] in ("mean", "max", "min", "sum")
        assert value.shape in (fields["logp"].shape, fields["logp"][:, :1].shape)
        assert not value.requires_grad
    assert result.loss.shape == fields["logp"].shape


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_of_the_inputs_is_kept(name: str, dtype: torch.dtype) -> None:
    result, gradient = run(name, draw(5, dtype=dtype))
    assert result.loss.dtype == gradient.dtype == dtype


@every_loss
def test_a_field_of_another_shape_is_refused_by_name(name: str) -> None:
    fields = draw(6)
    fields["advantages"] = fields["advantages"][:, :-1]
    with pytest.raises(FieldError, match=r"'advantages' has shape \[6, 9\] like 'logp', got \[6, 8\]"):
        run(name, fields)
    with pytest.raises(FieldError, match=r"'logp' has shape \[B, L\], got \[9\]"):
        run(name, {**draw(6), "logp": draw(6)["logp"][0]})


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "geo_mean", "kl_cov", "clip_cov"])
@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf])
def test_losses_that_look_further_than_a_token_are_blind_to_masked_places(name: str, fill: float) -> None:
    fields = draw(7)
    mask = fields["loss_mask"]
    clean, clean_gradient = run(name, fields)
    dirty = {
        k: torch.where(mask, v, fill) if k in ("logp", "prox_logp", "advantages") else v for k, v in fields.items()
    }
    dirty["generator"] = torch.Generator().manual_seed(11)
    spoiled, gradient = run(name, dirty)
    assert spoiled.loss[mask].equal(clean.loss[mask])
    assert gradient.equal(clean_gradient)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"name": "ppo_clip", "clip_low": 1.5}, "clip_low lies between 0 and 1"),
        ({"name": "ppo_clip", "clip_high": -0.1}, "clip_high is at least 0"),
        ({"name": "ppo_clip", "dual_clip": 0.9}, "dual_clip is a ratio above 1, or null for none, got 0.9"),
        ({"name": "gspo", "clip_low": -1.0}, "clip_low lies between 0 and 1"),
        ({"name": "decoupled_clip", "cap": 0.0}, "option 'cap' of 'decoupled_clip' is above 0, got 0.0"),
        ({"name": "sapo", "temperature_positive": 0.0}, "option 'temperature_positive' of 'sapo' is above 0"),
        ({"name": "clip_cov", "low": 6.0}, "'clip_cov' keeps what lies between low and high, got low 6.0 and high 5.0"),
        ({"name": "kl_cov", "share": 0.0}, "option 'share' of 'kl_cov' is above 0"),
        ({"name": "dppo_tv", "cap": -1.0}, "option 'cap' of 'dppo_tv' is above 0"),
        ({"name": "geo_mean", "clip_low": 0.0}, "option 'clip_low' of 'geo_mean' is above 0"),
    ],
)
def test_an_option_out_of_range_says_the_range(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        POLICY_LOSSES.build(node)(draw(8))


def test_scopes_say_how_far_a_loss_looks() -> None:
    scopes = {name: POLICY_LOSSES.get(name).traits["scope"] for name in POLICY_LOSSES.names()}
    assert {name for name, scope in scopes.items() if scope == "sequence"} == {"gspo", "geo_mean"}
    assert {name for name, scope in scopes.items() if scope == "minibatch"} == {"clip_cov", "kl_cov"}
