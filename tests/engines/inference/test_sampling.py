"""Noise depends on its key alone; draws follow the distribution; cuts keep what their definitions say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlvlm.engines.inference.sampling import cut, draw, log_probs, noise_keys, uniforms


def _probs(*values: float) -> torch.Tensor:
    return torch.tensor([values]).log()


def test_noise_of_a_sample_does_not_depend_on_its_neighbours_or_on_how_many_tokens_are_asked_for():
    together = uniforms(noise_keys(1, 2, ["a", "b", "c"], 4).reshape(-1), 0, 10).view(3, 4, 10)
    alone = uniforms(noise_keys(1, 2, ["c"], 2)[0, 1:2], 7, 9)
    assert torch.equal(together[2, 1, 7:9], alone[0])


@pytest.mark.parametrize("other", [(2, 2, "a"), (1, 3, "a"), (1, 2, "b"), (12, 2, "a"), (1, 22, "a"), (1, 2, "/a")])
def test_each_part_of_the_key_changes_all_of_the_noise(other):
    seed, step, uid = other
    base = uniforms(noise_keys(1, 2, ["a"], 3)[0], 0, 50)
    changed = uniforms(noise_keys(seed, step, [uid], 3)[0], 0, 50)
    assert (base - changed).abs().min() > 0


def test_no_two_places_of_a_large_rollout_share_noise():
    noise = uniforms(noise_keys(0, 0, [str(i) for i in range(50)], 20).reshape(-1), 0, 200)
    assert len(torch.unique(noise)) == noise.numel()


def test_noise_is_uniform_and_uncorrelated_over_prompts_samples_and_tokens():
    noise = uniforms(noise_keys(3, 1, [str(i) for i in range(64)], 16).reshape(-1), 0, 128).numpy()
    assert noise.min() >= 0
    assert noise.max() < 1
    size = noise.size
    steps = np.arange(1, size + 1) / size
    assert np.abs(np.sort(noise.ravel()) - steps).max() < 1.63 / np.sqrt(size)  # Kolmogorov-Smirnov, 1 %
    cube = noise.reshape(64, 16, 128) - 0.5
    for axis in range(3):
        a, b = np.take(cube, range(1, cube.shape[axis]), axis), np.take(cube, range(cube.shape[axis] - 1), axis)
        assert abs((a * b).mean() * 12) < 4 / np.sqrt(a.size)


def test_equal_noise_far_apart_in_the_seed_is_not_produced_by_string_joining():
    assert not np.array_equal(noise_keys(1, 23, ["x"], 1), noise_keys(12, 3, ["x"], 1))


def test_log_probs_are_over_ids_that_may_be_sampled_at_the_temperature():
    logits = torch.tensor([[1.0, float("-inf"), 2.0, -1.0]], dtype=torch.bfloat16)
    got = log_probs(logits, 0.5)
    kept = torch.tensor([1.0, 2.0, -1.0]) / 0.5
    assert got.dtype == torch.float32
    assert got[0, 1] == float("-inf")
    torch.testing.assert_close(got[0, [0, 2, 3]], kept - kept.logsumexp(0))


def test_draws_follow_the_distribution():
    target = torch.tensor([0.5, 0.0, 0.2, 0.25, 0.05])
    noise = uniforms(noise_keys(0, 0, ["p"], 40_000)[0], 0, 1)
    ids = draw(target.log()[None], noise.T)[0]
    freq = torch.bincount(ids, minlength=5) / len(ids)
    assert freq[1] == 0
    assert (freq - target).abs().max() < 0.01


def test_an_id_of_no_probability_is_never_drawn_even_at_the_ends_of_the_noise():
    logp = _probs(0.0, 0.3, 0.0, 0.7, 0.0)
    last = 1 - 2.0**-53
    third = float(torch.tensor(0.3).exp().log())  # the boundary itself, as fp32 holds it
    ids = draw(logp, torch.tensor([[0.0, last, third, 2.0**-60]], dtype=torch.float64))[0].tolist()
    assert ids[:2] == [1, 3]
    assert set(ids) <= {1, 3}


def test_a_draw_needs_no_normalised_distribution():
    noise = torch.tensor([[0.1, 0.74, 0.76]], dtype=torch.float64)
    assert draw(_probs(0.3, 0.0, 0.1), noise).tolist() == [[0, 0, 2]]


def test_logits_that_are_not_finite_give_an_id_inside_the_vocabulary():
    ids = draw(torch.full((1, 4), float("nan")), torch.tensor([[0.5]], dtype=torch.float64))
    assert 0 <= int(ids) < 4


def test_top_k_keeps_the_most_likely_ids_and_ties_with_the_last():
    assert cut(_probs(0.1, 0.4, 0.3, 0.2), 2, 1.0).isfinite().tolist() == [[False, True, True, False]]
    assert cut(_probs(0.2, 0.4, 0.2, 0.2), 2, 1.0).isfinite().all()
    assert cut(_probs(0.1, 0.9), 7, 1.0).isfinite().all()


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.4, [1]), (0.41, [1, 2]), (0.69, [1, 2]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3]), (1e-9, [1])],
)
def test_top_p_keeps_the_fewest_ids_that_reach_it(top_p, kept):
    logp = torch.log_softmax(_probs(0.1, 0.4, 0.3, 0.2).double(), -1)
    assert cut(logp, 0, top_p)[0].isfinite().nonzero().squeeze(1).tolist() == kept


def test_the_nucleus_is_taken_after_top_k_of_what_is_left():
    # of 0.5 and 0.3 the first is 0.625: enough for 0.6, though not of the whole
    assert cut(_probs(0.1, 0.5, 0.3, 0.1), 2, 0.6)[0].isfinite().tolist() == [False, True, False, False]


def test_rows_are_cut_independently():
    rows = torch.cat([_probs(0.7, 0.2, 0.1), _probs(0.1, 0.2, 0.7)])
    assert cut(rows, 1, 1.0).isfinite().tolist() == [[True, False, False], [False, False, True]]
