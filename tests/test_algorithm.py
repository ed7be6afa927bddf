from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos import (
    ADVANTAGES,
    AGGREGATIONS,
    POLICY_LOSSES,
    REGULARIZERS,
    AdvantageEstimate,
    TokenLoss,
    register_advantage,
    register_aggregation,
    register_policy_loss,
    register_regularizer,
)
from rlvlm.batch import Batch
from rlvlm.errors import ConfigError, FieldError, RegistryError
from rlvlm.tracking.log import add_shares
from tests.algos.drawn import draw

FIELDS = (
    "loss_mask",
    "group_ids",
    "input_ids",
    "token_rewards",
    "values",
    "prox_logp",
    "behav_logp",
    "ref_logp",
    "truncated",
)


@dataclass
class Pass:
    logp: Tensor
    entropy: Tensor | None = None
    value_preds: Tensor | None = None

    def rows(self, rows: Tensor) -> Pass:
        return Pass(*(None if value is None else value[rows] for value in vars(self).values()))  # type: ignore[arg-type]


def batch_and_pass(seed: int = 0, rows: int = 9) -> tuple[Batch, Pass]:
    """A batch of fp32 fields and the outputs of a pass over it, which want gradients."""
    x = draw(seed, rows=rows, dtype=torch.float32)
    x["group_ids"] = x["group_ids"].unique(return_inverse=True)[1]
    tensors: dict[Any, Tensor] = {name: x[name] for name in FIELDS}
    tensors.update({("scores_by_rule", name): scores for name, scores in x["scores_by_rule"].items()})
    leaves = (x[name].clone().requires_grad_() for name in ("logp", "entropy", "value_preds"))
    return Batch({**tensors, "scores": x["scores"]}), Pass(*leaves)


def algorithm(**config: Any) -> Algorithm:
    return Algorithm(AlgorithmConfig(**config))


EVERYTHING: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"advantage": {"name": "gae", "lam": 0.95}, "value_loss": {"name": "clipped", "weight": 0.5}},
    "decoupled": {"policy_loss": "decoupled_clip", "regularizers": {"entropy": 0.01}},
    "gspo": {
        "policy_loss": "gspo",
        "aggregation": "seq-mean-token-mean",
        "regularizers": {"kl_to_reference": 0.1, "length": 0.5},
    },
    "corrected": {"correction": ["tis", {"name": "ratio_mask", "level": "token", "low": 0.5, "high": 1.5}]},
    "prompts": {"aggregation": "prompt-mean", "correction": {"name": "rejection", "level": "token", "high": 1.3}},
    "shaped": {
        "kl_in_reward": 0.05,
        "regularizers": {"overlong": {"weight": 1.0, "max_length": 6, "buffer": 3}, "ngram_repetition": 0.3},
    },
    "truncated": {"mask_truncated": True, "aggregation": {"name": "seq-mean-token-sum-norm", "length": 9}},
    "geometric": {"policy_loss": "geo_mean", "aggregation": "seq-mean-token-mean", "advantage": "opo"},
}
every_mix = pytest.mark.parametrize("mix", EVERYTHING)


def prepared(mix: str, seed: int = 0) -> tuple[Algorithm, Batch, Pass, dict[str, float]]:
    made, (batch, outputs) = algorithm(**EVERYTHING[mix]), batch_and_pass(seed)
    batch = made.estimate_advantages(batch)
    return made, batch, outputs, made.denominators(batch)


def gradients(loss: Tensor, outputs: Pass) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(vars(outputs).values()), allow_unused=True))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ needs


def test_needs_are_what_the_parts_read_and_others_write() -> None:
    plain = algorithm()
    assert plain.needs == {"loss_mask", "group_ids", "rewards", "prox_logp"}
    assert plain.reads_before_update == {"loss_mask", "group_ids", "rewards"}
    assert plain.reads_outputs == {"logp"}
    assert not plain.needs_critic
    assert plain.loss_scope == "token"


