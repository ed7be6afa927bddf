"""The actor: updates do not depend on the split, two-pass losses are exact, and passes left out change no number."""

from __future__ import annotations

import pytest
import torch

from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.batch import Batch
from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.local import LocalEngine
from rlvlm.errors import EngineError
from rlvlm.roles.actor import Actor, logp_of
from rlvlm.roles.config import ActorConfig
from rlvlm.roles.reference import Reference
from tests import tiny

RESPONSES = [[3, 6, 2, 4], [5, 1, 3, 3], [4, 4, 2, 6]]


def actor(config: AlgorithmConfig | None = None, *, prox_from_logp: bool = False, **settings) -> Actor:
    engine = LocalEngine("cpu")
    settings.setdefault("optimizer", OptimizerConfig(lr=1e-3))
    actor_config = ActorConfig(**settings)
    engine.prepare(tiny.policy("llava"), actor_config.optimizer, 100)
    return Actor(engine, Algorithm(config), actor_config, prox_from_logp=prox_from_logp)


def scored(of: Actor, drift: float = 0.0) -> Batch:
    """Answers with rewards, whose ``behav_logp`` is the policy's own, up to ``drift``."""
    policy = of.engine.policy
    asked = tiny.prompts(policy, [[(20, 20)], [], [(9, 30), (20, 20)]])
    batch = tiny.samples(policy, asked, RESPONSES)
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(batch["loss_mask"].shape, generator=generator) * drift
    logp = logp_of(of.engine, batch, 10_000)
    last = batch["loss_mask"] * torch.arange(1, batch.n_tokens + 1)
    token_rewards = torch.zeros_like(logp)
    token_rewards[torch.arange(len(batch)), last.argmax(1)] = torch.rand(len(batch), generator=generator)
    return batch.with_(
        behav_logp=(logp + noise) * batch["loss_mask"],
        token_rewards=token_rewards,
        versions=torch.where(batch["loss_mask"], 0, -1).to(torch.int32),
        truncated=torch.zeros(len(batch), dtype=torch.bool),
    )


def run(config: AlgorithmConfig | None = None, *, drift: float = 0.0, prox: bool = True, **settings):
    made = actor(config, prox_from_logp=not prox, **settings)
    batch = scored(made, drift)
    if prox:
        batch = made.compute_logp(batch)
    batch = made.algorithm.estimate_advantages(batch)
    metrics = made.update(batch)
    return metrics, torch.cat([value.flatten() for _, value in made.weights()]), made


@pytest.mark.parametrize(
    "config",
    [
        AlgorithmConfig(regularizers={"entropy": 0.01}),
        AlgorithmConfig(policy_loss="gspo", aggregation="seq-mean-token-mean"),
        AlgorithmConfig(policy_loss="decoupled_clip"),
        AlgorithmConfig(policy_loss={"name": "clip_cov", "share": 0.2}),
        AlgorithmConfig(policy_loss={"name": "kl_cov", "share": 0.2}),
    ],
    ids=["ppo_clip", "gspo", "decoupled_clip", "clip_cov", "kl_cov"],
)
def test_an_update_is_the_same_under_any_split_into_micro_batches(config):
    sgd_like = OptimizerConfig(lr=1e-3, betas=[0.0, 0.0], eps=1.0, weight_decay=0.0, max_grad_norm=None)
    whole_metrics, whole, made = run(config, drift=0.3, token_budget=100_000, optimizer=sgd_like)
    start = torch.cat([value.flatten() for _, value in actor().weights()])
    for budget in (1, 60):
        metrics, split, _ = run(config, drift=0.3, token_budget=budget, optimizer=sgd_like)
        assert (split - whole).norm() / (whole - start).norm() < 1e-4
        assert metrics.keys() == whole_metrics.keys()
        for name, value in whole_metrics.items():
            assert metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert made.version == 1


def test_epochs_times_mini_batches_is_the_number_of_optimiser_steps():
    _, _, made = run(epochs=2, mini_batches=3)
    assert made.engine.steps == 6
    assert made.version == 1


def test_an_adaptive_kl_survives_a_batch_in_which_no_token_counts():
    node = {"weight": 0.2, "controller": "adaptive"}
    made = actor(AlgorithmConfig(regularizers={"kl_to_reference": node}, mask_truncated=True))
    batch = made.compute_logp(scored(made))
    batch = batch.with_(ref_logp=batch["prox_logp"], truncated=torch.ones(len(batch), dtype=torch.bool))
    made.update(made.algorithm.estimate_advantages(batch))
    assert made.algorithm.state_dict()["weights"] == {"kl_to_reference": 0.2}


def test_prox_logp_from_the_training_pass_gives_the_same_update_as_its_own_pass():
    for config in (None, AlgorithmConfig(policy_loss="decoupled_clip")):
        own_metrics, own, _ = run(config, drift=0.3, prox=True)
        from_logp_metrics, from_logp, _ = run(config, drift=0.3, prox=False)
        assert torch.allclose(own, from_logp, atol=1e-7)
        for name, value in own_metrics.items():
            assert from_logp_metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_a_reference_pass_of_weight_zero_changes_no_number():
    made = actor()
    reference_engine = LocalEngine("cpu")
    reference_engine.prepare(tiny.policy("llava"), None, 0)
    batch = made.algorithm.estimate_advantages(
        Reference(reference_engine).compute_logp(made.compute_logp(scored(made)))
    )
    with_reference = actor(AlgorithmConfig(regularizers={"kl_to_reference": 0.0}))
    with_reference.update(batch)
    made.update(batch)
    pairs = zip(made.weights(), with_reference.weights(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def test_parity_compares_only_the_first_optimiser_step_with_the_engine():
    metrics, _, _ = run(epochs=3, optimizer=OptimizerConfig(lr=0.05))
    assert metrics["mean/parity/logp_abs_diff"] < 1e-5, "later epochs have moved on and must not count"
    assert run(drift=0.3)[0]["mean/parity/logp_abs_diff"] == pytest.approx(0.3 * 0.8, rel=0.3)


def test_the_reference_with_the_adapter_off_is_the_model_before_training():
    from rlvlm.models.config import LoraConfig

    engine = LocalEngine("cpu")
    policy = tiny.policy("llava")
    plain = LocalEngine("cpu")
    plain.prepare(tiny.policy("llava"), None, 0)
    policy.add_adapters(LoraConfig(rank=4))
    engine.prepare(policy, OptimizerConfig(lr=0.05), 10)
    made = Actor(engine, Algorithm(), ActorConfig(optimizer=OptimizerConfig(lr=0.05)))
    batch = made.algorithm.estimate_advantages(made.compute_logp(scored(made)))
    made.update(batch)
    moved = made.compute_logp(batch)["prox_logp"]
    reference = Reference(engine, adapter_off=True).compute_logp(batch)["ref_logp"]
    assert torch.allclose(reference, logp_of(plain, batch, 10_000), atol=1e-6)
    assert (moved - reference).abs().max() > 1e-3


def test_a_reference_that_would_move_with_the_policy_or_be_the_policy_is_refused():
    made = actor()
    with pytest.raises(EngineError, match="given an engine that trains, so that it would move with the policy"):
        Reference(made.engine)
    with pytest.raises(EngineError, match="the policy has no adapters, so that it would be the policy itself"):
        Reference(made.engine, adapter_off=True)
