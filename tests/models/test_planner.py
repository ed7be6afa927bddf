"""The layout planner: what it takes, and that its counts are those of the operations really done."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rlvlm.models.planner import Costs, Sizes, plan_layout
from tests import tiny
from tests.models.grids import mixed_batch

COSTS = Costs(patch=1e6, token=1e6, pair=1e3, copy=1e3)


def sizes(prompt: int, response: int, each: int, prompts: int = 4, patches: int = 0) -> Sizes:
    groups = torch.arange(prompts).repeat_interleave(each)
    rows = prompts * each
    return Sizes(
        torch.full((prompts,), prompt),
        torch.full((rows,), response),
        groups,
        torch.zeros(rows, dtype=torch.bool),
        patches * prompts,
        patches * rows,
    )


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ({"prompt": 238, "response": 24, "each": 8, "patches": 784}, "shared"),
        ({"prompt": 26, "response": 6, "each": 8}, "shared"),
        ({"prompt": 26, "response": 6, "each": 1}, "packed"),
        ({"prompt": 20, "response": 4000, "each": 8}, "packed"),
    ],
)
def test_long_prompts_are_shared_and_long_answers_packed(shape: dict[str, int], kind: str) -> None:
    plan = plan_layout(sizes(**shape), COSTS)
    assert plan.kind == kind
    assert plan.costs[kind] == min(plan.costs.values())
    assert plan.why.startswith(f"{kind} rows:")


def test_samples_with_pictures_of_their_own_count_whole() -> None:
    shared = sizes(200, 10, 8)
    whole = Sizes(shared.prompts, shared.rests, shared.groups, torch.ones(32, dtype=torch.bool), 0, 0)
    assert plan_layout(whole, COSTS).costs["shared"] == plan_layout(whole, COSTS).costs["packed"]
    assert plan_layout(whole, COSTS).kind == "packed"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_counts_stand_to_each_other_as_the_operations_of_a_forward_do(family: str) -> None:
    policy = tiny.policy(family)
    asked = tiny.prompts(policy, [[(112, 168)], [(168, 112)]], ["how " * 20] * 2)
    batch = tiny.samples(policy, asked, [[9] * 6, [7] * 6])
    done = {}
    for kind in ("shared", "packed", "padded"):
        rows = policy.layout(batch, kind)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            policy(rows)
        done[kind] = counter.get_total_flops()
    counted = policy.plan(batch).costs
    for kind in ("packed", "padded"):
        assert counted["shared"] / counted[kind] == pytest.approx(done["shared"] / done[kind], rel=0.25)


def test_the_log_says_which_layout_and_why_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = tiny.policy("llava")
    batch = mixed_batch(policy, [[3, 1, 5], [4, 4], [1], [7, 2]])
    with caplog.at_level(logging.INFO, "rlvlm"):
        policy.layout(batch)
        policy.layout(batch)
        policy.layout(batch.index([0]))
        policy.layout(batch)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["shared rows", "packed rows"]
    assert "GFLOP forward against" in caplog.records[0].getMessage()


def test_a_layout_that_is_set_is_taken_and_dropout_turns_sharing_off() -> None:
    policy = tiny.policy("llava")
    batch = mixed_batch(policy, [[3, 1, 5], [4, 4], [1], [7, 2]])
    assert policy.shares_prompts(batch)
    policy.layout_kind = "padded"
    assert policy.plan(batch).why == "padded rows: model.layout says so"
    assert policy.layout(batch).layout is None
    policy.layout_kind = "auto"
    for layer in policy.model.model.language_model.layers:
        layer.self_attn.attention_dropout = 0.1
    other = type(policy)(policy.model, policy.family)
    assert not other.dropout_active
    other.train()
    assert other.dropout_active
    assert other.plan(batch).kind == "padded"
    assert other.layout(batch).layout is None
    assert not other.shares_prompts(batch)