@pytest.mark.parametrize(
    ("config", "more", "early"),
    [
        ({"policy_loss": "reinforce"}, set(), set()),
        ({"policy_loss": "decoupled_clip"}, {"prox_logp", "behav_logp"}, set()),
        ({"correction": "tis"}, {"prox_logp", "behav_logp"}, {"prox_logp", "behav_logp"}),
        ({"kl_in_reward": 0.1}, {"prox_logp", "ref_logp", "token_rewards"}, {"prox_logp", "ref_logp", "token_rewards"}),
        ({"regularizers": {"kl_to_reference": 0.0}}, {"prox_logp", "ref_logp"}, set()),
        (
            {"regularizers": {"ngram_repetition": 0.1}},
            {"prox_logp", "input_ids", "token_rewards"},
            {"input_ids", "token_rewards"},
        ),
        ({"mask_truncated": True}, {"prox_logp", "truncated"}, {"truncated"}),
        ({"filters": ["length"]}, {"prox_logp"}, set()),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_needs_follow_the_parts_even_at_weight_zero(config: dict[str, Any], more: set[str], early: set[str]) -> None:
    made = algorithm(**config)
    always = {"loss_mask", "group_ids", "rewards"}
    assert made.needs == always | more
    assert made.reads_before_update == always | early


def test_rules_are_read_as_scores_and_greedy_answers_are_asked_for() -> None:
    assert "scores" in algorithm(advantage="gdpo").needs
    assert "greedy_rewards" in algorithm(advantage="remax").needs


def test_a_critic_is_needed_where_values_are_read() -> None:
    made = algorithm(**EVERYTHING["ppo"])
    assert made.needs_critic
    assert "values" in made.reads_before_update
    assert "value_preds" in made.reads_outputs


@pytest.mark.parametrize(("loss", "scope"), [("gspo", "sequence"), ("clip_cov", "minibatch"), ("sapo", "token")])
def test_the_scope_is_that_of_the_loss(loss: str, scope: str) -> None:
    assert algorithm(policy_loss=loss).loss_scope == scope


# --------------------------------------------------------------------------------------- before the update


@every_mix
def test_advantages_are_written_zero_outside_the_mask_and_the_argument_stays(mix: str) -> None:
    made, (batch, _) = algorithm(**EVERYTHING[mix]), batch_and_pass()
    keys = list(batch.keys())
    out = made.estimate_advantages(batch)
    assert list(batch.keys()) == keys
    assert "metrics" not in batch.meta
    assert out["advantages"].any()
    assert not out["advantages"][~batch["loss_mask"]].any()
    assert all(isinstance(value, float) and math.isfinite(value) for value in out.meta["metrics"].values())


def test_a_penalty_comes_off_the_rewards_before_any_estimator() -> None:
    batch, _ = batch_and_pass()
    out = algorithm(regularizers={"overlong": {"weight": 2.0, "max_length": 5, "buffer": 5}}).estimate_advantages(batch)
    penalty = (batch["loss_mask"].sum(-1) / 5).clamp(max=1)
    assert torch.allclose(batch["rewards"] - out["rewards"], 2 * penalty, atol=1e-6)
    assert out.meta["metrics"]["mean/overlong"] == pytest.approx(float(penalty.mean()), abs=1e-6)


def test_the_kl_in_the_reward_comes_off_each_token() -> None:
    batch, _ = batch_and_pass()
    out = algorithm(kl_in_reward={"weight": 0.5, "estimator": "k2"}).estimate_advantages(batch)
    kl = 0.5 * (batch["prox_logp"] - batch["ref_logp"]) ** 2 * batch["loss_mask"]
    assert torch.allclose(batch["token_rewards"] - out["token_rewards"], 0.5 * kl, atol=1e-6)


def test_corrections_multiply_their_weights_and_intersect_their_masks() -> None:
    batch, _ = batch_and_pass()
    first, second = (
        {"name": "icepop", "low": 0.8, "high": 1.3},
        {"name": "ratio_mask", "level": "token", "low": 0.6, "high": 1.2},
    )
    both = algorithm(correction=[first, second]).estimate_advantages(batch)
    ratio = (batch["prox_logp"] - batch["behav_logp"]).exp()
    mask = batch["loss_mask"]
    assert torch.allclose(both["correction_weights"], torch.where(mask & (ratio >= 0.8) & (ratio <= 1.3), ratio, 0.0))
    assert both["correction_mask"].equal(mask & (ratio >= 0.6) & (ratio <= 1.2))
    assert "max/correction/ratio" in both.meta["metrics"]
    assert "mean/correction/icepop/clamped" in both.meta["metrics"]


def test_filters_drop_whole_groups_and_report_them() -> None:
    batch, _ = batch_and_pass()
    tokens = torch.zeros_like(batch["token_rewards"])
    tokens[:, 1] = (batch["group_ids"] == 1).float() * torch.arange(9)
    out = algorithm(filters=["reward_spread", {"name": "length", "longest": 100.0}]).filter(
        batch.with_(token_rewards=tokens)
    )
    assert set(out["group_ids"].tolist()) == {1}
    assert [entry["group_id"] for entry in out.meta["filtered"]] == [0, 2]
    assert {entry["filter"] for entry in out.meta["filtered"]} == {"reward_spread"}
    sizes = batch["group_ids"].bincount().tolist()
    assert [entry["samples"] for entry in out.meta["filtered"]] == [sizes[0], sizes[2]]
    assert out.meta["metrics"]["sum/filter/reward_spread/dropped_groups"] == 2
    assert out.meta["metrics"]["sum/filter/length/dropped_groups"] == 0


def test_a_filter_may_drop_every_group() -> None:
    batch, _ = batch_and_pass()
    assert len(algorithm(filters=[{"name": "length", "shortest": 1000.0}]).filter(batch)) == 0


# ----------------------------------------------------------------------------------------------- the loss


@every_mix
@pytest.mark.parametrize("seed", range(2))
def test_micro_batches_and_ranks_add_up_to_the_mini_batch_in_loss_gradient_and_metrics(mix: str, seed: int) -> None:
    made, batch, outputs, denominators = prepared(mix, seed)
    whole, metrics = made.loss(outputs, batch, denominators)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    shares = [made.loss(outputs.rows(rows), batch.index(rows), denominators) for rows in order.split([4, 1, 2, 2])]
    total = torch.stack([share for share, _ in shares]).sum()
    assert float(total.detach()) == pytest.approx(float(whole.detach()), rel=1e-5, abs=1e-6)
    for ours, expected in zip(gradients(total, outputs), gradients(whole, outputs), strict=True):
        assert (ours is None) == (expected is None)
        assert ours is None or torch.allclose(ours, expected, atol=1e-6)  # type: ignore[arg-type]
    joined = add_shares([metrics for _, metrics in shares])
    assert joined.keys() == metrics.keys()
    for key, value in metrics.items():
        assert float(joined[key]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), key


@every_mix
@pytest.mark.parametrize("block", [1, 9, 20])
def test_the_loss_does_not_depend_on_the_blocks_of_rows_that_a_cpu_takes(
    monkeypatch: pytest.MonkeyPatch, mix: str, block: int
) -> None:
    made, batch, outputs, denominators = prepared(mix)
    whole, metrics = made.loss(outputs, batch, denominators)
    expected = gradients(whole, outputs)
    monkeypatch.setattr("rlvlm.algos.numerics._BLOCK", block)
    blocks, joined = made.loss(outputs, batch, denominators)
    assert float(blocks.detach()) == pytest.approx(float(whole.detach()), rel=1e-5, abs=1e-6)
    for got, gradient in zip(gradients(blocks, outputs), expected, strict=True):
        assert (got is None) == (gradient is None)
        assert got is None or torch.allclose(got, gradient, atol=1e-6)  # type: ignore[arg-type]
    assert {key: float(value) for key, value in joined.items()} == pytest.approx(
        {key: float(value) for key, value in metrics.items()}, rel=1e-4, abs=1e-6
    )


def test_a_critic_of_its_own_is_trained_in_micro_batches_whatever_the_scope_of_the_policy_loss() -> None:
    made, (batch, outputs) = algorithm(policy_loss="kl_cov", value_loss="plain", advantage="gae"), batch_and_pass()
    batch = made.estimate_advantages(batch)
    denominators, rows = made.denominators(batch), torch.arange(9)
    whole, _ = made.critic_loss(outputs, batch, denominators)
    parts = [made.critic_loss(outputs.rows(r), batch.index(r), denominators)[0] for r in rows.split(4)]
    assert float(torch.stack(parts).sum().detach()) == pytest.approx(float(whole.detach()), rel=1e-5)


def test_denominators_of_ranks_add_up() -> None:
    made, batch, _, denominators = prepared("prompts")
    ranks = [made.denominators(batch.index(batch["group_ids"].eq(name).nonzero().flatten())) for name in range(3)]
    assert {key: sum(rank[key] for rank in ranks) for key in denominators} == denominators


@every_mix
@pytest.mark.parametrize("fill", [math.nan, math.inf])
def test_nothing_in_masked_places_reaches_loss_or_gradient(mix: str, fill: float) -> None:
    made, batch, outputs, denominators = prepared(mix)
    loss, metrics = made.loss(outputs, batch, denominators)
    mask = batch["loss_mask"]
    floats = ("prox_logp", "behav_logp", "ref_logp", "values", "advantages", "returns")
    dirty = batch.with_({name: torch.where(mask, batch[name], fill) for name in floats if name in batch})
    spoiled = Pass(*(torch.where(mask, v.detach(), fill).requires_grad_() for v in vars(outputs).values()))
    dirty_loss, dirty_metrics = made.loss(spoiled, dirty, denominators)
    assert dirty_loss == loss
    assert {key: float(v) for key, v in dirty_metrics.items()} == {key: float(v) for key, v in metrics.items()}
    for got, expected in zip(gradients(dirty_loss, spoiled), gradients(loss, outputs), strict=True):
        assert got is None or expected is None or got.equal(expected)


@every_mix
def test_advantages_are_estimated_without_a_look_at_masked_places(mix: str) -> None:
    made, (batch, _) = algorithm(**EVERYTHING[mix]), batch_and_pass()
    mask = batch["loss_mask"]
    floats = ("prox_logp", "behav_logp", "ref_logp", "values")
    dirty = batch.with_({name: torch.where(mask, batch[name], math.nan) for name in floats})
    assert made.estimate_advantages(dirty)["advantages"].equal(made.estimate_advantages(batch)["advantages"])


def test_the_loss_is_the_composition_by_hand() -> None:
    made, batch, outputs, denominators = prepared("gspo")
    mask = batch["loss_mask"]
    lengths = mask.sum(-1, keepdim=True).clamp_min(1)
    s = (((outputs.logp - batch["prox_logp"]) * mask).sum(-1, keepdim=True) / lengths).exp()
    advantages = batch["advantages"]
    policy = -torch.minimum(advantages * s, advantages * s.clamp(1 - 3e-4, 1 + 4e-4))
    weights = 1 + 0.5 * (denominators["tokens"] / denominators["sequences"] / lengths - 1)
    d = batch["ref_logp"] - outputs.logp
    token_loss = policy * weights + 0.1 * (d.exp() - d - 1)
    expected = ((token_loss * mask).sum(-1) / lengths[:, 0]).sum() / mask.any(-1).sum()
    loss, metrics = made.loss(outputs, batch, denominators)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    kl = ((d.exp() - d - 1) * mask).sum() / mask.sum()
    assert float(metrics["mean/kl_to_reference"]) == pytest.approx(float(kl.detach()), rel=1e-5)
    assert float(metrics["mean/entropy"]) == pytest.approx(float(outputs.entropy.detach()[mask].mean()), rel=1e-5)  # type: ignore[union-attr]


def test_correction_weights_multiply_the_policy_loss_and_rejected_tokens_leave_every_denominator() -> None:
    made, batch, outputs, denominators = prepared("corrected")
    mask = batch["loss_mask"] & batch["correction_mask"]
    assert denominators["tokens"] == mask.sum() < batch["loss_mask"].sum()
    ratio, a = (outputs.logp - batch["prox_logp"]).exp(), batch["advantages"]
    policy = -torch.minimum(a * ratio, a * ratio.clamp(0.8, 1.2)) * batch["correction_weights"]
    loss, _ = made.loss(outputs, batch, denominators)
    assert float(loss.detach()) == pytest.approx(float(policy[mask].mean().detach()), rel=1e-5)


def test_truncated_samples_leave_numerator_and_denominator() -> None:
    made, batch, outputs, denominators = prepared("truncated")
    assert batch["truncated"].any()
    kept = batch.filter(~batch["truncated"])
    assert denominators["tokens"] == kept["loss_mask"].sum()
    loss, _ = made.loss(outputs, batch, denominators)
    gradient = gradients(loss, outputs)[0]
    assert gradient is not None
    assert not gradient[batch["truncated"]].any()


def test_a_value_loss_is_added_where_the_pass_predicts_values_and_stands_alone_for_a_critic() -> None:
    made, batch, outputs, denominators = prepared("ppo")
    joint, _ = made.loss(outputs, batch, denominators)
    policy, _ = made.loss(replace(outputs, value_preds=None), batch, denominators)
    critic, metrics = made.critic_loss(outputs, batch, denominators)
    assert float(joint.detach()) == pytest.approx(float((policy + critic).detach()), rel=1e-5)
    assert "mean/value_clip_fraction" in metrics
    with pytest.raises(ConfigError, match="no value loss to train a critic with"):
        algorithm().critic_loss(outputs, batch, denominators)


def test_the_proximal_policy_is_taken_from_the_pass_only_where_the_caller_says_so() -> None:
    made, batch, outputs, denominators = prepared("grpo")
    without = batch.drop("prox_logp")
    with pytest.raises(FieldError, match="no field 'prox_logp'"):
        made.loss(outputs, without, denominators)
    loss, metrics = made.loss(outputs, without, denominators, prox_from_logp=True)
    assert float(metrics["max/ratio"]) == 1
    gradient = gradients(loss, outputs)[0]
    assert gradient is not None
    mask = batch["loss_mask"]
    assert torch.allclose(gradient, -batch["advantages"] * mask / mask.sum(), atol=1e-7)
    present, _ = made.loss(outputs, batch, denominators, prox_from_logp=True)
    assert present == made.loss(outputs, batch, denominators)[0]


def test_a_missing_field_or_output_says_who_gives_it() -> None:
    made, batch, outputs, denominators = prepared("gspo")
    with pytest.raises(FieldError, match=r"no field 'ref_logp'.*Reference writes it"):
        made.loss(outputs, batch.drop("ref_logp"), denominators)
    with pytest.raises(FieldError, match=r"no field 'advantages'.*Algorithm writes it"):
        made.loss(outputs, batch.drop("advantages"), denominators)
    with pytest.raises(FieldError, match="reads 'entropy', which the pass did not give; it gave: logp, value_preds"):
        algorithm(regularizers={"entropy": 0.1}).loss(replace(outputs, entropy=None), batch, denominators)
    with pytest.raises(ConfigError, match="the denominators have no 'prompts'"):
        made.loss(outputs, batch, {"tokens": 1.0, "sequences": 1.0})
    corrected, (raw, _) = algorithm(correction="tis"), batch_and_pass()
    with pytest.raises(FieldError, match=r"no field 'correction_mask'.*Algorithm writes it"):
        corrected.denominators(raw)


# ---------------------------------------------------------------------------- losses of the whole mini-batch

COVARIANCE = [{"name": "clip_cov", "share": 0.2, "low": 0.0}, {"name": "kl_cov", "share": 0.2}]


@pytest.mark.parametrize("loss", COVARIANCE, ids=str)
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "prompt-mean"])
def test_output_gradients_are_those_of_the_loss_of_the_whole_mini_batch(loss: Any, aggregation: str) -> None:
    mix = {"policy_loss": loss, "aggregation": aggregation, "regularizers": {"entropy": 0.1, "kl_to_reference": 0.1}}
    batch, outputs = batch_and_pass()
    whole = algorithm(**mix)
    batch = whole.estimate_advantages(batch)
    denominators = whole.denominators(batch)
    expected = gradients(whole.loss(outputs, batch, denominators)[0], outputs)

    made = algorithm(**mix)
    found = made.output_gradients(outputs, batch, denominators)
    for got, gradient in zip((found.logp, found.entropy, found.value_preds), expected, strict=True):
        assert (got is None) == (gradient is None)
        assert got is None or gradient is None or torch.allclose(got, gradient, atol=1e-7)


