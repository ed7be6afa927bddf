"""Metrics of the pieces of a step: reduced once, by their prefixes."""

from __future__ import annotations

import pytest
import torch

from rlvlm.tracking.log import MetricLog, add_shares


def test_pieces_are_reduced_by_weight_and_prefix():
    log = MetricLog()
    log.add({"mean/x": torch.tensor(1.0), "sum/n": 1, "max/r": 2.0}, weight=torch.tensor(3))
    log.add({"mean/x": 5.0, "sum/n": 2, "max/r": 1.0, "lr": 0.1})
    assert len(log) == 2
    assert log.reduced() == {"mean/x": 2.0, "sum/n": 3.0, "max/r": 2.0, "lr": 0.1}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("key", ["max/x", "min/x", "mean/x", "sum/x"])
@pytest.mark.parametrize("as_value", [torch.tensor, float])
def test_nan_of_one_micro_batch_is_nan_of_the_mini_batch(place, key, as_value):
    values = [1.0, 2.0, 0.5]
    values[place] = float("nan")
    assert float(add_shares([{key: as_value(value)} for value in values])[key]) != pytest.approx(1.0, abs=9)
    assert torch.tensor(float(add_shares([{key: as_value(value)} for value in values])[key])).isnan()


def test_shares_of_micro_batches_add_up_to_the_mean_of_the_mini_batch():
    values = torch.rand(10)
    shares = [{"mean/x": part.sum() / 10, "max/x": part.max(), "min/x": part.min()} for part in values.split([1, 6, 3])]
    joined = add_shares(shares)
    assert joined["mean/x"] == pytest.approx(values.mean().item())
    assert joined["max/x"] == values.max()
    assert joined["min/x"] == values.min()
    assert add_shares(shares[:1]) == shares[0]
