import math

import pytest
import torch

from rlvlm.algos.numerics import ZeroOutside, exp_clamped, fill_masked, masked_mean, masked_sum, row_blocks, whiten

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masked_places_become_zero_whatever_they_hold(dtype: torch.dtype) -> None:
    values = torch.tensor([[1.5, NAN, INF, -INF, -2.5]], dtype=dtype)
    mask = torch.tensor([[True, False, False, False, True]])
    assert fill_masked(values, mask).tolist() == [[1.5, 0, 0, 0, -2.5]]
    assert fill_masked(values, mask, 9.0).tolist() == [[1.5, 9, 9, 9, -2.5]]
    assert fill_masked(values.expand(3, -1), mask.expand(3, -1)).tolist() == [[1.5, 0, 0, 0, -2.5]] * 3


def test_valid_places_keep_nan_and_inf() -> None:
    kept = fill_masked(torch.tensor([NAN, INF, 1.0]), torch.tensor([True, True, False]))
    assert kept[0].isnan()
    assert kept[1] == INF


def test_the_gradient_of_masked_places_is_exactly_zero() -> None:
    values = torch.tensor([[2.0, NAN, 3.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    (fill_masked(values, mask) ** 2 * torch.tensor([1.0, INF, 1.0])).nan_to_num().sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[4, 0, 6]]
    assert torch.autograd.gradcheck(
        lambda x: fill_masked(x, mask), torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
    )


def test_inputs_are_not_changed_and_not_shared() -> None:
    values, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    fill_masked(values, mask).add_(1)
    assert values.eq(1).all()


@pytest.mark.parametrize("log_ratio", [-1e10, -800.0, 88.0, 800.0, 1e10])
def test_exp_stays_finite_and_has_no_gradient_beyond_the_clamp(log_ratio: float) -> None:
    value = torch.tensor(log_ratio, requires_grad=True)
    ratio = exp_clamped(value)
    ratio.backward()
    assert ratio.isfinite()
    assert value.grad == 0


def test_sums_and_means_over_no_places_are_zero() -> None:
    values, mask = torch.full((2, 3), NAN), torch.zeros(2, 3, dtype=torch.bool)
    assert masked_sum(values, mask) == 0
    assert masked_mean(values, mask) == 0
    assert masked_mean(values, mask, dim=-1).tolist() == [0, 0]


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_whitening_equals_the_definition_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("rlvlm.algos.numerics._BLOCK", block)
    values = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 100
    mask = torch.rand(9, 5, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[3] = False
    valid = values[mask]
    expected = (valid - valid.mean()) / (valid.var() + 1e-8).sqrt()
    got = whiten(torch.where(mask, values, NAN), mask)
    assert torch.allclose(got[mask], expected, rtol=1e-12, atol=1e-12)
    assert not got[~mask].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.7, 1e6, -0.3])
@pytest.mark.parametrize("block", [4, 1 << 18])
def test_whitening_equal_values_gives_exactly_zero(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, value: float, block: int
) -> None:
    monkeypatch.setattr("rlvlm.algos.numerics._BLOCK", block)
    mask = torch.rand(13, 7, generator=torch.Generator().manual_seed(2)) > 0.2
    assert not whiten(torch.full((13, 7), value, dtype=dtype), mask).any()
    assert not whiten(torch.full((1, 1), value, dtype=dtype), torch.ones(1, 1, dtype=torch.bool)).any()
    assert not whiten(torch.full((2, 2), value, dtype=dtype), torch.zeros(2, 2, dtype=torch.bool)).any()


def test_whitening_far_from_zero_keeps_its_precision() -> None:
    values = 1e4 + torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    whitened = whiten(values, torch.ones(64, 64, dtype=torch.bool))
    expected = (values.double() - values.double().mean()) / values.double().std()
    assert (whitened - expected).abs().max() < 1e-3  # the input itself is rounded to 1e-3


def test_blocks_cover_the_rows_once() -> None:
    rows = torch.arange(1000)[:, None].expand(1000, 700)
    assert torch.cat([rows[block] for block in row_blocks(rows)]).equal(rows)
    assert whiten(torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.bool)).shape == (0, 4)


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float16, torch.float64])
def test_one_mask_cleans_several_tensors_and_keeps_their_dtype(dtype: torch.dtype, mask_dtype: torch.dtype) -> None:
    clean = ZeroOutside(torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=mask_dtype))
    for _ in range(2):
        cleaned = clean(torch.ones(2, 3, dtype=dtype))
        assert cleaned.dtype == dtype
        assert cleaned.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert clean.counts.tolist() == [[2], [0]]
