import pytest
import torch

from rlvlm.algos.value_losses import clipped, explained_variance, plain
from rlvlm.errors import ConfigError, FieldError
from tests.algos.drawn import draw


def test_the_clipped_loss_takes_the_worse_of_free_and_bounded_prediction() -> None:
    preds = torch.tensor([[2.0, 2.0, 0.1]], dtype=torch.float64, requires_grad=True)
    values, returns = torch.zeros(1, 3, dtype=torch.float64), torch.tensor([[3.0, -1.0, 1.0]], dtype=torch.float64)
    result = clipped(preds, values, returns, clip=0.5)
    assert result.loss[0].tolist() == pytest.approx([(0.5 - 3) ** 2 / 2, (2 + 1) ** 2 / 2, (0.1 - 1) ** 2 / 2])
    result.loss.sum().backward()
    assert preds.grad is not None
    assert preds.grad[0].tolist() == pytest.approx([0, 3, -0.9])
    assert result.metrics["mean/value_clip_fraction"].tolist() == [[True, False, False]]


def test_the_plain_loss_is_half_the_square() -> None:
    fields = draw(0)
    result = plain(fields["value_preds"], fields["returns"])
    assert result.loss.equal(0.5 * (fields["value_preds"] - fields["returns"]) ** 2)


def test_explained_variance_against_its_definition() -> None:
    fields = draw(1)
    mask = fields["loss_mask"]
    values, returns = fields["values"], fields["values"] + 0.1 * fields["returns"]
    expected = 1 - float((returns - values)[mask].var() / returns[mask].var())
    assert float(explained_variance(values, returns, mask)) == pytest.approx(expected)


def test_explained_variance_of_a_perfect_a_constant_and_an_empty_critic() -> None:
    fields = draw(2)
    values, mask = fields["values"], fields["loss_mask"]
    assert explained_variance(values, values, mask) == 1
    assert explained_variance(values, torch.full_like(values, 0.7), mask) == 0
    assert explained_variance(values, values, torch.zeros_like(mask)) == 0
    spoiled = torch.where(mask, values, float("nan"))
    assert explained_variance(spoiled, spoiled, mask) == 1


def test_explained_variance_of_returns_that_are_not_finite_is_not_0() -> None:
    fields = draw(2)
    returns = fields["returns"].clone()
    returns[2, 1] = float("nan")
    assert explained_variance(fields["values"], returns, fields["loss_mask"]).isnan()


def test_bad_ranges_and_shapes_are_named() -> None:
    fields = draw(3)
    with pytest.raises(ConfigError, match="option 'clip' of 'clipped' is above 0, got 0"):
        clipped(fields["value_preds"], fields["values"], fields["returns"], clip=0)
    with pytest.raises(FieldError, match=r"'returns' has shape \[6, 9\] like 'value_preds'"):
        plain(fields["value_preds"], fields["returns"][:, 1:])