@pytest.mark.parametrize("loss", COVARIANCE, ids=str)
def test_the_second_pass_of_a_model_gives_the_gradient_of_the_whole(loss: Any) -> None:
    batch, _ = batch_and_pass()
    inputs = torch.randn(9, 9, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(4, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def forward(rows: Tensor) -> Pass:
        return Pass((inputs[rows] @ weight).clamp(max=-0.01))

    everything = torch.arange(9)
    reference = algorithm(policy_loss=loss)
    batch = reference.estimate_advantages(batch)
    denominators = reference.denominators(batch)
    (expected,) = torch.autograd.grad(reference.loss(forward(everything), batch, denominators)[0], weight)
    for sizes in ([9], [3, 3, 3], [1, 8]):
        made = algorithm(policy_loss=loss)
        with torch.no_grad():
            gathered = forward(everything)
        found = made.output_gradients(gathered, batch, denominators)
        weight.grad = None
        for rows in everything.split(sizes):
            assert found.logp is not None
            (forward(rows).logp * found.logp[rows]).sum().backward()
        assert weight.grad is not None
        assert torch.allclose(weight.grad, expected, atol=1e-6)


def test_a_loss_of_the_whole_mini_batch_refuses_a_part_of_it() -> None:
    made, (batch, outputs) = algorithm(policy_loss="kl_cov"), batch_and_pass()
    batch = made.estimate_advantages(batch)
    rows = torch.arange(4)
    with pytest.raises(ConfigError, match=r"looks at a whole mini-batch \('kl_cov'\), here 9 samples, got 4 of them"):
        made.loss(outputs.rows(rows), batch.index(rows), made.denominators(batch))


def chosen_by(made: Algorithm, batch: Batch, outputs: Pass) -> Tensor:
    gradient = made.output_gradients(outputs, batch, made.denominators(batch)).logp
    assert gradient is not None
    return gradient == 0


def test_random_choices_follow_the_seed_and_go_on_after_a_resume() -> None:
    batch, outputs = batch_and_pass()
    batch = algorithm().estimate_advantages(batch)
    first, second, other = (algorithm(policy_loss=COVARIANCE[0], seed=seed) for seed in (3, 3, 4))
    draws = [chosen_by(first, batch, outputs) for _ in range(6)]
    assert all(chosen_by(second, batch, outputs).equal(draw) for draw in draws[:3])
    resumed = algorithm(policy_loss=COVARIANCE[0], seed=99)
    resumed.load_state_dict(second.state_dict())
    assert all(chosen_by(resumed, batch, outputs).equal(draw) for draw in draws[3:])
    assert any(not chosen_by(other, batch, outputs).equal(draw) for draw in draws)


# ------------------------------------------------------------------------------------------ between steps


def test_an_adaptive_weight_in_the_loss_follows_the_reported_kl_and_is_saved() -> None:
    node = {"weight": 0.2, "controller": {"name": "adaptive", "target": 0.1, "horizon": 90}}
    made, (batch, outputs) = algorithm(regularizers={"kl_to_reference": node}), batch_and_pass()
    batch = made.estimate_advantages(batch)
    denominators = made.denominators(batch)
    before, _ = made.loss(outputs, batch, denominators)
    made.after_update({"mean/kl_to_reference": 5.0})
    assert made.state_dict()["weights"] == {"kl_to_reference": pytest.approx(0.2 * (1 + 0.2 * 9 / 90))}
    after, _ = made.loss(outputs, batch, denominators)
    assert after > before
    again = algorithm(regularizers={"kl_to_reference": node})
    again.load_state_dict(made.state_dict())
    assert again.loss(outputs, batch, denominators)[0] == after
    with pytest.raises(ConfigError, match="follows the metric 'mean/kl_to_reference', which the step did not report"):
        made.after_update({"mean/loss": 1.0})


def test_an_adaptive_weight_in_the_reward_follows_its_own_measurement() -> None:
    node = {"weight": 0.2, "estimator": "k2", "controller": {"name": "adaptive", "target": 1e-6, "horizon": 90}}
    made, (batch, _) = algorithm(kl_in_reward=node), batch_and_pass()
    made.estimate_advantages(batch)
    made.after_update({})
    assert made.state_dict()["weights"] == {"kl_in_reward": pytest.approx(0.2 * (1 + 0.2 * 9 / 90))}


def test_filters_see_rewards_after_the_penalties_and_the_batch_keeps_its_own() -> None:
    """DAPO: a group of right answers, one of them too long, has a spread only with its penalty."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]).bool()
    token_rewards = torch.zeros(4, 4)
    token_rewards[[0, 1, 2, 3], [3, 1, 1, 1]] = 1.0
    batch = Batch(
        {"loss_mask": mask, "group_ids": torch.tensor([5, 5, 2, 2]), "token_rewards": token_rewards},
    ).with_(scores=torch.ones(4))
    overlong = {"overlong": {"weight": 1.0, "max_length": 4, "buffer": 2}}
    made = algorithm(filters=["reward_spread"], regularizers=overlong)
    kept = made.filter(batch)
    assert kept["group_ids"].tolist() == [5, 5]
    assert kept["rewards"].tolist() == [1, 1]
    assert made.estimate_advantages(kept)["rewards"].tolist() == [0, 1]
    before = algorithm(filters=[{"name": "reward_spread", "of": "scores"}], regularizers=overlong)
    assert not len(before.filter(batch))
    assert not len(algorithm(filters=["reward_spread"]).filter(batch))


def test_a_penalty_that_reads_log_probs_comes_off_after_the_filters() -> None:
    @register_regularizer("reads_prox", acts_on="reward")
    def reads_prox(prox_logp: Tensor) -> Tensor:
        return prox_logp

    try:
        made, (batch, _) = algorithm(filters=["reward_spread"], regularizers={"reads_prox": 1.0}), batch_and_pass()
        early = batch.drop("prox_logp")
        assert made.filter(early)["rewards"].equal(algorithm(filters=["reward_spread"]).filter(early)["rewards"])
    finally:
        del REGULARIZERS._entries["reads_prox"]


def test_rows_that_an_estimator_leaves_out_are_counted() -> None:
    batch, _ = batch_and_pass()
    assert "sum/advantages/left_out" not in algorithm().estimate_advantages(batch).meta["metrics"]
    rewards = batch["token_rewards"].clone()
    for row in (1, 4):
        rewards[row, batch["loss_mask"][row].nonzero()[-1]] = math.nan
    for advantage in ("grpo", "reinforce_plus_plus"):
        made = algorithm(advantage=advantage).estimate_advantages(batch.with_(token_rewards=rewards))
        assert made.meta["metrics"]["sum/advantages/left_out"] == 2
        assert made["advantages"].isfinite().all()
        assert made["advantages"].any()


@pytest.mark.parametrize("kind", ["regularizers", "kl_in_reward"])
def test_an_adaptive_weight_stays_where_no_token_counts(kind: str) -> None:
    node = {"weight": 0.2, "controller": {"name": "adaptive", "target": 1e-6, "horizon": 90}}
    made, (batch, _) = (
        algorithm(**{kind: {"kl_to_reference": node} if kind == "regularizers" else node}),
        batch_and_pass(),
    )
    empty = batch.with_(loss_mask=torch.zeros_like(batch["loss_mask"]))
    made.estimate_advantages(empty)
    made.after_update({}, num_tokens=0)
    assert list(made.state_dict()["weights"].values()) == [0.2]


def test_a_state_of_another_composition_is_refused() -> None:
    state = algorithm(regularizers={"kl_to_reference": {"weight": 0.1, "controller": "adaptive"}}).state_dict()
    with pytest.raises(ConfigError, match="only one of the two has 'kl_to_reference'"):
        algorithm().load_state_dict(state)


# ------------------------------------------------------------------------------------------------ one's own


@pytest.fixture
def own_parts() -> Iterator[None]:
    @register_advantage("own_advantage")
    def own_advantage(rewards: Tensor, loss_mask: Tensor, *, scale: float = 1.0) -> AdvantageEstimate:
        advantages = scale * rewards[:, None].expand_as(loss_mask)
        return AdvantageEstimate(advantages, advantages)

    @register_policy_loss("own_loss")
    def own_loss(logp: Tensor, advantages: Tensor, prox_logp: Tensor | None = None) -> TokenLoss:
        return TokenLoss(
            -advantages * logp, {"max/given": torch.full_like(logp.detach(), float(prox_logp is not None))}
        )

    @register_regularizer("own_penalty")
    class OwnPenalty:
        def __init__(self, *, power: float = 2.0) -> None:
            self.power, self.calls = power, 0

        def __call__(self, logp: Tensor) -> Tensor:
            self.calls += 1
            return logp.abs() ** self.power

        def state_dict(self) -> dict[str, Any]:
            return {"calls": self.calls}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.calls = state["calls"]

    @register_aggregation("own_sum")
    def own_sum(token_loss: Tensor, loss_mask: Tensor) -> Tensor:
        return (token_loss * loss_mask).sum()

    yield
    for registry, name in (
        (ADVANTAGES, "own_advantage"),
        (POLICY_LOSSES, "own_loss"),
        (REGULARIZERS, "own_penalty"),
        (AGGREGATIONS, "own_sum"),
    ):
        del registry._entries[name]


def test_parts_of_ones_own_work_by_name(own_parts: None) -> None:
    batch, outputs = batch_and_pass()
    made = algorithm(
        advantage={"name": "own_advantage", "scale": 2.0},
        policy_loss="own_loss",
        regularizers={"own_penalty": {"weight": 0.5, "power": 3.0}},
        aggregation="own_sum",
    )
    assert made.needs == {"loss_mask", "group_ids", "rewards"}
    batch = made.estimate_advantages(batch)
    loss, metrics = made.loss(outputs, batch, made.denominators(batch))
    mask = batch["loss_mask"]
    expected = (-2 * batch["rewards"][:, None] * outputs.logp + 0.5 * outputs.logp.abs() ** 3)[mask].sum()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert batch["returns"].equal(batch["advantages"])
    assert float(metrics["max/given"]) == 1
    assert made.state_dict()["parts"]["regularizer.own_penalty"] == {"calls": 1}


def test_a_result_of_the_wrong_shape_names_the_part(own_parts: None) -> None:
    register_advantage("own_advantage", override=True)(lambda rewards: rewards)
    batch, _ = batch_and_pass()
    with pytest.raises(FieldError, match=r"advantage 'own_advantage' gives \[B, L\] = \[9, 9\], got \[9\]"):
        algorithm(advantage="own_advantage").estimate_advantages(batch)


# -------------------------------------------------------------------------------------------- check time


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"policy_loss": "decoupled_clip", "correction": "tis"},
            "would apply it twice; set correction: null, or policy_loss: ppo_clip",
        ),
        ({"policy_loss": "decoupled_clip", "correction": [{"name": "ratio_mask"}]}, "would apply it twice"),
        ({"advantage": "gae"}, "which no pipeline here trains; choose one that does without"),
        (
            {"advantage": "gdpo", "kl_in_reward": 0.1},
            "reads neither rewards nor token_rewards, so 'kl_in_reward' would change nothing",
        ),
        ({"regularizers": {"entropy": {}}}, "'algorithm.regularizers.entropy' has no weight"),
        (
            {"regularizers": {"entropy": "0.1"}},
            "'algorithm.regularizers.entropy' is a weight or a mapping with 'weight', got '0.1'",
        ),
        (
            {"regularizers": {"overlong": {"weight": 1, "max_length": 4, "buffer": 2, "controller": "adaptive"}}},
            "can't have a controller",
        ),
        ({"kl_in_reward": {"weight": 0.1, "estimater": "k1"}}, r"no key 'estimater' \(did you mean 'estimator'\?\)"),
        ({"policy_loss": {"name": "ppo_clip", "clip_low": 1.5}}, "clip_low lies between 0 and 1"),
        ({"correction": {"name": "icepop", "low": 3.0, "high": 2.0}}, "keeps what lies between low and high"),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_settings_that_can_not_work_are_refused_when_the_algorithm_is_made(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        algorithm(**config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"advantage": "gropo"}, r"no advantage called 'gropo' \(did you mean 'grpo'\?\)"),
        (
            {"policy_loss": {"name": "ppo_clip", "clip_hgih": 0.3}},
            r"has no option 'clip_hgih' \(did you mean 'clip_high'\?\)",
        ),
        (
            {"policy_loss": {"name": "decoupled_clip", "over_cap": "drop"}},
            "option 'over_cap' of policy loss 'decoupled_clip' takes",
        ),
        ({"aggregation": "token_mean"}, r"\(did you mean 'token-mean'\?\)"),
        ({"filters": ["reward_spred"]}, r"\(did you mean 'reward_spread'\?\)"),
        ({"correction": "icepopp"}, r"\(did you mean 'icepop'\?\)"),
        ({"regularizers": {"entropie": 0.1}}, r"\(did you mean 'entropy'\?\)"),
        ({"value_loss": "clip"}, r"\(did you mean 'clipped'\?\)"),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_misspelt_name_or_option_gets_its_nearest(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        algorithm(**config)


def cut(batch: Batch, rows: int, length: int) -> Batch:
    keys = [key for key in batch.keys() if key != "rewards"]  # the row sums follow from the tokens
    return Batch({key: batch[key][:rows, :length] if batch[key].dim() == 2 else batch[key][:rows] for key in keys})


@pytest.mark.parametrize(("rows", "length"), [(0, 9), (9, 0), (0, 0)])
@pytest.mark.parametrize("config", EVERYTHING.values(), ids=EVERYTHING)
def test_a_batch_without_rows_or_tokens_gives_a_loss_and_metrics_of_zero(
    config: dict[str, Any], rows: int, length: int
) -> None:
    batch, outputs = batch_and_pass()
    batch = cut(batch, rows, length)
    outputs = Pass(*(value[:rows, :length] for value in vars(outputs).values()))
    algo = algorithm(**config)
    batch = algo.estimate_advantages(algo.filter(batch))
    outputs = Pass(*(value[: len(batch)].detach().requires_grad_() for value in vars(outputs).values()))
    assert batch["advantages"].shape == outputs.logp.shape
    assert all(math.isfinite(value) for value in batch.meta["metrics"].values())
    denominators = algo.denominators(batch)
    loss, metrics = algo.loss(outputs, batch, denominators)
    assert float(loss.detach()) == 0
    assert {key: float(value) for key, value in metrics.items()} == dict.fromkeys(metrics, 0.0)
    assert algo.output_gradients(outputs, batch, denominators).logp is not None


@pytest.mark.parametrize("config", EVERYTHING.values(), ids=EVERYTHING)
def test_a_mini_batch_without_tokens_gives_metrics_of_zero_and_an_empty_part_changes_none(
    config: dict[str, Any],
) -> None:
    algo = algorithm(**config)
    batch, outputs = batch_and_pass()
    batch = algo.estimate_advantages(batch)
    masked = batch.with_(loss_mask=torch.zeros_like(batch["loss_mask"]))
    loss, metrics = algo.loss(outputs, masked, algo.denominators(masked))
    assert float(loss.detach()) == 0
    assert {key: float(value) for key, value in metrics.items()} == dict.fromkeys(metrics, 0.0)
    if algo.loss_scope == "minibatch":
        return
    whole = algo.loss(outputs, batch, algo.denominators(batch))[1]
    beside = add_shares([whole, algo.loss(outputs, masked, algo.denominators(batch))[1]])
    assert {key: float(value) for key, value in beside.items()} == {key: float(value) for key, value in whole.items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shift", [-1000.0, -15.0, 15.0])
@pytest.mark.parametrize("config", EVERYTHING.values(), ids=EVERYTHING)
def test_a_pass_in_half_precision_overflows_nowhere(config: dict[str, Any], shift: float, dtype: torch.dtype) -> None:
    algo = algorithm(**config)
    batch, outputs = batch_and_pass()
    moved = {name: batch[name] + shift for name in ("prox_logp", "ref_logp")}
    batch = algo.estimate_advantages(batch.with_(moved))
    half = Pass(*(value.detach().to(dtype) for value in vars(outputs).values()))
    gradients = algo.output_gradients(half, batch, algo.denominators(batch))
    assert gradients.loss.isfinite()
    assert all(value.isfinite() for value in gradients.metrics.values())
    for gradient in (gradients.logp, gradients.entropy, gradients.value_preds):
        assert gradient is None or gradient.isfinite().all()
