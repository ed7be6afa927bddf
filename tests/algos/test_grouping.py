import pytest
import torch

from rlvlm.algos.grouping import group, one_group, tokens_of_group
from rlvlm.algos.segments import EvenSegments, ScatteredSegments
from rlvlm.errors import FieldError


def by_hand(values: list[float], ids: list[int]) -> dict[int, torch.Tensor]:
    return {
        i: torch.tensor([v for v, j in zip(values, ids, strict=True) if i == j], dtype=torch.float64) for i in set(ids)
    }


@pytest.mark.parametrize(
    "ids",
    [
        [9, -4, 9, 2, 9, -4, 2],  # any order
        [0, 0, 0, 1, 1, 1, 1],
        [10**15, 3, 10**15, 3, 3, 3, 0],  # far apart
        [5, 5, 5, 5, 5, 5, 5],
        [6, 5, 4, 3, 2, 1, 0],
    ],
    ids=str,
)
def test_statistics_equal_those_of_each_group_alone(ids: list[int]) -> None:
    values = [1.0, 5.0, -2.0, 0.5, 3.0, 7.25, 1.0]
    groups = group(torch.tensor(values, dtype=torch.float64), torch.tensor(ids))
    for row, (value, name) in enumerate(zip(values, ids, strict=True)):
        alone = by_hand(values, ids)[name]
        assert groups.to_rows(groups.size)[row] == len(alone)
        assert groups.deviations[row] == pytest.approx(value - float(alone.mean()), abs=1e-12)
        unbiased = float(alone.std()) if len(alone) > 1 else 0.0
        assert groups.to_rows(groups.std())[row] == pytest.approx(unbiased, abs=1e-12)
        assert groups.to_rows(groups.std(unbiased=False))[row] == pytest.approx(
            float(alone.std(correction=0)), abs=1e-12
        )
        assert groups.to_rows(groups.spread)[row] == pytest.approx(float(alone.max() - alone.min()), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.7, 1e4, -3.3, 1e-7])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_a_group_of_equal_values_deviates_by_exactly_nothing(dtype: torch.dtype, value: float, size: int) -> None:
    groups = group(torch.full((size,), value, dtype=dtype), torch.zeros(size, dtype=torch.int64))
    assert not groups.deviations.any()
    assert not groups.std().any()
    assert not groups.spread.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_left_out(bad: float) -> None:
    groups = group(torch.tensor([1.0, bad, 3.0, bad]), torch.tensor([0, 0, 0, 1]))
    assert groups.size.tolist() == [2, 0]
    assert groups.deviations.tolist() == [-1, 0, 1, 0]
    assert groups.std().tolist() == pytest.approx([2**0.5, 0])
    assert groups.spread.tolist() == [2, 0]


def test_the_only_valid_row_of_a_group_is_alone() -> None:
    groups = group(torch.tensor([1.0, float("nan"), 3.0, 4.0]), torch.tensor([0, 0, 1, 1]))
    assert groups.alone.tolist() == [True, False, False, False]


def test_groups_side_by_side_give_the_same_as_in_any_other_order() -> None:
    values = torch.randn(12, generator=torch.Generator().manual_seed(0))
    values[3], values[4:8] = float("nan"), 0.7
    regular = group(values, torch.arange(12) // 4)
    order = torch.tensor([7, 0, 11, 3, 5, 1, 9, 2, 4, 10, 6, 8])
    mixed = group(values[order], torch.arange(12)[order] // 4)
    assert regular.segments == EvenSegments(3, 4)
    assert isinstance(mixed.segments, ScatteredSegments)
    for name in ("deviations", "alone", "valid"):
        assert torch.allclose(getattr(regular, name)[order].double(), getattr(mixed, name).double(), atol=1e-15)
    for name in ("spread", "size", "mean_shifted"):
        assert torch.allclose(getattr(regular, name), getattr(mixed, name), atol=1e-15)
    assert torch.allclose(regular.std(), mixed.std(), atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_ids_of_any_integer_dtype_reach_to_its_bounds(dtype: torch.dtype) -> None:
    bounds = torch.iinfo(dtype)
    values = torch.tensor([1.0, 5.0, 2.0, 3.0])
    for ids in (
        [bounds.min, bounds.max, bounds.min, bounds.max],
        [bounds.max - 1, bounds.max - 1, bounds.max, bounds.max],
    ):
        mine = group(values, torch.tensor(ids, dtype=dtype)).deviations
        assert mine.tolist() == ([-0.5, 1, 0.5, -1] if ids[0] == bounds.min else [-2, 2, -0.5, 0.5])


def test_the_batch_is_one_group() -> None:
    values = torch.tensor([1.0, 2.0, 6.0])
    assert one_group(values).deviations.tolist() == [-2, -1, 3]


def test_tokens_are_counted_over_the_whole_group() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]]).bool()
    assert tokens_of_group(mask, torch.tensor([5, 8, 5, 8])).tolist() == [2, 4, 2, 4]


def test_no_rows_are_no_groups() -> None:
    assert group(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).deviations.shape == (0,)


def test_wrong_shapes_and_ids_are_refused_by_name() -> None:
    with pytest.raises(FieldError, match=r"'group_ids' has shape \[3\] like 'rewards', got \[2\]"):
        group(torch.zeros(3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(FieldError, match=r"'rewards' has shape \[B\], got \[3, 1\]"):
        group(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(FieldError, match="integer dtype, got torch.float32"):
        group(torch.zeros(3), torch.zeros(3))
