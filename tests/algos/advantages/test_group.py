"""Group baselines against what is written out here group by group."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algos.registries import ADVANTAGES
from rlvlm.errors import FieldError
from tests.algos.drawn import draw


def advantages(
    node: Any, rewards: list[float], ids: list[int] | None = None, lengths: list[int] | None = None
) -> list[float]:
    """One advantage for each row; rows have the given lengths, and their tokens must all hold the same."""
    lengths = lengths or [2] * len(rewards)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    given = {
        "rewards": torch.tensor(rewards, dtype=torch.float64),
        "group_ids": torch.tensor(ids or [0] * len(rewards)),
        "loss_mask": mask,
    }
    tokens: Tensor = ADVANTAGES.build(node)(given)
    assert tokens.equal(torch.where(mask, tokens[:, :1], 0.0))
    return tokens[:, 0].tolist()


def test_grpo_divides_by_the_unbiased_std_of_the_group() -> None:
    got = advantages("grpo", [1, 0, 0, 1, 5], [3, 3, 8, 8, 3])
    group = torch.tensor([1.0, 0, 5], dtype=torch.float64)
    expected = ((group - 2) / (group.std() + 1e-6)).tolist()
    assert got == pytest.approx([expected[0], expected[1], -(0.5**0.5), 0.5**0.5, expected[2]], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"std": "none"}, [-2, 0, 2]),
        ({"std": "none", "leave_one_out": True}, [-3, 0, 3]),
        ({"unbiased": False, "eps": 0.0}, [-((3 / 2) ** 0.5), 0, (3 / 2) ** 0.5]),
        ({"eps": 1.0}, [-2 / 3, 0, 2 / 3]),
        ({"mean": "none", "std": "none"}, [1, 3, 5]),
        ({"mean": "none", "eps": 0.0}, [0.5, 1.5, 2.5]),
    ],
)
def test_grpo_options_on_one_group(options: dict[str, Any], expected: list[float]) -> None:
    assert advantages({"name": "grpo", **options}, [1, 3, 5]) == pytest.approx(expected, abs=1e-5)


def test_grpo_takes_mean_and_std_of_the_batch_where_asked() -> None:
    rewards = torch.tensor([1.0, 3, 5, 9], dtype=torch.float64)
    by_batch = advantages({"name": "grpo", "mean": "batch", "std": "batch", "eps": 0.0}, rewards.tolist(), [0, 0, 1, 1])
    assert by_batch == pytest.approx(((rewards - rewards.mean()) / rewards.std()).tolist())
    mixed = advantages({"name": "grpo", "std": "batch", "eps": 0.0}, rewards.tolist(), [0, 0, 1, 1])
    assert mixed == pytest.approx((torch.tensor([-1, 1, -2, 2]) / rewards.std()).tolist())


def test_grpo_can_be_normalised_again_over_the_tokens_of_the_batch() -> None:
    once = torch.tensor(advantages("grpo", [1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1], [1, 4, 2, 3, 3, 1]))
    counts = torch.tensor([1, 4, 2, 3, 3, 1])
    tokens = once.repeat_interleave(counts)
    twice = advantages({"name": "grpo", "whiten_tokens": True}, [1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1], counts.tolist())
    assert twice == pytest.approx(((once - tokens.mean()) / tokens.std()).tolist())


def test_rloo_leaves_the_sample_itself_out() -> None:
    assert advantages("rloo", [1, 0, 0, 1, 0.5]) == pytest.approx([0.625, -0.625, -0.625, 0.625, 0])


def test_opo_weighs_the_baseline_by_length() -> None:
    baseline = (3 * 1 + 1 * 0 + 6 * 0.5) / 10
    expected = [1 - baseline, -baseline, 0.5 - baseline]
    assert advantages("opo", [1, 0, 0.5], lengths=[3, 1, 6]) == pytest.approx(expected)


def test_gpg_scales_by_the_samples_that_carry_a_gradient() -> None:
    rewards, ids = [1, 0, 1, 1, 0, 0], [0, 0, 1, 1, 2, 2]
    assert advantages("gpg", rewards, ids) == pytest.approx([1.5, -1.5, 0, 0, 0, 0])
    nonzero = advantages({"name": "gpg", "scale": "nonzero"}, rewards, ids)
    assert nonzero == pytest.approx([1, -1, 0, 0, 0, 0])
    assert advantages({"name": "gpg", "scale": "none"}, rewards, ids) == pytest.approx([0.5, -0.5, 0, 0, 0, 0])


def test_grpo_passk_rewards_only_the_lead_of_the_best_sample() -> None:
    std = float(torch.tensor([0.2, 0.9, 0.5], dtype=torch.float64).std())
    got = advantages("grpo_passk", [0.2, 0.9, 1, 0.5, 1, 0, 7], [0, 0, 1, 0, 1, 1, 2])
    assert got == pytest.approx([0, 0.4 / (std + 1e-6), 0, 0, 0, 0, 0])
    assert advantages({"name": "grpo_passk", "divide": False}, [0.2, 0.9, 0.5]) == pytest.approx([0, 0.4, 0])


BASELINES = [
    "grpo",
    {"name": "grpo", "std": "none"},
    {"name": "grpo", "eps": 0.0},
    {"name": "grpo", "leave_one_out": True},
]
BASELINES += ["rloo", "opo", "gpg", "grpo_passk", "reinforce_plus_plus_baseline"]
BASELINES += [{"name": "grpo", "mean": "batch"}, {"name": "grpo", "mean": "none"}]


@pytest.mark.parametrize("node", BASELINES, ids=str)
@pytest.mark.parametrize("value", [0.1, 0.7, 1e6, -1 / 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_group_of_equal_rewards_gets_exactly_zero_beside_one_that_does_not(
    node: Any, value: float, dtype: torch.dtype
) -> None:
    rewards = torch.tensor([value, 1, value, 0, value, 0.3, value], dtype=dtype)
    mask = torch.arange(5) < torch.tensor([1, 2, 3, 4, 5, 1, 2])[:, None]
    given = {"rewards": rewards, "group_ids": torch.tensor([4, 1, 4, 1, 4, 1, 4]), "loss_mask": mask}
    tokens = ADVANTAGES.build(node)(given)
    assert not tokens[[0, 2, 4, 6]].any()
    assert tokens[[1, 3, 5]].any()
    assert tokens.isfinite().all()


@pytest.mark.parametrize("node", [node for node in BASELINES if "leave_one_out" not in str(node)], ids=str)
def test_a_group_of_one_gets_zero(node: Any) -> None:
    got = advantages(node, [0.7, 1, 0], [9, 2, 2])
    assert got[0] == 0
    assert got[1] > 0


@pytest.mark.parametrize(
    ("node", "expected"),
    [("grpo", 0.7 / (1 + 1e-6)), ("rloo", 0.7), ("opo", 0.7), ({"name": "grpo", "std": "none"}, 0.7)],
    ids=str,
)
def test_a_group_of_one_keeps_its_reward_by_option(node: Any, expected: float) -> None:
    named = {"name": node} if isinstance(node, str) else node
    if named.get("std") == "none":
        expected = 0.7
    got = advantages({**named, "singleton": "reward"}, [0.7, 1, 0], [9, 2, 2])
    assert got[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("node", BASELINES, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_unscorable_sample_is_left_out_of_the_statistics_and_gets_zero(node: Any, bad: float) -> None:
    without = advantages(node, [1, 0, 1, 0.5], lengths=[2, 1, 3, 4])
    with_bad = advantages(node, [1, 0, bad, 1, 0.5], lengths=[2, 1, 2, 3, 4])
    if node == "gpg":
        without = [value * 5 / 4 for value in without]  # one more sample, as many that carry a gradient
    assert with_bad == pytest.approx([*without[:2], 0, *without[2:]], abs=1e-9)


@pytest.mark.parametrize("node", ["grpo", "rloo", "opo", "gpg", "grpo_passk", "reinforce_plus_plus_baseline"])
def test_integer_rewards_and_numeric_masks_are_taken(node: str) -> None:
    given = {"rewards": torch.tensor([1, 0, 3]), "group_ids": torch.tensor([0, 0, 0]), "loss_mask": torch.ones(3, 2)}
    whole = {**given, "rewards": torch.tensor([1.0, 0, 3]), "loss_mask": torch.ones(3, 2, dtype=torch.bool)}
    part = ADVANTAGES.build(node)
    assert part(given).equal(part(whole))


def test_wrong_shapes_say_what_was_expected() -> None:
    given = {"rewards": torch.zeros(3), "group_ids": torch.zeros(3, dtype=torch.int64), "loss_mask": torch.ones(4, 2)}
    with pytest.raises(
        FieldError, match=r"'rewards' has shape \[4\], one entry for each row of 'loss_mask', got \[3\]"
    ):
        ADVANTAGES.build("grpo")(given)
    with pytest.raises(FieldError, match=r"'loss_mask' has shape \[B, L\], got \[3\]"):
        ADVANTAGES.build("rloo")({**given, "loss_mask": torch.ones(3)})


@pytest.mark.parametrize("node", ["grpo", "rloo", "opo"])
def test_a_hundred_thousand_samples_take_well_under_a_second(node: str) -> None:
    """Time of this thread alone, so that a busy machine does not fail it."""
    rows = 100_000
    g = torch.Generator().manual_seed(0)
    given = {
        "rewards": torch.rand(rows, generator=g),
        "group_ids": torch.randint(0, 10_000, (rows,), generator=g),
        "loss_mask": torch.rand(rows, 8, generator=g) > 0.2,
    }
    part = ADVANTAGES.build(node)
    start = time.thread_time()
    assert part(given).isfinite().all()
    assert time.thread_time() - start < 0.5


@pytest.mark.parametrize("node", ["grpo", "rloo"])
def test_advantages_sum_to_zero_within_each_group(node: str) -> None:
    fields = draw(3, rows=40, groups=7)
    fields["loss_mask"] = torch.ones_like(fields["loss_mask"])
    rows = ADVANTAGES.build(node)(fields)[:, 0]
    for name in fields["group_ids"].unique():
        assert float(rows[fields["group_ids"] == name].sum()) == pytest.approx(0, abs=1e-9)
