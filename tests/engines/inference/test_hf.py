"""The in-process engine keeps the contract, with the trainer's module and with a copy; and what only it promises."""

from __future__ import annotations

import asyncio
import copy
import dataclasses

import pytest
import torch

from rlvlm.engines.inference.base import build_inference_engine
from rlvlm.engines.inference.config import SamplingParams
from rlvlm.engines.inference.hf import HfEngine
from rlvlm.errors import ConfigError, EngineError
from rlvlm.models.config import LoraConfig
from rlvlm.models.policy import Policy
from tests import tiny
from tests.close import assert_near
from tests.engines.inference.contract import PARAMS, SHAPES, InferenceContract, by_uid, change, responses, trainer_logp


class TestSharedModule(InferenceContract):
    """The engine generates with the trainer's own module."""

    def make_engine(self, policy: Policy) -> HfEngine:
        return HfEngine(policy)


class TestOwnCopy(InferenceContract):
    """The engine has a copy of its own, in a family that has every kind of weight."""

    @pytest.fixture
    def policy(self) -> Policy:
        return tiny.policy("qwen3_vl")

    def make_engine(self, policy: Policy) -> HfEngine:
        return build_inference_engine("hf", policy=policy, shared=False)

    def test_the_trainers_changes_arrive_with_the_update_only(self, engine, policy, prompts):
        before = responses(engine.generate(prompts, PARAMS, step=0))
        change(policy, "model.")
        assert responses(engine.generate(prompts, PARAMS, step=0)) == before
        engine.update_weights(policy.named_weights(), version=1)
        assert responses(engine.generate(prompts, PARAMS, step=0)) != before

    def test_part_of_the_weights_may_be_updated(self, engine, policy, prompts):
        change(policy, "model.model.visual")
        some = ((name, weight) for name, weight in policy.named_weights() if "visual" in name)
        engine.update_weights(some, version=1)
        out = engine.generate(prompts, PARAMS, step=0)
        assert_near(out["behav_logp"], trainer_logp(policy, out), within=self.atol)

    def test_wrong_weights_are_named(self, engine, policy):
        name, weight = next(policy.named_weights())
        with pytest.raises(EngineError, match=f"has no weight '{name}x' .did you mean '{name}'"):
            engine.update_weights([(name + "x", weight)], version=1)
        with pytest.raises(EngineError, match="has shape .* in inference engine 'hf', got"):
            engine.update_weights([(name, weight[:1])], version=1)
        with pytest.raises(EngineError, match="got no weights"):
            engine.update_weights([], version=1)
        assert engine.version == 0


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny.policy("qwen2_5_vl")


@pytest.fixture(scope="module")
def prompts(policy):
    return tiny.prompts(policy, SHAPES)


def test_a_shared_module_is_never_copied_and_its_weights_never_read(policy, prompts):
    engine = build_inference_engine("hf", policy=policy, shared=True)

    def unread():
        raise AssertionError("the weights were read")
        yield

    engine.update_weights(unread(), version=5)
    assert engine.version == 5
    assert engine._policy is policy


@pytest.mark.parametrize(
    "options", [{"cache_tokens": 1}, {"cache_tokens": 300}, {"prefill_tokens": 1}, {"prefill_tokens": 60}]
)
def test_draws_do_not_depend_on_how_the_work_is_cut(policy, prompts, options):
    whole = by_uid(HfEngine(policy).generate(prompts, PARAMS, step=0), 3)
    assert by_uid(HfEngine(policy, **options).generate(prompts, PARAMS, step=0), 3) == whole


def test_a_prompts_pictures_are_encoded_once_for_all_samples_and_tokens(policy, prompts, monkeypatch):
    patches = []
    encode = policy.family.encode_images
    monkeypatch.setattr(
        policy.family,
        "encode_images",
        lambda m, pixels: patches.append(len(pixels["pixel_values"])) or encode(m, pixels),
    )
    HfEngine(policy).generate(prompts, dataclasses.replace(PARAMS, n=16), step=0)
    assert patches == [sum(policy.family.patches(picture.size) for picture in prompts.media)]


def test_a_picture_that_two_prompts_show_is_encoded_once(policy, monkeypatch):
    batch = tiny.prompts(policy, [[(56, 56)], [(56, 56)]])
    shared = dataclasses.replace(batch.prompts[1].spans[0], media=0)
    batch = batch._derive(prompts=(batch.prompts[0], dataclasses.replace(batch.prompts[1], spans=(shared,))))
    patches = []
    encode = policy.family.encode_images
    monkeypatch.setattr(
        policy.family,
        "encode_images",
        lambda m, pixels: patches.append(len(pixels["pixel_values"])) or encode(m, pixels),
    )
    out = HfEngine(policy).generate(batch, PARAMS, step=0)
    assert patches == [16]
    assert_near(out["behav_logp"], trainer_logp(policy, out))


def test_ended_samples_leave_the_forward(policy, prompts, monkeypatch):
    rows = []
    forward = Policy.forward
    monkeypatch.setattr(Policy, "forward", lambda self, r: rows.append(r.ids.numel()) or forward(self, r))
    ends = tuple(range(0, 256, 3))  # a third of all ids
    out = HfEngine(policy).generate(prompts, dataclasses.replace(PARAMS, n=8, stop_ids=ends), step=0)
    lengths = out["loss_mask"].sum(1)
    assert rows[1:] == [int((lengths > token).sum()) for token in range(1, int(lengths.max()))]


