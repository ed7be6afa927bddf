"""The policy as a module: adapters, frozen parts, recomputation, saving, loading, sharding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForImageTextToText

from rlvlm.errors import ConfigError, EngineError
from rlvlm.models.config import LoraConfig, ModelConfig
from rlvlm.models.loading import load_policy
from rlvlm.models.policy import Policy
from tests import tiny
from tests.close import assert_near
from tests.models.grids import distance, mixed_batch, run

LENGTHS = [[3, 1, 5], [4, 4], [1], [7, 2]]


@pytest.fixture(params=tiny.FAMILIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return tiny.policy(request.param)


def stir(policy: Policy) -> None:
    """Moves adapters away from zero."""
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.1)


def test_a_saved_policy_loads_as_the_same_policy(policy: Policy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path)
    loaded = load_policy(ModelConfig(path=str(tmp_path)))
    batch = mixed_batch(policy, LENGTHS)
    torch.testing.assert_close(loaded(loaded.layout(batch)).logp, policy(policy.layout(batch)).logp, atol=0, rtol=0)
    assert loaded.tokenizer.chat_template == policy.tokenizer.chat_template
    assert "rlvlm" not in (tmp_path / "config.json").read_text()
    AutoModelForImageTextToText.from_pretrained(tmp_path, attn_implementation="eager")  # other programs read it too


def test_adapters_start_at_zero_train_alone_and_go_off_and_on(policy: Policy) -> None:
    batch = mixed_batch(policy, LENGTHS)
    before = policy(policy.layout(batch)).logp.detach()
    assert not policy.has_adapters
    policy.add_adapters(LoraConfig(rank=2, parts=["vision", "connector", "language"]))
    assert policy.has_adapters
    torch.testing.assert_close(policy(policy.layout(batch)).logp, before, atol=0, rtol=0)
    stir(policy)
    changed, _ = run(policy, batch, "shared")
    assert (changed.logp - before).abs().max() > 1e-2
    trained = {name for name, weight in policy.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert all(".lora_" in name for name in trained)
    assert {policy.part_of(name) for name in trained} == {"vision", "connector", "language"}
    required = [weight.requires_grad for weight in policy.parameters()]
    with policy.adapter_off():
        torch.testing.assert_close(policy(policy.layout(batch)).logp, before, atol=0, rtol=0)
    assert [weight.requires_grad for weight in policy.parameters()] == required
    torch.testing.assert_close(policy(policy.layout(batch)).logp, changed.logp, atol=0, rtol=0)


def test_saved_adapters_are_merged(policy: Policy, tmp_path: Path) -> None:
    policy.add_adapters(LoraConfig(rank=2, parts=["vision", "language"], targets=None))
    stir(policy)
    batch = mixed_batch(policy, LENGTHS)
    policy.save_pretrained(tmp_path)
    loaded = load_policy(ModelConfig(path=str(tmp_path)))
    assert_near(loaded(loaded.layout(batch)).logp, policy(policy.layout(batch)).logp)
    stored = dict(loaded.named_weights())
    merged = dict(policy.named_weights())
    assert stored.keys() == merged.keys()
    assert all(torch.equal(stored[name], merged[name]) for name in stored)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "model.language_model.embed_tokens"])
def test_adapters_on_head_and_embeddings_are_refused(policy: Policy, target: str) -> None:
    with pytest.raises(ConfigError, match=f"'{target}', the head or the embeddings"):
        policy.add_adapters(LoraConfig(targets=["q_proj", target]))
    assert not policy.has_adapters


def test_an_adapter_target_that_matches_nothing_is_named_with_the_nearest(policy: Policy) -> None:
    with pytest.raises(ConfigError, match="'q_prj', which is no linear layer.*did you mean 'q_proj'"):
        policy.add_adapters(LoraConfig(targets=["q_prj"]))


def test_only_what_is_named_trains(policy: Policy) -> None:
    policy.set_trainable(["connector", "*.layers.1.mlp.*"])
    for name, weight in policy.named_parameters():
        wanted = policy.part_of(name) == "connector" or ".layers.1.mlp." in name
        assert weight.requires_grad == wanted, name
    batch = mixed_batch(policy, LENGTHS)
    truth = run(policy, batch, "padded")[1]
    assert distance(run(policy, batch, "shared")[1], truth) < 1e-5
    with pytest.raises(ConfigError, match="'visoin', which fits no parameter.*did you mean 'vision'"):
        policy.set_trainable(["visoin"])


def test_recomputation_really_recomputes_and_changes_no_number(policy: Policy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path)
    frugal = load_policy(ModelConfig(path=str(tmp_path), gradient_checkpointing=True))
    batch = mixed_batch(policy, LENGTHS)
    calls = []
    frugal.model.model.language_model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    outputs, gradient = run(frugal, batch, "shared")
    truth, truth_gradient = run(policy, batch, "shared")
    assert len(calls) == 2
    torch.testing.assert_close(outputs.logp, truth.logp, atol=0, rtol=0)
    assert distance(gradient, truth_gradient) < 1e-6


def test_attention_dropout_under_a_layout_is_refused(policy: Policy) -> None:
    for layer in policy.model.model.language_model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(EngineError, match="attention dropout is 0.1"):
        policy.train()(policy.layout(mixed_batch(policy, LENGTHS), "shared"))


def test_autocast_runs_low_and_keeps_gradients_in_fp32(policy: Policy) -> None:
    batch = mixed_batch(policy, LENGTHS)
    truth, truth_gradient = run(policy, batch, "shared")
    with torch.autocast("cpu", torch.bfloat16):
        rough, gradient = run(policy, batch, "shared")
    assert rough.logp.dtype == torch.float32
    assert 0 < (rough.logp - truth.logp).abs().max() < 0.5
    assert distance(gradient, truth_gradient) < 0.1


def test_exactly_one_of_path_and_build_is_asked_for(tmp_path: Path) -> None:
    for config in (ModelConfig(), ModelConfig(path="a", build="toy_llava")):
        with pytest.raises(ConfigError, match=r"exactly one of model\.path and model\.build"):
            load_policy(config)
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        load_policy(ModelConfig(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"dtype": "bfloat"}, "did you mean 'bfloat16'"),
        ({"layout": "share"}, "did you mean 'shared'"),
        ({"head_chunk": 0}, "head_chunk is at least 1"),
        ({"trainable": []}, "names no parameters"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ModelConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rank is at least 1"):
        LoraConfig(rank=0)
    with pytest.raises(ConfigError, match="did you mean 'language'"):
        LoraConfig(parts=["languge"])


def test_a_built_model_is_the_same_for_the_same_seed() -> None:
    one, same, other = (load_policy(ModelConfig(build="toy_llava", seed=seed)) for seed in (1, 1, 2))
    pairs = list(zip(one.parameters(), same.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_sharded_by_fsdp_the_one_forward_gives_the_same_numbers(policy: Policy, tmp_path: Path) -> None:
    batch = mixed_batch(policy, LENGTHS)
    truth, truth_gradient = run(policy, batch, "padded")
    text = tiny.samples(policy, tiny.prompts(policy, [[]]), [[3, 2]])
    text_logp = run(policy, text, "shared")[0].logp
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        core = policy.model.model
        tower = core.vision_tower.encoder.layers if policy.family.name == "llava" else core.visual.blocks
        for block in (*core.language_model.layers, *tower):
            fully_shard(block, mesh=mesh)
        fully_shard(policy, mesh=mesh, reshard_after_forward=True)
        with torch.no_grad():
            policy(policy.layout(batch, "shared"))  # a pass without gradients leaves nothing behind
        outputs = policy(policy.layout(batch, "shared"))
        assert_near(outputs.logp, truth.logp)
        weights = torch.linspace(0.5, 1.5, outputs.logp.numel()).view_as(outputs.logp)
        policy.zero_grad()
        (outputs.logp * weights).sum().add((outputs.entropy * weights).sum(), alpha=0.3).backward()
        gradient = torch.cat([w.grad.full_tensor().flatten() for w in policy.parameters() if w.grad is not None])  # type: ignore[union-attr]
        assert distance(gradient, truth_gradient) < 1e-5
        assert_near(policy(policy.layout(text)).logp, text_logp)
    finally:
        dist.destroy_process_group()
