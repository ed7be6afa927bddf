"""What every registered estimator makes of a reward that is NaN or infinite, and of a group of equal rewards."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlvlm.algos.registries import ADVANTAGES
from rlvlm.algos.results import AdvantageEstimate
from rlvlm.registry import Part
from tests.algos.drawn import draw, take

quick = settings(max_examples=10, deadline=None, derandomize=True)
seeds, odd = st.integers(0, 10_000), st.sampled_from([float("nan"), float("inf"), -float("inf")])

OPTIONS: list[dict[str, Any]] = [
    {"name": "grpo", "std": "batch"},
    {"name": "grpo", "mean": "batch"},
    {"name": "grpo", "mean": "none", "std": "batch"},
    {"name": "grpo", "leave_one_out": True, "std": "none"},
    {"name": "grpo", "whiten_tokens": True},
    {"name": "grpo", "whiten_tokens": True, "mean": "batch"},
    {"name": "grpo", "whiten_tokens": True, "equal_groups": "whitened"},
    {"name": "rloo", "singleton": "reward"},
    {"name": "gpg", "scale": "nonzero"},
    {"name": "grpo_passk", "divide": False},
    {"name": "gdpo", "divide": False, "singleton": "reward"},
    {"name": "gdpo", "equal_groups": "whitened"},
    {"name": "gdpo", "weights": {"exact": 0.5, "format": -2.0}},
    {"name": "reinforce_plus_plus_baseline", "equal_groups": "whitened"},
    {"name": "reinforce_plus_plus", "masked": "reset", "gamma": 0.9},
    {"name": "gae", "gamma": 0.9, "lam": 0.5},
    {"name": "gae", "whiten_tokens": False},
]
ALL = [*(ADVANTAGES.build(entry.name) for entry in ADVANTAGES.own_entries()), *map(ADVANTAGES.build, OPTIONS)]

of_every = pytest.mark.parametrize("part", ALL, ids=lambda part: f"{part.name} {part.options}")


def advantages(part: Part, fields: dict[str, Any]) -> Tensor:
    result = part(fields)
    return result.advantages if isinstance(result, AdvantageEstimate) else result


def copied(fields: dict[str, Any]) -> dict[str, Any]:
    own = {name: value.clone() if isinstance(value, Tensor) else value for name, value in fields.items()}
    own["scores_by_rule"] = {rule: scores.clone() for rule, scores in fields["scores_by_rule"].items()}
    return own


def spoilt(fields: dict[str, Any], row: int, value: float) -> dict[str, Any]:
    """The fields with one reward of a row not finite, under each name that an estimator may read it by."""
    own = copied(fields)
    last = int(own["loss_mask"][row].nonzero()[-1])
    own["rewards"][row] = own["scores"][row] = own["token_rewards"][row, last] = value
    own["scores_by_rule"]["format"][row] = value
    return own


@of_every
@quick
@given(seed=seeds, row=st.integers(1, 10), value=odd, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_a_row_whose_reward_is_not_finite_is_left_out_and_the_others_do_not_see_it(
    part: Part, seed: int, row: int, value: float, dtype: torch.dtype
) -> None:
    fields = draw(seed, rows=11, dtype=dtype)
    found = advantages(part, spoilt(fields, row, value))
    others = torch.tensor([other for other in range(11) if other != row])
    expected = advantages(part, take(fields, others))
    if part.name == "gpg" and part.options.get("scale") != "none":
        expected = expected * 11 / 10  # one more sample, as many that carry a gradient
    torch.testing.assert_close(found[others], expected, rtol=1e-4, atol=1e-5)
    assert not found[row].any()


@of_every
def test_rewards_that_are_all_not_finite_give_zeros(part: Part) -> None:
    fields = draw(3, rows=5)
    for row in range(1, 5):
        fields = spoilt(fields, row, float("nan"))
    assert not advantages(part, fields).any()


@pytest.mark.parametrize("name", ["values", "token_rewards"])
def test_a_row_that_gae_leaves_out_teaches_the_critic_nothing(name: str) -> None:
    fields = copied(draw(5, rows=6))
    fields[name][2, 1] = float("nan")
    result = ADVANTAGES.build("gae")(fields)
    assert result.returns.isfinite().all()
    if name == "token_rewards":
        mask = fields["loss_mask"][2]
        assert result.returns[2][mask].equal(fields["values"][2][mask])


def test_a_greedy_reward_that_is_not_finite_takes_out_its_own_group_alone() -> None:
    fields = copied(draw(1, rows=9))
    group = fields["group_ids"][1]
    fields["greedy_rewards"][group] = float("nan")
    found, others = advantages(ADVANTAGES.build("remax"), fields), fields["group_ids"] != group
    assert not found[~others].any()
    assert found[others].equal(advantages(ADVANTAGES.build("remax"), draw(1, rows=9))[others])


def equal_group_options() -> list[Part]:
    """Every composition that promises 0 for a group of equal rewards."""
    said_otherwise = [
        lambda options: options.get("equal_groups") == "whitened",
        lambda options: options.get("mean", "group") != "group" and options.get("std", "group") != "group",
    ]
    return [
        part
        for part in ALL
        if part.traits["group_baseline"] and not any(otherwise(part.options) for otherwise in said_otherwise)
    ]


@pytest.mark.parametrize("part", equal_group_options(), ids=lambda part: f"{part.name} {part.options}")
@quick
@given(
    seed=seeds,
    value=st.floats(-1e6, 1e6, width=32),
    rows=st.integers(3, 14),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equal_rewards_get_exactly_zero(part: Part, seed: int, value: float, rows: int, dtype: torch.dtype) -> None:
    fields = copied(draw(seed, rows=rows, dtype=dtype))
    equal = fields["group_ids"] == fields["group_ids"][1]
    if part.options.get("singleton") == "reward" and int(equal.sum()) == 1:
        return  # its reward, as its option says
    fields["rewards"][equal] = value
    for scores in fields["scores_by_rule"].values():
        scores[equal] = value
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    found = advantages(part, take(fields, order))[equal[order]]
    assert not found.any()


def test_an_estimator_that_does_not_promise_it_says_so() -> None:
    for entry in ADVANTAGES.own_entries():
        module = inspect.getdoc(inspect.getmodule(entry.target)) or ""
        if not entry.traits["group_baseline"]:
            assert "a group of equal rewards is not at 0" in module.replace("\n", " ")
