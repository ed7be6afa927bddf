"""The order of draws: a permutation each epoch, shares held, positions that resume."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvlm.data.order import Mixture, shuffled
from rlvlm.errors import DataError


@given(length=st.integers(1, 3000), key=st.text(max_size=8))
@settings(max_examples=60, deadline=None)
def test_shuffled_is_a_permutation_of_any_length(length: int, key: str) -> None:
    assert sorted(shuffled(place, length, key) for place in range(length)) == list(range(length))


def test_shuffled_moves_places_far_and_differs_by_key() -> None:
    one = [shuffled(place, 10_000, "a") for place in range(10_000)]
    two = [shuffled(place, 10_000, "b") for place in range(10_000)]
    assert sum(a == b for a, b in zip(one, two, strict=True)) < 10
    jumps = [abs(a - b) for a, b in itertools.pairwise(one)]
    assert 3200 < sum(jumps) / len(jumps) < 3470, "a third of the length, as of independent draws"


def test_eighty_five_million_places_take_no_memory() -> None:
    assert 0 <= shuffled(84_999_999, 85_000_000, "x") < 85_000_000


def test_an_epoch_of_one_pool_draws_each_record_once_and_the_next_in_another_order() -> None:
    order = Mixture([5, 0, 7], seed=3)
    first = [order.draw() for _ in range(12)]
    second = [order.draw() for _ in range(12)]
    assert len({(draw.source, draw.index) for draw in first}) == 12
    assert {draw.epoch for draw in first} == {0}
    assert {draw.epoch for draw in second} == {1}
    assert [d.index for d in first] != [d.index for d in second]


def test_without_shuffling_records_come_in_the_order_of_the_files() -> None:
    order = Mixture([2, 3], shuffle=False)
    assert [(d.source, d.index) for d in (order.draw() for _ in range(6))] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (1, 2),
        (0, 0),
    ]


@given(weights=st.lists(st.floats(0.05, 50), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None)
def test_every_source_has_given_its_share_to_within_a_record_after_any_number_of_draws(weights: list[float]) -> None:
    order = Mixture([10] * len(weights), weights, seed=1)
    for count in range(1, 300):
        order.draw()
        shares = [count * weight / sum(weights) for weight in weights]
        assert all(abs(taken - share) < 1 for taken, share in zip(order.taken, shares, strict=True))


@pytest.mark.parametrize("weights", [[50.0] + [1.0] * 50, [50.0, *[1.0] * 50][::-1], [0.9, 0.05, 0.05], [1.0] * 40])
def test_a_large_source_beside_many_small_ones_does_not_come_in_bursts(weights: list[float]) -> None:
    order = Mixture([100] * len(weights), weights, seed=1)
    batches = [[order.draw().source for _ in range(32)] for _ in range(60)]
    for source, weight in enumerate(weights):
        share = 32 * weight / sum(weights)
        assert all(abs(batch.count(source) - share) < 2 for batch in batches)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_a_saved_position_goes_on_exactly(weights: list[float] | None) -> None:
    order = Mixture([9, 4], weights, seed=5)
    for _ in range(17):
        order.draw()
    state = order.state_dict()
    expected = [order.draw() for _ in range(30)]
    again = Mixture([9, 4], weights, seed=5)
    again.load_state_dict(state)
    assert [again.draw() for _ in range(30)] == expected


def test_a_position_of_other_data_is_refused() -> None:
    state = Mixture([9, 4], seed=5).state_dict()
    for other in (
        Mixture([9, 5], seed=5),
        Mixture([9, 4], seed=6),
        Mixture([9, 4], [1, 1], seed=5),
        Mixture([9, 4], seed=5, shuffle=False),
    ):
        with pytest.raises(DataError, match="saved position"):
            other.load_state_dict(state)


def test_no_records_is_an_error() -> None:
    with pytest.raises(DataError, match="no records"):
        Mixture([0, 0])
