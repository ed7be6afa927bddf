"""The chunked head against full float64 logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlvlm.models.head import next_token_logits, token_logp
from tests.close import assert_near


def full(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: Tensor | None = None, banned: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """The same by plain autograd over all logits."""
    logits = hidden @ weight.T
    if temperature is not None:
        logits = logits / temperature[:, None]
    if banned is not None:
        logits = logits.index_fill(1, torch.tensor(banned, dtype=torch.int64), -1e30)
    logp = logits.log_softmax(-1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1)


def case(n: int, width: int, vocabulary: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) * 0.5
    targets = torch.randint(0, vocabulary, (n,), generator=generator)
    heat = torch.rand(n, generator=generator) + 0.5
    return hidden, weight, targets, heat


def gradients(outputs: tuple[Tensor, Tensor], weights: tuple[float, float], *leaves: Tensor) -> list[Tensor]:
    mix = torch.linspace(0.5, 2, len(outputs[0]), dtype=outputs[0].dtype)
    loss = weights[0] * (outputs[0] * mix).sum() + weights[1] * (outputs[1] * mix.flip(0)).sum()
    return list(torch.autograd.grad(loss, leaves))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 9),
    vocabulary=st.integers(2, 40),
    chunk=st.integers(1, 200),
    heated=st.booleans(),
    bans=st.booleans(),
    weights=st.sampled_from([(1.0, 0.0), (0.0, 1.0), (1.0, -0.7)]),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_those_of_full_float64_logits(
    n: int, vocabulary: int, chunk: int, heated: bool, bans: bool, weights: tuple[float, float], seed: int
) -> None:
    hidden, weight, targets, heat = case(n, 6, vocabulary, seed)
    temperature = heat if heated else None
    banned = [int(t) for t in (0, vocabulary // 2) if t not in targets] if bans else []
    leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    exact = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    ours = token_logp(*leaves, targets, temperature, banned, chunk=chunk)
    truth = full(*exact, targets, None if temperature is None else temperature.double(), banned)
    for a, b in zip(ours, truth, strict=True):
        assert_near(a.double(), b, within=2e-5)
    for a, b in zip(gradients(ours, weights, *leaves), gradients(truth, weights, *exact), strict=True):
        assert_near(a.double(), b, within=1e-4)


@pytest.mark.parametrize("chunk", [1, 700, 1_500, 5_000, 10**7])
def test_no_number_depends_on_the_size_of_the_tiles(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvlm.models.head._LEAST_WIDTH", 64)
    hidden, weight, targets, heat = case(23, 16, 501)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    banned = [t for t in (3, 77, 500) if t not in targets]
    one = token_logp(*leaves, targets, heat, banned)
    other = token_logp(*leaves, targets, heat, banned, chunk=chunk)
    for a, b in zip(
        (*one, *gradients(one, (1, 0.5), *leaves)), (*other, *gradients(other, (1, 0.5), *leaves)), strict=True
    ):
        assert_near(a, b)


def test_extreme_logits_stay_finite() -> None:
    hidden, weight, targets, _ = case(8, 4, 50)
    leaves = [(hidden * 1e3).requires_grad_(), weight.requires_grad_()]
    outputs = token_logp(*leaves, targets, banned=[7])
    assert all(value.isfinite().all() for value in (*outputs, *gradients(outputs, (1, 1), *leaves)))
    assert (outputs[0] <= 0).all()
    assert (outputs[1] >= -1e-4).all()


def test_no_tokens_still_give_the_weight_a_gradient_of_zeros() -> None:
    hidden, weight, targets, _ = case(0, 4, 50)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    logp, entropy = token_logp(*leaves, targets)
    assert logp.shape == entropy.shape == (0,)
    (logp.sum() + entropy.sum()).backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_a_frozen_weight_takes_no_gradient_and_hidden_states_the_same() -> None:
    hidden, weight, targets, _ = case(7, 8, 90)
    both = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    wanted = gradients(token_logp(*both, targets), (1, 0.3), *both)[0]
    alone = hidden.clone().requires_grad_()
    got = gradients(token_logp(alone, weight, targets), (1, 0.3), alone)[0]
    torch.testing.assert_close(got, wanted)


def test_bf16_is_as_near_to_the_truth_as_full_bf16_logits_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvlm.models.head._LEAST_WIDTH", 64)
    hidden, weight, targets, _ = case(64, 48, 300)
    exact = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    low = [hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_()]
    truth = full(*exact, targets)
    wanted = (*truth, *gradients(truth, (1, 0.3), *exact))
    logits = (low[0] @ low[1].T).float()
    logp = logits.log_softmax(-1)
    plain = (logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1))
    theirs = (*plain, *gradients(plain, (1, 0.3), *low))
    for chunk in (10**7, 64 * 64, 16 * 64):
        outputs = token_logp(*low, targets, chunk=chunk)
        ours = (*outputs, *gradients(outputs, (1, 0.3), *low))
        assert outputs[0].dtype == torch.float32
        for a, b, t in zip(ours, theirs, wanted, strict=True):
            assert (a.double() - t).norm() <= 1.5 * (b.double() - t).norm()


def test_autocast_computes_low_and_gives_gradients_in_the_weights_own_type() -> None:
    hidden, weight, targets, _ = case(12, 16, 60)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    with torch.autocast("cpu", torch.bfloat16):
        outputs = token_logp(*leaves, targets)
    truth = full(hidden.double(), weight.double(), targets)
    torch.testing.assert_close(outputs[0].double(), truth[0], atol=0.1, rtol=0.1)
    assert all(grad.dtype == torch.float32 for grad in gradients(outputs, (1, 1), *leaves))


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any new tensor held."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor):
                self.numbers = max(self.numbers, value.untyped_storage().nbytes() // value.element_size())
        return out


@pytest.mark.parametrize("vocabulary", [4_000, 16_000])
def test_no_tensor_grows_with_the_vocabulary_beyond_a_chunk_but_the_weights_gradient(vocabulary: int) -> None:
    hidden, weight, targets, _ = case(256, 8, vocabulary)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    chunk = 256 * 1024
    with Largest() as forward:
        outputs = token_logp(*leaves, targets, chunk=chunk)
    assert forward.numbers <= max(chunk, weight.numel())
    with Largest() as backward:
        (outputs[0].sum() + outputs[1].sum()).backward()
    assert backward.numbers <= max(chunk, weight.numel())
    assert chunk < 256 * vocabulary


def test_next_token_logits_leave_out_banned_ids() -> None:
    hidden, weight, _, _ = case(3, 8, 20)
    logits = next_token_logits(hidden, weight, torch.tensor([4, 5]))
    assert logits[:, 4:6].isneginf().all()
    torch.testing.assert_close(logits[:, :4], (hidden @ weight.T)[:, :4])
