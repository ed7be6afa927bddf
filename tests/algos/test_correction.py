from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algos.correction import mismatch
from rlvlm.algos.registries import CORRECTIONS
from rlvlm.algos.results import Correction
from rlvlm.errors import ConfigError, FieldError

RATIO = torch.tensor([[2.0, 0.5, 4.0, 1.0], [1.1, 1.1, 1.0, 9.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()


def run(node: Any, ratio: Tensor = RATIO, mask: Tensor = MASK) -> Correction:
    behav = torch.full_like(ratio, -1.0)
    return CORRECTIONS.build(node)({"prox_logp": behav + ratio.log(), "behav_logp": behav, "loss_mask": mask})


def weights(node: Any) -> list[list[float]]:
    return run(node).weights.tolist()


def kept(node: Any) -> list[list[bool]]:
    return run(node).mask.tolist()


def test_tis_caps_the_ratio_of_each_token() -> None:
    assert weights({"name": "tis", "cap": 3.0}) == [
        pytest.approx(row) for row in ([2, 0.5, 3, 0], [1.1, 1.1, 0, 0], [0] * 4)
    ]
    assert run({"name": "tis", "cap": 3.0}).mask.equal(MASK)


def test_a_sequence_has_the_product_of_its_ratios_and_a_geometric_one_their_mean() -> None:
    product = weights({"name": "tis", "level": "sequence", "cap": 9.0})
    assert product == [pytest.approx(row) for row in ([4, 4, 4, 0], [1.21, 1.21, 0, 0], [0] * 4)]
    mean = weights({"name": "tis", "level": "geometric", "cap": 9.0})
    root = 4 ** (1 / 3)
    assert mean == [pytest.approx(row) for row in ([root, root, root, 0], [1.1, 1.1, 0, 0], [0] * 4)]


def test_icepop_zeroes_on_both_sides_and_keeps_the_tokens_counted() -> None:
    result = run({"name": "icepop", "low": 0.6, "high": 3.0})
    assert result.weights.tolist() == [pytest.approx(row) for row in ([2, 0, 0, 0], [1.1, 1.1, 0, 0], [0] * 4)]
    assert result.mask.equal(MASK)
    assert result.metrics["mean/clamped"][MASK].tolist() == [False, True, True, False, False]


def test_weights_can_be_normalised_to_a_mean_of_one() -> None:
    token = run({"name": "tis", "cap": 3.0, "normalize": True}).weights
    assert float(token[MASK].mean()) == pytest.approx(1)
    sequence = run({"name": "tis", "level": "sequence", "cap": 9.0, "normalize": True}).weights
    assert float(sequence[:2, 0].mean()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("level", "low", "high", "expected"),
    [
        ("token", 0.6, 3.0, [[True, False, False, False], [True, True, False, False]]),
        ("sequence", 0.5, 1.5, [[False] * 4, [True, True, False, False]]),
        ("geometric", 1.5, 1.6, [[True, True, True, False], [False] * 4]),
    ],
)
def test_ratio_masks_reject_tokens_or_whole_sequences(
    level: str, low: float, high: float, expected: list[list[bool]]
) -> None:
    node = {"name": "ratio_mask", "level": level, "low": low, "high": high}
    assert kept(node) == [*expected, [False] * 4]
    assert run(node).weights[MASK].eq(1).all()


def statistic(name: str, d: float) -> float:
    return {"k1": d, "k2": d * d / 2, "k3": math.exp(d) - d - 1, "ratio": d}[name]


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "ratio"])
@pytest.mark.parametrize("level", ["token", "sum", "mean", "max"])
def test_rejection_against_its_definition(name: str, level: str) -> None:
    if (name, level) == ("k1", "max"):
        return
    high = {"k1": 1.3, "k2": 0.3, "k3": 0.4, "ratio": 1.3}[name]
    got = kept({"name": "rejection", "statistic": name, "level": level, "high": high})
    low_bound, high_bound = (math.log(1 / high), math.log(high)) if name == "k1" else (-math.inf, high)
    high_bound = math.log(high) if name == "ratio" else high_bound
    for row in range(2):
        values = [statistic(name, math.log(x)) for x in RATIO[row][MASK[row]].tolist()]
        joined = {"token": values, "sum": [sum(values)], "mean": [sum(values) / len(values)], "max": [max(values)]}[
            level
        ]
        inside = [low_bound <= value <= high_bound for value in joined]
        expected = inside if level == "token" else inside * len(values)
        assert [keep for keep, valid in zip(got[row], MASK[row].tolist(), strict=True) if valid] == expected


def test_the_sign_of_k1_is_trainer_over_engine_unless_verls_is_asked_for() -> None:
    bounds = {"name": "rejection", "level": "token", "low": 0.9, "high": 3.0}
    assert kept(bounds)[0] == [True, False, False, False]  # ratios 2, 0.5, 4
    assert kept({**bounds, "k1_ratio": "engine/trainer"})[0] == [False, True, False, False]  # 0.5, 2, 0.25


def test_a_lower_bound_belongs_to_k1_and_a_maximum_does_not() -> None:
    with pytest.raises(ConfigError, match="'low' of 'rejection' belongs to statistic k1; k2 is never negative"):
        run({"name": "rejection", "statistic": "k2", "low": 0.1})
    with pytest.raises(ConfigError, match="level max of 'rejection' goes with statistic k2 or k3"):
        run({"name": "rejection", "statistic": "k1", "level": "max"})


def test_mismatch_is_measured_before_any_cap() -> None:
    values = RATIO[MASK].tolist()
    metrics = {
        key.split("/")[-1]: float(value) for key, value in mismatch(RATIO.log(), torch.zeros_like(RATIO), MASK).items()
    }
    n, total, squares = len(values), sum(values), sum(x * x for x in values)
    assert metrics["effective_samples"] == pytest.approx(total**2 / (n * squares))
    assert metrics["chi_square"] == pytest.approx(squares / n - 1)
    assert metrics["chi_square_sequence"] == pytest.approx((16 + 1.21**2) / 2 - 1)
    assert metrics["kl"] == pytest.approx(-sum(map(math.log, values)) / n)
    assert metrics["k3"] == pytest.approx(sum(x - math.log(x) - 1 for x in values) / n)
    assert float(mismatch(RATIO.log(), torch.zeros_like(RATIO), MASK)["max/correction/ratio"]) == pytest.approx(4)


NODES: list[Any] = ["tis", "icepop", "ratio_mask", "rejection", {"name": "tis", "level": "sequence", "normalize": True}]
NODES += [{"name": "rejection", "statistic": "k3", "level": "max", "high": 0.5}, "areal_rejection"]
NODES += [{"name": "rejection", "statistic": "ratio", "level": "max", "low": 0.5, "high": 3.0}]
NODES += [{"name": "areal_rejection", "level": "sequence", "agg": "max", "action": "clamp", "upper": 2.0, "lower": 0.5}]
NODES += [{"name": "areal_rejection", "level": "sequence", "metric": "kl_k3", "agg": "sum"}]
NODES += [
    {"name": name, "level": level} for name in ("tis", "icepop", "ratio_mask") for level in ("sequence", "geometric")
]


@pytest.mark.parametrize("node", NODES, ids=str)
@pytest.mark.parametrize("fill", [math.nan, math.inf, -1e10])
def test_masked_places_reach_nothing(node: Any, fill: float) -> None:
    given = {"prox_logp": RATIO.log(), "behav_logp": torch.zeros_like(RATIO), "loss_mask": MASK}
    part = CORRECTIONS.build(node)
    clean = part(given)
    dirty = part(
        {**given, "prox_logp": torch.where(MASK, RATIO.log(), fill), "behav_logp": torch.where(MASK, 0.0, fill)}
    )
    assert dirty.weights.equal(clean.weights)
    assert dirty.mask.equal(clean.mask)
    assert not clean.weights[~MASK].any()
    assert not clean.mask[~MASK].any()


@pytest.mark.parametrize("node", NODES, ids=str)
def test_extreme_ratios_and_empty_batches_stay_finite(node: Any) -> None:
    extreme = run(node, torch.tensor([[1e-300, 1e300, 1.0]], dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool))
    assert extreme.weights.isfinite().all()
    empty = run(node, mask=torch.zeros_like(MASK))
    assert not empty.weights.any()
    assert all(value.isfinite() for value in mismatch(RATIO, RATIO, torch.zeros_like(MASK)).values())


def test_the_largest_ratio_of_a_sequence_may_bound_it() -> None:
    ratio = {"name": "rejection", "statistic": "ratio", "level": "max"}
    assert kept({**ratio, "high": 3.0})[:2] == [[False] * 4, [True, True, False, False]]
    assert kept({**ratio, "high": 4.5, "low": 1.2})[:2] == [[True, True, True, False], [False] * 4]
    product = {"name": "rejection", "statistic": "ratio", "level": "sum", "low": 1.0, "high": 2.0}
    assert kept(product)[:2] == [[False] * 4, [True, True, False, False]]  # 4 and 1.21


def test_tis_may_have_a_smallest_weight_too() -> None:
    result = run({"name": "tis", "cap": 3.0, "floor": 1.05})
    assert result.weights[:2].tolist() == [pytest.approx([2, 1.05, 3, 0]), pytest.approx([1.1, 1.1, 0, 0])]
    assert result.metrics["mean/clamped"][MASK].tolist() == [False, True, True, False, False]
    with pytest.raises(ConfigError, match="is at most cap 2.0, got 3.0"):
        run({"name": "tis", "floor": 3.0})


def areal(
    row: list[float], level: str, action: str, metric: str, agg: str, upper: float, lower: float | None
) -> list[float]:
    """The weights of one sequence by AReaL's rules, in plain Python."""
    logs = [math.log(x) for x in row]
    measure = {
        "ratio": lambda d: d,
        "kl_k1": lambda d: d,
        "kl_k2": lambda d: d * d / 2,
        "kl_k3": lambda d: math.exp(-d) - 1 + d,
    }[metric]
    values = [measure(d) for d in logs]
    weights = list(row)
    if level == "sequence":
        join = {"sum": sum, "mean": lambda v: sum(v) / len(v), "max": max}[agg]
        values = [join(values)] * len(row)
        weights = [math.exp(sum(logs) / len(logs))] * len(row) if metric == "ratio" else weights
    values = [math.exp(v) for v in values] if metric == "ratio" else values
    inside = [value <= upper and (lower is None or value >= lower) for value in values]
    bounded = [0.0 if action == "mask" else min(max(w, lower or 0.0), upper) for w in weights]
    return [w if good else b for w, b, good in zip(weights, bounded, inside, strict=True)]


@pytest.mark.parametrize("lower", [None, 0.6])
@pytest.mark.parametrize("agg", ["sum", "mean", "max"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("metric", "action"),
    [("ratio", "mask"), ("ratio", "clamp"), ("kl_k1", "mask"), ("kl_k2", "mask"), ("kl_k3", "mask")],
)
def test_areals_rejection_against_its_definition(
    metric: str, action: str, level: str, agg: str, lower: float | None
) -> None:
    upper = 1.5 if metric == "ratio" else 0.7
    options = {"level": level, "action": action, "metric": metric, "agg": agg, "upper": upper, "lower": lower}
    result = run({"name": "areal_rejection", **options})
    for row in range(2):
        expected = areal(RATIO[row][MASK[row]].tolist(), level, action, metric, agg, upper, lower)
        assert result.weights[row][MASK[row]].tolist() == pytest.approx(expected)
    assert result.mask.equal(MASK)  # what is rejected still counts in the denominators


def test_areals_clamp_is_of_the_ratio() -> None:
    with pytest.raises(ConfigError, match="action clamp of 'areal_rejection' goes with metric ratio, got kl_k2"):
        run({"name": "areal_rejection", "action": "clamp", "metric": "kl_k2"})


@pytest.mark.parametrize("node", NODES, ids=str)
def test_log_probs_that_are_both_minus_infinity_agree(node: Any) -> None:
    nothing = -math.inf
    prox = torch.tensor([[-1.0, nothing, -1.0], [nothing, -1.0, -2.0], [-1.0, -1.0, -1.0]])
    behav = torch.tensor([[-1.0, nothing, -1.0], [-1.0, nothing, -2.0], [-1.0, -1.0, -1.0]])
    mask = torch.ones(3, 3, dtype=torch.bool)
    found = CORRECTIONS.build(node)({"prox_logp": prox, "behav_logp": behav, "loss_mask": mask})
    assert found.weights.isfinite().all()
    if "normalize" not in str(node):
        assert found.weights[[0, 2]].eq(1).all()
        assert found.mask[[0, 2]].all()


def test_shapes_must_agree() -> None:
    given = {"prox_logp": RATIO, "behav_logp": RATIO[:, 1:], "loss_mask": MASK}
    with pytest.raises(FieldError, match=r"'behav_logp' has shape \[3, 4\] like 'prox_logp', got \[3, 3\]"):
        CORRECTIONS.build("tis")(given)
