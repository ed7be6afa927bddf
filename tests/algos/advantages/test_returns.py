"""Returns against loops over time, on masks of action | observation | action."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlvlm.algos.advantages.returns import gae, reinforce_plus_plus, remax
from rlvlm.errors import FieldError
from tests.algos.drawn import draw

NAN = float("nan")


def gae_by_loop(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    out = torch.zeros_like(values)
    for row in range(len(values)):
        next_value, next_advantage = 0.0, 0.0
        for t in reversed(range(values.shape[1])):
            if mask[row, t]:
                delta = rewards[row, t] + gamma * next_value - values[row, t]
                next_advantage = delta + gamma * lam * next_advantage
                next_value, out[row, t] = values[row, t], next_advantage
    return out


def returns_by_loop(rewards: Tensor, mask: Tensor, gamma: float, reset: bool = False) -> Tensor:
    out = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        later = 0.0
        for t in reversed(range(rewards.shape[1])):
            if mask[row, t]:
                later = rewards[row, t] + gamma * later
                out[row, t] = later
            elif reset:
                later = 0.0
    return out


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (1.0, 0.0), (0.0, 0.7), (0.3, 0.2)])
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 1100])
def test_gae_equals_the_loop_over_time(gamma: float, lam: float, length: int) -> None:
    fields = draw(length, rows=5, length=max(length, 4))
    mask, rewards, values = (fields[name][:, :length] for name in ("loss_mask", "token_rewards", "values"))
    expected = gae_by_loop(rewards, values, mask, gamma, lam)
    got = gae(rewards, values, mask, gamma=gamma, lam=lam, whiten_tokens=False)
    assert torch.allclose(got.advantages, expected, rtol=0, atol=1e-10)
    assert torch.allclose(got.returns, torch.where(mask, expected + values, 0.0), rtol=0, atol=1e-10)


def test_a_mask_without_gaps_and_one_with_gaps_of_the_same_tokens_agree() -> None:
    fields = draw(1, rows=4, length=70)
    dense = torch.ones(4, 70, dtype=torch.bool)
    spread = torch.zeros(4, 140, dtype=torch.bool)
    spread[:, ::2] = True

    def stretched(values: Tensor) -> Tensor:
        return torch.full((4, 140), NAN, dtype=values.dtype).masked_scatter(spread, values)

    one = gae(fields["token_rewards"], fields["values"], dense, gamma=0.9, lam=0.8)
    two = gae(stretched(fields["token_rewards"]), stretched(fields["values"]), spread, gamma=0.9, lam=0.8)
    assert torch.allclose(two.advantages[spread].view(4, 70), one.advantages, atol=1e-10)
    assert torch.allclose(two.returns[spread].view(4, 70), one.returns, atol=1e-10)


def test_gae_in_float32_stays_near_float64_over_thousands_of_tokens() -> None:
    fields = draw(2, rows=3, length=5000)
    exact = gae(fields["token_rewards"], fields["values"], fields["loss_mask"], gamma=0.999, lam=0.99)
    single = gae(fields["token_rewards"].float(), fields["values"].float(), fields["loss_mask"], gamma=0.999, lam=0.99)
    assert single.returns.dtype == torch.float32
    assert (single.returns - exact.returns).abs().max() < 1e-3
    assert (single.advantages - exact.advantages).abs().max() < 1e-4


@pytest.mark.parametrize("block", [1, 20, 1 << 18])
def test_gae_does_not_depend_on_the_blocks_of_rows(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    fields = draw(4, rows=11, length=13)
    whole = gae(fields["token_rewards"], fields["values"], fields["loss_mask"], gamma=0.9, lam=0.9)
    monkeypatch.setattr("rlvlm.algos.numerics._BLOCK", block)
    blocks = gae(fields["token_rewards"], fields["values"], fields["loss_mask"], gamma=0.9, lam=0.9)
    assert torch.allclose(whole.advantages, blocks.advantages, atol=1e-12)


def test_the_reward_after_an_observation_reaches_the_action_before_it() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 0, 1, 0]]).bool()
    rewards = torch.tensor([[9.0, 0, 0, 9, 9, 1, 9]], dtype=torch.float64)
    got = gae(rewards, torch.zeros(1, 7, dtype=torch.float64), mask, gamma=0.5, lam=1.0, whiten_tokens=False)
    assert got.advantages.tolist() == [[0, 0.25, 0.5, 0, 0, 1, 0]]
    assert reinforce_plus_plus(rewards, mask, gamma=0.5).returns.tolist() == [[0, 0.25, 0.5, 0, 0, 1, 0]]


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("masked", ["carry", "reset"])
def test_reinforce_plus_plus_equals_the_loop_over_time(gamma: float, masked: str) -> None:
    fields = draw(5, rows=6, length=50)
    got = reinforce_plus_plus(fields["token_rewards"], fields["loss_mask"], gamma=gamma, masked=masked)  # type: ignore[arg-type]
    expected = returns_by_loop(fields["token_rewards"], fields["loss_mask"], gamma, reset=masked == "reset")
    assert torch.allclose(got.returns, expected, atol=1e-12)
    valid = expected[fields["loss_mask"]]
    whitened = (valid - valid.mean()) / (valid.var() + 1e-8).sqrt()
    assert torch.allclose(got.advantages[fields["loss_mask"]], whitened, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.7, 1e6])
def test_equal_returns_are_whitened_to_exactly_zero(dtype: torch.dtype, value: float) -> None:
    mask = torch.rand(9, 12, generator=torch.Generator().manual_seed(0)) > 0.3
    mask[:, 5] = True
    places = torch.arange(12).expand(9, 12)
    last = torch.where(mask, places, -1).amax(-1, keepdim=True)
    rewards = torch.zeros(9, 12, dtype=dtype).scatter(1, last, value)
    assert not reinforce_plus_plus(rewards, mask).advantages.any()


def test_remax_subtracts_the_reward_of_the_greedy_answer_to_the_same_prompt() -> None:
    mask = torch.tensor([[1, 0, 1], [0, 1, 1]]).bool()
    rewards = torch.tensor([[0.5, 7, 1], [7, 0, 2]])
    got = remax(rewards, torch.tensor([10.0, 0.25, 20.0]), torch.tensor([1, 0]), mask)
    assert got.returns.tolist() == [[1.5, 0, 1], [0, 2, 2]]
    assert got.advantages.tolist() == [[1.25, 0, 0.75], [0, -8, -8]]


def test_greedy_rewards_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(FieldError, match=r"'greedy_rewards' has shape \[P\], one entry for each prompt, got \[2, 1\]"):
        remax(torch.zeros(2, 3), torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64), torch.ones(2, 3))
