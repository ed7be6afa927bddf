"""Attention of stems and branches against one softmax for each token in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rlvlm.models import attention
from rlvlm.models.segments import Segments, segment_layout
from tests.close import assert_near

HEADS, KEY_HEADS, SIZE, SCALING = 4, 2, 8, 0.3


def by_hand(states: list[Tensor], stems: list[int], branches: list[tuple[int, int]]) -> Tensor:
    """[T, H, D]: each token attends to what it may see, one at a time. ``branches`` are (stem, length)."""
    query, key, value = (one[0].double() for one in states)
    starts = [sum(stems[:i]) for i in range(len(stems))]
    visible = [
        list(range(start, start + t + 1)) for start, length in zip(starts, stems, strict=True) for t in range(length)
    ]
    place = sum(stems)
    for stem, length in branches:
        whole = list(range(starts[stem], starts[stem] + stems[stem]))
        visible += [whole + list(range(place, place + t + 1)) for t in range(length)]
        place += length
    out = torch.zeros(len(visible), HEADS, SIZE, dtype=torch.float64)
    for token, seen in enumerate(visible):
        for head in range(HEADS):
            group = head * KEY_HEADS // HEADS
            weights = (key[group, seen] @ query[head, token] * SCALING).softmax(0)
            out[token, head] = weights @ value[group, seen]
    return out


def make_states(tokens: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, heads, tokens, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@settings(max_examples=20, deadline=None)
@given(
    stems=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    lengths=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=3, max_size=3),
    order=st.randoms(use_true_random=False),
    few=st.booleans(),
    shuffled=st.booleans(),
)
def test_every_token_sees_its_stem_and_what_came_before_it(
    stems: list[int], lengths: list[list[int]], order: object, few: bool, shuffled: bool
) -> None:
    branches = [(stem, length) for stem in range(len(stems)) for length in lengths[stem]]
    if shuffled:
        order.shuffle(branches)  # type: ignore[attr-defined]
    layout = segment_layout(
        torch.tensor(stems),
        torch.tensor([length for _, length in branches], dtype=torch.int64),
        torch.tensor([stem for stem, _ in branches], dtype=torch.int64),
    )
    states = make_states(sum(stems) + sum(length for _, length in branches), seed=len(branches))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_FEW_SCORES", 10**9 if few else 0)
        ours = layout.attend(nn.Module(), *states, SCALING)[0]
    truth = by_hand(states, stems, branches)
    assert_near(ours.double(), truth)
    weights = torch.linspace(-1, 1, truth.numel(), dtype=torch.float64).view_as(truth)
    mine = torch.autograd.grad((ours.double() * weights).sum(), states)
    wanted = torch.autograd.grad((truth * weights).sum(), states)
    for a, b in zip(mine, wanted, strict=True):
        assert_near(a, b)


def test_segments_of_one_length_are_a_view_and_others_are_filled_up() -> None:
    row = torch.arange(6.0).view(6, 1, 1)
    even = Segments.of(torch.tensor([3, 3]), 0)
    assert even.index is None
    assert even.take(row).flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert even.take(row).untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
    uneven = Segments.of(torch.tensor([2, 3]), 1)
    assert uneven.take(row).flatten().tolist() == [1, 2, 1, 3, 4, 5]


def test_without_a_layout_attention_is_the_plain_one() -> None:
    query, key, value = make_states(5, seed=0)
    module = nn.Module()
    module.num_key_value_groups = HEADS // KEY_HEADS
    module.is_causal = True
    ours, _ = attention.attention(module, query, key, value, None, scaling=SCALING)
    assert_near(ours[0].double(), by_hand([query, key, value], [5], []))
