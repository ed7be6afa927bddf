import math

import pytest
import torch

from rlvlm.algos.metrics import reduction_of, token_means, token_shares
from rlvlm.algos.numerics import ZeroOutside
from rlvlm.errors import ConfigError

VALUES = torch.tensor([[1.0, math.nan, 3.0], [5.0, 7.0, math.inf]])
MASK = torch.tensor([[True, False, True], [True, True, False]])
KEYS = {"mean/x": VALUES, "max/x": VALUES, "min/x": VALUES, "sum/x": VALUES, "mean/flag": VALUES > 2}


def test_means_are_shares_of_the_whole_mini_batch() -> None:
    got = {key: float(value) for key, value in token_shares(KEYS, ZeroOutside(MASK), num_tokens=8).items()}
    assert got == {"mean/x": 2, "max/x": 7, "min/x": 1, "sum/x": 16, "mean/flag": 3 / 8}


def test_whole_batches_are_reduced_by_their_own_count_and_empty_ones_to_zero() -> None:
    assert float(token_means(KEYS, MASK)["mean/x"]) == 4
    assert all(value == 0 for value in token_means(KEYS, torch.zeros_like(MASK)).values())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(value: float) -> None:
    spoilt = VALUES.clone()
    spoilt[1, 0] = value
    got = token_means({"mean/x": spoilt, "max/x": spoilt, "min/x": spoilt, "sum/x": spoilt}, MASK)
    assert not got["mean/x"].isfinite()
    assert not got["sum/x"].isfinite()
    assert not (got["max/x"].isfinite() and got["min/x"].isfinite())


def test_what_a_sequence_shares_counts_once_for_each_of_its_tokens() -> None:
    column = torch.tensor([[2.0], [5.0], [math.nan]])
    mask = torch.tensor([[True, False, True], [True, False, False], [False, False, False]])
    got = token_shares(
        {"mean/x": column, "max/x": column, "min/x": column, "sum/flag": column > 3}, ZeroOutside(mask), 3
    )
    assert {key: float(value) for key, value in got.items()} == {"mean/x": 3, "max/x": 5, "min/x": 2, "sum/flag": 1}


def test_a_key_must_say_how_it_is_reduced() -> None:
    assert reduction_of("max/behav_weight") == "max"
    with pytest.raises(ConfigError, match="metric key 'ratio' does not say how it is reduced"):
        reduction_of("ratio")
    with pytest.raises(ConfigError, match=r"'men/ratio' does not say .*\(did you mean 'mean'\?\)"):
        token_shares({"men/ratio": VALUES}, ZeroOutside(MASK), 1)
