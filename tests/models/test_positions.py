"""M-RoPE positions made from spans against the models' own, which read token ids."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlvlm.models.families.base import SpanTable, segment_offsets
from rlvlm.models.families.mrope import mrope_positions
from rlvlm.models.policy import Policy
from tests import tiny

SEQUENCE = st.lists(
    st.one_of(st.integers(1, 5), st.tuples(st.integers(1, 4), st.integers(1, 4))), min_size=1, max_size=6
)
"""Runs of text tokens, and pictures of height by width tokens."""


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return tiny.policy(request.param)


def as_table(sequences: list[list[int | tuple[int, int]]]) -> tuple[Tensor, SpanTable]:
    lengths, rows, grids = [], [], []
    for segment, parts in enumerate(sequences):
        offset = 0
        for part in parts:
            size = part if isinstance(part, int) else part[0] * part[1]
            if not isinstance(part, int):
                rows.append((segment, offset, size, len(rows)))
                grids.append((1, *part))
            offset += size
        lengths.append(offset)
    columns = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4).unbind(1)
    return torch.tensor(lengths), SpanTable(*columns, torch.tensor(grids, dtype=torch.int64).reshape(-1, 3))


def by_the_model(policy: Policy, parts: list[int | tuple[int, int]]) -> Tensor:
    """Positions [3, T] by ``get_rope_index``; two pictures never touch, which it could not tell apart."""
    merge = policy.model.config.vision_config.spatial_merge_size
    kinds = torch.cat(
        [torch.full((p if isinstance(p, int) else p[0] * p[1],), 0 if isinstance(p, int) else 1) for p in parts]
    )
    grids = [(1, p[0] * merge, p[1] * merge) for p in parts if not isinstance(p, int)]
    ids = torch.where(kinds == 1, policy.family.placeholder_id, 5)[None]
    grid = torch.tensor(grids) if grids else None
    positions, _ = policy.model.model.get_rope_index(ids, kinds[None].int(), image_grid_thw=grid)
    return positions[:, 0]


@settings(max_examples=40, deadline=None)
@given(sequences=st.lists(SEQUENCE, min_size=1, max_size=4))
def test_positions_of_any_pictures_are_the_models_own(
    policy: Policy, sequences: list[list[int | tuple[int, int]]]
) -> None:
    apart = []
    for parts in sequences:
        kept = [parts[0]]
        for part in parts[1:]:
            touching = not isinstance(part, int) and not isinstance(kept[-1], int)
            kept += [1, part] if touching else [part]
        apart.append(kept)
    lengths, table = as_table(apart)
    positions, after = mrope_positions(lengths, table)
    expected = [by_the_model(policy, parts) for parts in apart]
    torch.testing.assert_close(positions, torch.cat(expected, 1))
    assert after.tolist() == [int(one.max()) + 1 for one in expected]


def test_touching_pictures_follow_each_other() -> None:
    lengths, table = as_table([[(2, 3), (1, 2), 2]])
    positions, after = mrope_positions(lengths, table)
    assert positions[0].tolist() == [0] * 6 + [3, 3] + [5, 6]
    assert positions[1].tolist() == [0, 0, 0, 1, 1, 1, 3, 3, 5, 6]
    assert positions[2].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6]
    assert after.tolist() == [7]


def test_a_response_goes_on_from_its_prompt(policy: Policy) -> None:
    asked = tiny.prompts(policy, [[(60, 90)], []])
    batch = tiny.samples(policy, asked, [[3, 2], [1]])
    positions = policy.layout(batch, "shared").positions[:, 0]
    starts = [len(asked.prompts[0].ids) + len(asked.prompts[1].ids)]
    first = positions[:, : len(asked.prompts[0].ids)].max() + 1
    second = len(asked.prompts[1].ids)
    wanted = [first, first + 1, first + 2, first, first + 1, second]
    assert positions[:, starts[0] :].tolist() == [[int(p) for p in wanted]] * 3


def test_offsets_restart_with_each_sequence_and_pass_over_empty_ones() -> None:
    assert segment_offsets(torch.tensor([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]
    assert segment_offsets(torch.tensor([], dtype=torch.int64)).tolist() == []
