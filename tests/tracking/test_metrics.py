"""Metric keys are reduced by the prefix that they carry."""

from __future__ import annotations

import math

import pytest
import torch

from rlvlm.tracking.metrics import find_metric, reduce_metrics, split_key


def test_each_prefix_has_its_own_reduction_and_a_bare_key_keeps_the_last_value():
    parts = [
        {"mean/ratio": 1.0, "max/ratio": 3.0, "min/ratio": 0.5, "sum/errors": 2, "lr": 0.1},
        {"mean/ratio": 4.0, "max/ratio": 2.0, "min/ratio": 0.7, "sum/errors": 1, "lr": 0.2},
    ]
    assert reduce_metrics(parts, weights=[30, 10]) == {
        "mean/ratio": pytest.approx(1.75),
        "max/ratio": 3.0,
        "min/ratio": 0.5,
        "sum/errors": 3.0,
        "lr": 0.2,
    }


def test_weighted_mean_over_micro_batches_is_the_mean_over_all_tokens():
    tokens = torch.rand(100, dtype=torch.float64)
    chunks = tokens.split([1, 59, 40])
    reduced = reduce_metrics([{"mean/x": chunk.mean()} for chunk in chunks], [len(chunk) for chunk in chunks])
    assert reduced["mean/x"] == pytest.approx(tokens.mean().item(), rel=1e-12)


def test_a_part_without_the_key_or_without_weight_does_not_count():
    assert reduce_metrics([{"mean/a": 1.0}, {"mean/b": 5.0}], [1, 3]) == {"mean/a": 1.0, "mean/b": 5.0}
    assert reduce_metrics([{"mean/a": math.nan}, {"mean/a": 2.0}], [0, 3]) == {"mean/a": 2.0}
    assert reduce_metrics([{"mean/a": 7.0}], [0]) == {}


def test_a_nan_is_never_hidden_by_the_order_of_parts():
    for values in ([math.nan, 1.0], [1.0, math.nan]):
        for key in ("max/x", "min/x", "mean/x", "sum/x"):
            assert math.isnan(reduce_metrics([{key: value} for value in values])[key])
    assert reduce_metrics([{"sum/x": math.inf}, {"sum/x": 1.0}]) == {"sum/x": math.inf}


def test_weights_must_match_the_parts():
    with pytest.raises(ValueError, match="one weight for each of the 2 parts, got 1"):
        reduce_metrics([{}, {}], [1])


def test_split_key_knows_a_prefix_from_a_name():
    assert split_key("mean/kl/k3") == ("mean", "kl/k3")
    assert split_key("time/update") == ("last", "time/update")
    assert split_key("mean") == ("last", "mean")


def test_find_metric_looks_with_and_without_the_prefix():
    metrics = {"mean/reward": 0.5, "loss": 0.1}
    assert find_metric(metrics, "reward") == 0.5
    assert find_metric(metrics, "entropy", "loss") == 0.1
    assert find_metric(metrics, "entropy") is None
