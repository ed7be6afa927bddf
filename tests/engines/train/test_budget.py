"""The token budget counts what a micro-batch holds; the schedule ends where it should, however few the groups."""

from __future__ import annotations

import pytest
import torch

from rlvlm.algorithm import Algorithm
from rlvlm.batch import Batch, Span
from rlvlm.engines.train.batching import micro_batches
from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.local import LocalEngine
from rlvlm.roles.actor import Actor
from rlvlm.roles.config import ActorConfig
from tests import tiny
from tests.models.grids import mixed_batch


def with_own_pictures(batch: Batch, rows: set[int]) -> Batch:
    spans = [[Span(0, 1, 0)] if row in rows else [] for row in range(len(batch))]
    return batch.with_objects(spans=spans)


def cost(piece: Batch, patches: int, shared: bool) -> int:
    """Counted plainly: rows with pictures of their own stand alone, prompts of the others once a group where shared."""
    own = piece.objects.get("spans") or [[]] * len(piece)
    total, opened = 0, set()
    for row, group in enumerate(piece["group_ids"].tolist()):
        prompt = piece.prompts[group]
        alone = not shared or bool(own[row])
        total += int(piece["attention_mask"][row].sum()) - len(prompt.ids) + patches * len(own[row])
        if alone or group not in opened:
            total += len(prompt.ids) + patches * len(prompt.spans)
        if not alone:
            opened.add(group)
    return total


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("own", [set(), {0, 2}, set(range(8))], ids=["none", "some", "all"])
def test_no_piece_of_several_rows_costs_more_than_the_budget(shared, own):
    policy = tiny.policy("llava")
    batch = with_own_pictures(mixed_batch(policy, [[3, 1, 5], [4, 4], [1], [7, 2]]), own)
    for budget in (30, 100, 200, 400, 1000):
        pieces = micro_batches(batch, budget, lambda picture: 50, shared)
        assert sorted(row for rows, _ in pieces for row in rows.tolist()) == list(range(len(batch)))
        for _, piece in pieces:
            assert len(piece) == 1 or cost(piece, 50, shared) <= budget


@pytest.mark.parametrize("layout", ["auto", "shared", "packed"])
def test_pieces_stay_within_the_budget_in_the_layout_that_they_run_in(layout):
    policy = tiny.policy("llava")
    policy.layout_kind = layout
    engine = LocalEngine("cpu")
    engine.prepare(policy, None, 0)
    batch = mixed_batch(policy, [[3, 1, 5], [4, 4], [1], [7, 2]])
    patches = max(policy.family.patches(picture.size) for picture in batch.media)
    for _, piece in engine.micro_batches(batch, 2 * patches):
        sizes = [policy.family.patches(picture.size) for picture in piece.media]
        assert len(set(sizes)) <= 1, "one size of picture, so that a patch count a picture is enough here"
        assert len(piece) == 1 or cost(piece, patches, policy.shares_prompts(piece)) <= 2 * patches


class StillEngine(LocalEngine):
    """Takes its steps without a model's work."""

    def forward(self, batch, *, grad):
        from rlvlm.models.outputs import TokenOutputs

        weight = next(p for p in self.policy.parameters() if p.requires_grad)
        zero = torch.zeros(batch["input_ids"].shape) + weight.sum() * 0
        return TokenOutputs(logp=zero, entropy=zero)


@pytest.mark.parametrize("groups", [[4, 4, 4], [1, 1, 1], [4, 0, 2], [3, 2, 0]])
@pytest.mark.parametrize("mini", [1, 3, 8])
def test_the_learning_rate_ends_at_its_end_however_few_groups_a_batch_has(groups, mini):
    policy, epochs = tiny.policy("llava", hidden=32, layers=1), 2
    engine = StillEngine("cpu")
    total = len(groups) * mini * epochs
    engine.prepare(policy, OptimizerConfig(lr=1e-3, schedule="linear"), total)
    actor = Actor(engine, Algorithm(), ActorConfig(epochs=epochs, mini_batches=mini, token_budget=10_000))
    batch = mixed_batch(policy, [[2, 2], [2, 2], [2, 2], [2, 2]])
    zeros = torch.zeros(batch["input_ids"].shape)
    batch = batch.with_(advantages=zeros + 1, prox_logp=zeros, behav_logp=zeros)
    for number, count in enumerate(groups, start=1):
        if count:
            actor.update(batch.filter(batch["group_ids"] < count))
        else:
            actor.pass_over()
        assert engine.steps + engine.skipped == number * mini * epochs
    last = 0.0 if not groups[-1] else float(next(iter(engine._optimizer.param_groups))["lr"])
    assert last == pytest.approx(1e-3 / total if groups[-1] else 0.0)


def test_the_place_in_the_schedule_is_resumed(tmp_path):
    first, again = (LocalEngine("cpu") for _ in range(2))
    for engine in (first, again):
        engine.prepare(tiny.policy("llava", hidden=32, layers=1), OptimizerConfig(), 10)
    first.skip(4)
    first.save(tmp_path)
    again.load(tmp_path)
    assert again.skipped == 4
