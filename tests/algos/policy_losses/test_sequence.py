import pytest
import torch

from rlvlm.algos.numerics import ZeroOutside
from rlvlm.algos.policy_losses.sequence import geo_mean, gspo
from tests.algos.drawn import draw


def test_both_forms_agree_where_a_sequence_has_one_advantage() -> None:
    fields = draw(0)
    mask = fields["loss_mask"]
    advantages = fields["advantages"][:, :1].expand_as(mask)
    gradients = []
    for form in ("sequence", "token"):
        logp = fields["logp"].clone().requires_grad_()
        result = gspo(logp, fields["prox_logp"], advantages, mask, clip_low=0.1, clip_high=0.1, form=form)
        (result.loss * mask / mask.sum(-1, keepdim=True).clamp_min(1)).sum().backward()
        gradients.append(logp.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-12)


def test_the_forms_differ_where_advantages_differ_within_a_sequence() -> None:
    logp = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    advantages, mask = torch.tensor([[3.0, 1.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    gspo(logp, logp.detach(), advantages, mask, form="token").loss.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [[-3, -1]]
    logp.grad = None
    gspo(logp, logp.detach(), advantages, mask).loss.sum().backward()
    assert logp.grad.tolist() == [[-2, -2]]


def test_gspo_takes_a_dual_clip() -> None:
    logp, mask = torch.full((1, 2), 2.0), torch.ones(1, 2, dtype=torch.bool)
    result = gspo(logp, torch.zeros(1, 2), -torch.ones(1, 2), mask, dual_clip=3.0)
    assert result.loss.tolist() == [[3, 3]]
    assert result.metrics["mean/dual_clip_fraction"].all()


def test_a_fully_masked_sequence_has_ratio_one_and_no_gradient() -> None:
    logp = torch.full((1, 3), float("nan"), requires_grad=True)
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    for loss in (gspo, geo_mean):
        result = loss(logp, logp.detach(), logp.detach(), nothing)
        assert result.loss.isfinite().all()
        assert result.metrics["mean/ratio"].tolist() == [[1]]


def test_the_geometric_mean_clips_single_log_ratios_on_the_side_of_the_advantage() -> None:
    logp = torch.tensor([[1.0, -1.0]])
    up = geo_mean(logp, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2), clip_low=0.4, clip_high=0.4)
    assert float(up.metrics["mean/ratio"][0, 0]) == pytest.approx(float(torch.tensor((0.4 - 1) / 2).exp()))
    down = geo_mean(logp, torch.zeros(1, 2), -torch.ones(1, 2), torch.ones(1, 2), clip_low=0.4, clip_high=0.4)
    assert float(down.metrics["mean/ratio"][0, 0]) == pytest.approx(float(torch.tensor((1 - 0.4) / 2).exp()))


def test_inputs_that_are_clean_already_give_the_same() -> None:
    fields = draw(0)
    logp, prox_logp, advantages, mask = (fields[name] for name in ("logp", "prox_logp", "advantages", "loss_mask"))
    clean = ZeroOutside(mask)
    for loss in (gspo, geo_mean):
        handed = loss(clean(logp), clean(prox_logp), clean(advantages), mask, clean)
        assert clean(handed.loss).equal(clean(loss(logp, prox_logp, advantages, mask).loss))
