"""Mini-batches of whole groups and micro-batches within a budget."""

from __future__ import annotations

import pytest
import torch

from rlvlm.batch import Batch, Media, Prompt, Span
from rlvlm.engines.train.batching import micro_batches, mini_batches, row_lengths

PROMPT = 10
PATCHES = 6


def make(groups: list[int], responses: list[int]) -> Batch:
    n_prompts = max(groups) + 1
    width = PROMPT + max(responses)
    lengths = torch.tensor(responses) + PROMPT
    mask = torch.arange(width) < lengths[:, None]
    prompts = [
        Prompt(f"p{i}", {}, torch.zeros(PROMPT, dtype=torch.int64), torch.zeros(1), (Span(i, 0, 2),))
        for i in range(n_prompts)
    ]
    return Batch(
        {
            "group_ids": torch.tensor(groups),
            "attention_mask": mask,
            "input_ids": torch.zeros_like(mask, dtype=torch.int64),
        },
        prompts=prompts,
        media=[Media(f"m{i}", (4, 4)) for i in range(n_prompts)],
    )


def cost(rows: list[int], groups: list[int], responses: list[int], shared: bool) -> int:
    heads = len({groups[r] for r in rows}) if shared else len(rows)
    return heads * (PROMPT + PATCHES) + sum(responses[r] for r in rows)


def test_mini_batches_take_whole_groups_and_cover_every_row_once():
    batch = make([3, 0, 1, 3, 2, 1, 4], [1, 2, 3, 4, 5, 6, 7])
    for generator in (None, torch.Generator().manual_seed(1)):
        pieces = mini_batches(batch, 2, generator)
        uids = [{piece.prompts[g].uid for g in piece["group_ids"].tolist()} for piece in pieces]
        assert uids[0].isdisjoint(uids[1])
        assert sum(map(len, pieces)) == 7
        assert {len(piece.prompts) for piece in pieces} == {2, 3}
    assert mini_batches(batch, 1)[0] is batch
    assert len(mini_batches(batch, 99)) == 5


def test_the_order_of_mini_batches_is_decided_by_the_generator():
    batch = make(list(range(8)), [1] * 8)

    def order(seed: int) -> list[str]:
        return [p.uid for piece in mini_batches(batch, 4, torch.Generator().manual_seed(seed)) for p in piece.prompts]

    assert order(0) == order(0)
    assert order(0) != order(1)


def test_row_lengths_tell_prompt_from_response():
    prompt, rest = row_lengths(make([0, 1, 0], [3, 1, 2]))
    assert prompt.tolist() == [PROMPT] * 3
    assert rest.tolist() == [3, 1, 2]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("budget", [1, 25, 40, 70, 1000])
def test_micro_batches_cover_all_rows_once_within_the_budget(shared, budget):
    groups, responses = [2, 0, 1, 2, 0, 1, 2, 2], [3, 9, 1, 4, 2, 6, 5, 8]
    batch = make(groups, responses)
    pieces = micro_batches(batch, budget, lambda media: PATCHES, shared)
    rows = [row for piece, _ in pieces for row in piece.tolist()]
    assert sorted(rows) == list(range(8))
    for piece, sub in pieces:
        assert len(sub) == len(piece)
        assert torch.equal(sub["attention_mask"], batch["attention_mask"][piece])
        assert len(piece) == 1 or cost(piece.tolist(), groups, responses, shared) <= budget
    if budget == 1000:
        assert pieces[0][1] is batch
    if budget == 1:
        assert len(pieces) == 8


def test_a_group_over_budget_is_split_and_each_piece_repeats_its_prompt():
    batch = make([0] * 6, [10] * 6)
    pieces = micro_batches(batch, PROMPT + PATCHES + 20, lambda media: PATCHES, shared=True)
    assert [len(piece) for piece, _ in pieces] == [2, 2, 2]
    assert all(len(sub.prompts) == 1 for _, sub in pieces)
