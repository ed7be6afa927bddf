from __future__ import annotations

import pytest
import torch

from rlvlm.algos.registries import REGULARIZERS
from rlvlm.algos.shaping import length, ngram_repetition, overlong
from rlvlm.errors import ConfigError
from tests.algos.drawn import draw


def test_token_weights_by_length_make_every_sequence_count_the_same() -> None:
    fields = draw(0)
    mask = fields["loss_mask"]
    weights = length(mask, fields["num_tokens"], fields["num_sequences"])
    totals = (weights * mask).sum(-1)[mask.any(-1)]
    assert torch.allclose(totals, totals[:1].expand_as(totals))
    assert float((weights * mask).sum()) == pytest.approx(fields["num_tokens"], rel=1e-6)


@pytest.mark.parametrize(("tokens", "penalty"), [(0, 0), (6, 0), (7, 0.25), (9, 0.75), (10, 1), (12, 1)])
def test_the_overlong_penalty_rises_over_the_buffer_and_stays_at_one(tokens: int, penalty: float) -> None:
    mask = torch.arange(14) < tokens
    got = overlong(mask[None], max_length=10, buffer=4)
    assert got.sum() == penalty
    assert not got[0, : max(tokens - 1, 0)].any()
    assert not got[0, tokens:].any()


def test_the_overlong_penalty_goes_on_rising_by_option() -> None:
    assert overlong(torch.ones(1, 12), max_length=10, buffer=4, bounded=False).sum() == 1.5


def test_a_buffer_below_one_is_a_share() -> None:
    assert overlong(torch.ones(1, 9), max_length=10, buffer=0.2).sum() == 0.5


def test_the_overlong_penalty_counts_policy_tokens_and_lands_on_the_last() -> None:
    mask = torch.tensor([[0, 1, 0, 1, 1, 0]]).bool()
    assert overlong(mask, max_length=3, buffer=1).tolist() == [[0, 0, 0, 0, 1, 0]]


def test_a_buffer_longer_than_the_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="the buffer of 'overlong' is at most max_length 4, got 8"):
        overlong(torch.ones(1, 4), max_length=4, buffer=8)


def repeated_by_hand(ids: list[int], mask: list[bool], n: int) -> float:
    whole = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1) if all(mask[i : i + n])]
    return 1 - len(set(whole)) / len(whole) if whole else 0.0


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
def test_repetition_is_the_share_of_ngrams_that_occurred_before(n: int) -> None:
    fields = draw(1, rows=12, length=15)
    penalty = ngram_repetition(fields["input_ids"], fields["loss_mask"], n=n)
    for row in range(12):
        ids, mask = fields["input_ids"][row].tolist(), fields["loss_mask"][row].tolist()
        assert float(penalty[row].sum()) == pytest.approx(repeated_by_hand(ids, mask, n), abs=1e-6)


def test_repetition_lands_on_the_tokens_that_complete_a_repeated_ngram() -> None:
    ids = torch.tensor([[5, 6, 7, 5, 6, 5, 6]])
    penalty = ngram_repetition(ids, torch.ones(1, 7), n=2)
    assert penalty.gt(0).tolist() == [[False, False, False, False, True, False, True]]


def test_an_ngram_does_not_reach_across_an_observation() -> None:
    ids = torch.tensor([[1, 2, 9, 1, 2, 1, 9, 2]])
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1]]).bool()
    assert ngram_repetition(ids, mask, n=2).gt(0).nonzero().tolist() == [[0, 4]]


def test_what_each_acts_on_is_declared() -> None:
    traits = {name: REGULARIZERS.get(name).traits["acts_on"] for name in REGULARIZERS.names()}
    assert traits["length"] == "weights"
    assert traits["overlong"] == traits["ngram_repetition"] == "reward"
    assert traits["kl_to_reference"] == traits["entropy"] == "loss"
