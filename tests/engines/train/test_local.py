"""The local engine: one step changes the weights, accumulation is exact, saved state goes on as if never stopped."""

from __future__ import annotations

import pytest
import torch

from rlvlm.engines.train.base import TRAIN_ENGINES
from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.local import LocalEngine
from rlvlm.errors import EngineError, RegistryError, TrainingStopped
from tests import tiny


def engine(seed: int = 0, **options) -> LocalEngine:
    made = LocalEngine("cpu")
    made.prepare(tiny.policy("llava", seed=seed), OptimizerConfig(lr=1e-3, **options), total_steps=10)
    return made


def batch_for(made: LocalEngine, seed: int = 0):
    asked = tiny.prompts(made.policy, [[(20, 20)], []])
    return tiny.samples(made.policy, asked, [[3, 5], [4, 2]], seed=seed)


def weights(made: LocalEngine) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in made.named_weights()}


def one_step(made: LocalEngine, seed: int = 0) -> None:
    batch = batch_for(made, seed)
    made.backward(-made.forward(batch, grad=True).logp.sum() / batch["loss_mask"].sum())
    made.step()


def test_one_step_changes_the_weights_that_the_forward_uses():
    made = engine()
    batch = batch_for(made)
    before = made.forward(batch, grad=False).logp
    one_step(made)
    after = made.forward(batch, grad=False).logp
    assert (after - before).abs().max() > 1e-3
    assert after.sum() > before.sum(), "the step follows the gradient"


def test_without_grad_nothing_is_kept_for_a_backward():
    made = engine()
    assert not made.forward(batch_for(made), grad=False).logp.requires_grad
    assert made.forward(batch_for(made), grad=True).logp.requires_grad


def test_gradients_of_micro_batches_add_up_to_those_of_the_whole():
    whole, split = engine(), engine()
    batch = batch_for(whole)
    whole.backward(whole.forward(batch, grad=True).logp.sum())
    for budget in (1, 40):
        split.policy.zero_grad()
        pieces = split.micro_batches(batch, budget)
        for _, piece in pieces:
            split.backward(split.forward(piece, grad=True).logp.sum())
        pairs = list(zip(whole.policy.parameters(), split.policy.parameters(), strict=True))
        gap = sum((a.grad - b.grad).square().sum() for a, b in pairs if a.grad is not None)
        size = sum(a.grad.square().sum() for a, _ in pairs if a.grad is not None)
        assert (gap / size).sqrt() < 1e-5


def test_a_saved_engine_goes_on_exactly_as_one_that_was_never_stopped(tmp_path):
    straight = engine()
    for seed in range(4):
        one_step(straight, seed)
    stopped = engine()
    for seed in range(2):
        one_step(stopped, seed)
    stopped.save(tmp_path)
    resumed = engine(seed=7)
    resumed.load(tmp_path)
    for seed in range(2, 4):
        one_step(resumed, seed)
    expected = weights(straight)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed).items())
    assert resumed.steps == straight.steps == 4


def test_a_checkpoint_of_other_parameters_is_refused(tmp_path):
    engine().save(tmp_path)
    other = LocalEngine("cpu")
    policy = tiny.policy("llava")
    policy.set_trainable(["connector"])
    other.prepare(policy, OptimizerConfig(), 1)
    with pytest.raises(EngineError, match="trains other parameters than this run"):
        other.load(tmp_path)


def test_a_gradient_that_is_not_finite_stops_and_leaves_the_weights():
    made = engine()
    before = weights(made)
    made.backward(made.forward(batch_for(made), grad=True).logp.sum() * float("nan"))
    with pytest.raises(TrainingStopped, match="gradient norm is nan at optimiser step 0"):
        made.step()
    assert all(torch.equal(value, before[name]) for name, value in weights(made).items())


def test_only_trainable_parts_change():
    made = LocalEngine("cpu")
    policy = tiny.policy("llava")
    policy.set_trainable(["connector"])
    made.prepare(policy, OptimizerConfig(lr=1e-2), 1)
    before = weights(made)
    one_step(made)
    changed = {
        made.policy.part_of(f"model.{name}")
        for name, value in weights(made).items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"connector"}


def test_asking_for_what_was_not_prepared_says_so():
    bare = LocalEngine("cpu")
    with pytest.raises(EngineError, match="call prepare first"):
        bare.policy  # noqa: B018
    bare.prepare(tiny.policy("llava"), None, 0)
    with pytest.raises(EngineError, match="prepared without an optimiser"):
        bare.step()


def test_the_engine_is_built_by_name_and_wrong_options_are_named():
    assert isinstance(TRAIN_ENGINES.build({"name": "local", "precision": "bfloat16"})({}), LocalEngine)
    with pytest.raises(RegistryError, match="no option 'precison' \\(did you mean 'precision'"):
        TRAIN_ENGINES.build({"name": "local", "precison": "bfloat16"})


def test_bfloat16_autocast_keeps_weights_and_gradients_in_float32():
    made = LocalEngine("cpu", precision="bfloat16")
    made.prepare(tiny.policy("llava"), OptimizerConfig(), 1)
    exact = engine()
    batch = batch_for(made)
    outputs = made.forward(batch, grad=True)
    assert outputs.logp.dtype == torch.float32
    assert (outputs.logp - exact.forward(batch, grad=False).logp).abs().max() < 0.2
    made.backward(outputs.logp.sum())
    assert all(p.grad.dtype == p.dtype == torch.float32 for p in made.policy.parameters() if p.grad is not None)


def test_offload_and_onload_keep_the_numbers():
    made = engine()
    one_step(made)
    before = made.forward(batch_for(made), grad=False).logp
    made.offload()
    made.onload()
    assert torch.equal(made.forward(batch_for(made), grad=False).logp, before)