def test_nothing_it_returns_or_keeps_bars_a_backward_pass(prompts, policy):
    fresh = tiny.prompts(policy, SHAPES)  # pictures whose pixels nobody has made yet
    out = HfEngine(policy).generate(fresh, PARAMS, step=0)
    assert not any(out[key].is_inference() for key in out.keys())
    assert not any(tensor.is_inference() for picture in out.media for tensor in picture.pixels.values())
    logp = policy(policy.layout(out, "shared")).logp
    ((logp - out["behav_logp"]).exp() * out["behav_logp"])[out["loss_mask"]].sum().backward()
    policy.zero_grad()


def test_every_modules_mode_is_put_back(policy, prompts):
    engine = HfEngine(policy.train())
    policy.model.model.visual.eval()  # a frozen tower that its owner keeps in eval mode
    before = [module.training for module in policy.modules()]
    seen = []
    handle = policy.register_forward_pre_hook(lambda module, _: seen.extend(m.training for m in module.modules()))
    engine.generate(prompts, PARAMS, step=0)
    handle.remove()
    assert not any(seen)
    handle = policy.register_forward_pre_hook(lambda module, _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.generate(prompts, PARAMS, step=0)
    handle.remove()
    assert seen
    assert [module.training for module in policy.modules()] == before
    policy.eval()


def test_adapters_of_a_shared_module_count(prompts):
    policy = tiny.policy("qwen2_5_vl")
    policy.add_adapters(LoraConfig(rank=4))
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if ".lora_B." in name:
                weight.normal_(0, 0.2)
    out = HfEngine(policy).generate(prompts, PARAMS, step=0)
    assert_near(out["behav_logp"], trainer_logp(policy, out))
    with policy.adapter_off():
        assert (out["behav_logp"] - trainer_logp(policy, out)).abs().max() > 0.01
    with pytest.raises(EngineError, match="copy of a policy with adapters"):
        HfEngine(policy, shared=False)


def test_under_autocast_log_probs_are_those_of_a_trainer_under_autocast(policy, prompts):
    exact = HfEngine(policy).generate(prompts, PARAMS, step=0)
    out = HfEngine(policy, autocast=torch.bfloat16).generate(prompts, PARAMS, step=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = trainer_logp(policy, out)
    mask = out["loss_mask"]
    assert out["behav_logp"].dtype == torch.float32
    assert not torch.equal(exact["behav_logp"], out["behav_logp"])
    assert (out["behav_logp"] - theirs)[mask].abs().mean() < 0.01


def test_bfloat16_weights_generate(prompts):
    policy = tiny.policy("qwen2_5_vl").to(torch.bfloat16)
    out = HfEngine(policy).generate(prompts, PARAMS, step=0)
    assert (out["behav_logp"] - trainer_logp(policy, out))[out["loss_mask"]].abs().mean() < 0.02


def test_logits_that_are_not_numbers_are_an_error(prompts):
    policy = tiny.policy("qwen2_5_vl")
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(float("nan"))
    for params in (PARAMS, dataclasses.replace(PARAMS, greedy=True)):
        with pytest.raises(EngineError, match="log-prob that is not finite at step 3"):
            HfEngine(policy).generate(prompts, params, step=3)


def test_it_is_refused_while_paused_and_while_it_is_at_work(policy, prompts):
    engine = HfEngine(policy)
    with engine.pause(), engine.pause():
        pass
    with engine.pause(), pytest.raises(EngineError, match="is paused"):
        engine.generate(prompts, PARAMS, step=0)
    inner = []

    def reenter(module, rows):
        calls = (lambda: engine.generate(prompts, PARAMS, step=0), engine.sleep, lambda: engine.update_weights([], 1))
        for call in (engine.abort, *calls):
            with pytest.raises(EngineError) as caught:
                call()
            inner.append(str(caught.value))

    handle = policy.register_forward_pre_hook(reenter)
    engine.generate(prompts, SamplingParams(max_new_tokens=1), step=0)
    handle.remove()
    assert "'interrupts'" in inner[0]
    assert all("one call at a time" in message for message in inner[1:4])


def test_generating_beside_its_caller_is_refused(policy, prompts):
    with pytest.raises(EngineError, match="asked for 'asynchronous'"):
        asyncio.run(HfEngine(policy).generate_async(prompts, PARAMS, step=0))


def test_options_outside_their_range_are_refused(policy):
    for option in ("cache_tokens", "prefill_tokens"):
        with pytest.raises(ConfigError, match=f"'{option}' of inference engine 'hf' is at least 1, got 0"):
            HfEngine(policy, **{option: 0})


def test_end_ids_come_from_tokenizer_and_generation_config(policy, prompts):
    other = copy.copy(policy)
    other.model = copy.copy(policy.model)
    other.model.generation_config = copy.deepcopy(policy.model.generation_config)
    plain = HfEngine(policy).generate(prompts, PARAMS, step=0)
    row = next(row for row in responses(plain) if len(row) > 4)
    other.model.generation_config.eos_token_id = [policy.tokenizer.eos_token_id, row[2], 10**6]
    ended = HfEngine(other).generate(prompts, PARAMS, step=0)
    assert row[: row.index(row[2]) + 1] in responses(ended)


def test_a_prompt_whose_placeholders_are_not_where_its_pictures_are_is_named(policy, prompts):
    prompt = prompts.prompts[2]
    ids = prompt.ids.clone()
    ids[prompt.spans[1].offset] = 5
    bad = prompts._derive(prompts=(*prompts.prompts[:2], dataclasses.replace(prompt, ids=ids), *prompts.prompts[3:]))
    with pytest.raises(Exception, match="prompt 'p2' has 2 pictures"):
        HfEngine(policy).generate(bad, PARAMS, step=0)
