"""What every inference engine keeps, as one test class: an engine's own tests subclass it and say how to make one."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod

import pytest
import torch

from rlvlm.batch import Batch
from rlvlm.engines.inference.base import InferenceEngine
from rlvlm.engines.inference.config import SamplingParams
from rlvlm.errors import DataError, EngineError
from rlvlm.models.policy import Policy
from tests import tiny
from tests.close import assert_near

SHAPES = [[(56, 56)], [], [(56, 84), (84, 56)], [(112, 56)], []]
"""Sizes of the pictures of five prompts: uneven lengths, several pictures, none."""

PARAMS = SamplingParams(n=3, max_new_tokens=12)


def responses(batch: Batch) -> list[list[int]]:
    """The sampled ids of each row."""
    return [ids[mask].tolist() for ids, mask in zip(batch["input_ids"], batch["loss_mask"], strict=True)]


def by_uid(batch: Batch, n: int) -> dict[str, list[list[int]]]:
    """The sampled ids of each prompt, in the order of its samples."""
    rows = responses(batch)
    uids = [batch.prompts[group].uid for group in batch["group_ids"].tolist()]
    assert all(len(set(uids[start : start + n])) == 1 for start in range(0, len(uids), n))
    return {uids[start]: rows[start : start + n] for start in range(0, len(uids), n)}


def trainer_logp(policy: Policy, batch: Batch, kind: str = "padded") -> torch.Tensor:
    """The trainer's own log-probs of a batch."""
    with torch.no_grad():
        return policy(policy.layout(batch, kind)).logp


def change(policy: Policy, prefix: str, seed: int = 7) -> None:
    """Changes every weight under ``prefix`` in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if name.startswith(prefix):
                weight += 0.05 * torch.randn(weight.shape, generator=generator)


class InferenceContract(ABC):
    """Tests that hold for any engine; ``policy`` is the trainer's, made anew for each test since some change it.

    An engine that does not run every family overrides the ``policy`` fixture.
    """

    atol = 1e-5

    @abstractmethod
    def make_engine(self, policy: Policy) -> InferenceEngine:
        """An engine with the policy's weights."""

    @pytest.fixture(params=tiny.FAMILIES)
    def policy(self, request: pytest.FixtureRequest) -> Policy:
        return tiny.policy(request.param)

    @pytest.fixture
    def engine(self, policy: Policy) -> InferenceEngine:
        return self.make_engine(policy)

    @pytest.fixture
    def prompts(self, policy: Policy) -> Batch:
        return tiny.prompts(policy, SHAPES)

    def test_it_is_an_inference_engine(self, engine):
        assert isinstance(engine, InferenceEngine)

    def test_rows_are_prompt_then_response_with_every_field_aligned(self, engine, policy, prompts):
        engine.update_weights(policy.named_weights(), version=4)
        out = engine.generate(prompts, PARAMS, step=9)
        assert out["group_ids"].tolist() == [group for group in range(5) for _ in range(3)]
        assert out.meta["step"] == 9
        for row in range(len(out)):
            start = len(out.prompts[out["group_ids"][row]].ids)
            end = start + int(out["loss_mask"][row].sum())
            column = torch.arange(out.n_tokens)
            mine = (column >= start) & (column < end)
            assert end > start
            assert torch.equal(out["loss_mask"][row], mine)
            assert torch.equal(out["attention_mask"][row], column < end)
            assert torch.equal(out["versions"][row], torch.where(mine, 4, -1).int())
            assert torch.equal(out["turn_ids"][row], torch.where(mine, 0, -1).int())
            assert (out["behav_logp"][row][~mine] == 0).all()
            assert (out["behav_logp"][row][mine] < 0).all()

    def test_the_argument_is_left_as_it_was_and_its_tables_are_shared(self, engine, prompts):
        out = engine.generate(prompts, PARAMS, step=0)
        assert prompts.keys() == ["group_ids"]
        assert len(prompts) == 5
        assert out.prompts is prompts.prompts
        assert out.media is prompts.media

    def test_returned_prompts_are_the_trainers_expansion_of_what_the_engine_got(self, engine, policy, prompts):
        out = engine.generate(prompts, PARAMS, step=0)
        placeholder = policy.family.placeholder_id
        for row, group in enumerate(out["group_ids"].tolist()):
            prompt = out.prompts[group]
            got = out["input_ids"][row, : len(prompt.ids)]
            assert torch.equal(got, prompt.ids)
            starts = {span.offset for span in prompt.spans}
            unexpanded = [t for place, t in enumerate(got.tolist()) if t != placeholder or place in starts]
            assert unexpanded == prompt.engine_ids.tolist()

    def test_ids_are_those_that_were_sampled_and_never_tokenised_again(self, engine, policy, prompts):
        out = engine.generate(prompts, dataclasses.replace(PARAMS, max_new_tokens=24), step=0)
        tokenizer = policy.tokenizer
        drawn = responses(out)
        assert out.objects["completions"] == [tokenizer.decode(ids, skip_special_tokens=True) for ids in drawn]
        again = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in out.objects["completions"]]
        assert again != drawn  # random bytes are no text: tokenising again would have shown
        assert_near(out["behav_logp"], trainer_logp(policy, out), within=self.atol)

    @pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
    def test_log_probs_agree_with_the_trainers(self, engine, policy, prompts, temperature):
        out = engine.generate(prompts, dataclasses.replace(PARAMS, temperature=temperature), step=0)
        assert out["temperature"].tolist() == pytest.approx([temperature] * len(out))
        for kind in ("padded", "shared"):
            assert_near(out["behav_logp"], trainer_logp(policy, out, kind), within=self.atol)

    def test_log_probs_are_taken_before_a_cut(self, engine, policy, prompts):
        cut = dataclasses.replace(PARAMS, top_k=20, top_p=0.8, temperature=0.9)
        if not engine.capabilities.logp_before_cut:
            with pytest.raises(EngineError, match="top-p/top-k"):
                engine.check(cut)
            return
        out = engine.generate(prompts, cut, step=0)
        assert_near(out["behav_logp"], trainer_logp(policy, out), within=self.atol)

    def test_greedy_takes_the_likeliest_id_and_records_temperature_one(self, engine, policy, prompts):
        greedy = engine.generate(prompts, SamplingParams(n=2, max_new_tokens=12, greedy=True, temperature=0.3), step=0)
        cold = engine.generate(prompts, SamplingParams(n=2, max_new_tokens=12, temperature=0), step=5)
        assert responses(greedy) == responses(cold)
        assert responses(greedy)[::2] == responses(greedy)[1::2]
        assert (greedy["temperature"] == 1).all()
        assert_near(greedy["behav_logp"], trainer_logp(policy, greedy), within=self.atol)
        for row, group in enumerate(greedy["group_ids"].tolist()):
            want = transformers_greedy(policy, greedy, group, 12)
            assert responses(greedy)[row] == want

    def test_placeholders_are_never_sampled_however_likely(self, policy, prompts):
        banned = torch.tensor(policy.family.banned_ids)
        head = policy.model.get_output_embeddings()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():  # a big random row gives each id a huge logit, at half of the states above all others
            head.weight[banned] = 30 * torch.randn(len(banned), head.weight.shape[1], generator=generator)
        engine = self.make_engine(policy)
        for params in (PARAMS, dataclasses.replace(PARAMS, greedy=True), dataclasses.replace(PARAMS, top_k=2)):
            out = engine.generate(prompts, params, step=0)
            assert not torch.isin(out["input_ids"][out["loss_mask"]], banned).any()
            assert out["behav_logp"].isfinite().all()
            assert_near(out["behav_logp"], trainer_logp(policy, out), within=self.atol)

    @pytest.mark.parametrize("changed", ["model.model.language_model", "model.model.v", "model."])
    def test_no_cache_of_old_weights_survives_an_update(self, engine, policy, prompts, changed):
        engine.generate(prompts, PARAMS, step=0)
        change(policy, changed)
        engine.update_weights(policy.named_weights(), version=11)
        assert engine.version == 11
        out = engine.generate(prompts, PARAMS, step=0)
        assert (out["versions"][out["loss_mask"]] == 11).all()
        assert_near(out["behav_logp"], trainer_logp(policy, out), within=self.atol)

    def test_draws_do_not_depend_on_the_batch_or_the_order(self, engine, prompts):
        whole = by_uid(engine.generate(prompts, PARAMS, step=3), 3)
        order = by_uid(engine.generate(prompts.index([4, 2, 0, 3, 1]), PARAMS, step=3), 3)
        parts = [by_uid(engine.generate(part, PARAMS, step=3), 3) for part in prompts.split([1, 3, 1])]
        assert whole == order
        assert whole == {uid: rows for part in parts for uid, rows in part.items()}

    def test_the_first_samples_do_not_depend_on_how_many_are_asked_for(self, engine, prompts):
        few = by_uid(engine.generate(prompts, dataclasses.replace(PARAMS, n=1), step=3), 1)
        many = by_uid(engine.generate(prompts, PARAMS, step=3), 3)
        assert few == {uid: rows[:1] for uid, rows in many.items()}

    def test_samples_steps_and_seeds_differ(self, engine, prompts):
        base = responses(engine.generate(prompts, PARAMS, step=3))
        assert len({tuple(row) for row in base}) == len(base)
        assert base == responses(engine.generate(prompts, PARAMS, step=3))
        assert base != responses(engine.generate(prompts, PARAMS, step=4))
        assert base != responses(engine.generate(prompts, dataclasses.replace(PARAMS, seed=1), step=3))

    def test_a_stop_id_ends_a_sample_and_stays_in_it(self, engine, prompts):
        free = by_uid(engine.generate(prompts, PARAMS, step=0), 3)
        ids = {row[len(row) // 2] for rows in free.values() for row in rows}
        out = engine.generate(prompts, dataclasses.replace(PARAMS, stop_ids=tuple(ids)), step=0)
        for uid, rows in by_uid(out, 3).items():
            for row, whole in zip(rows, free[uid], strict=True):
                end = next(place for place, token in enumerate(whole) if token in ids)
                assert row == whole[: end + 1]
        assert not out["truncated"].any()

    def test_a_stop_string_ends_a_sample_with_the_token_that_completes_it(self, engine, policy, prompts):
        free = engine.generate(prompts, dataclasses.replace(PARAMS, ignore_eos=True), step=0)
        text = free.objects["completions"][0]
        place = next(k for k in range(2, len(text)) if text[k - 1 : k + 1].isascii())
        string = text[place - 1 : place + 1]  # two characters, two tokens or more
        params = dataclasses.replace(PARAMS, ignore_eos=True, stop=(string,))
        out = engine.generate(prompts, params, step=0)
        for row, whole in zip(responses(out), responses(free), strict=True):
            texts = [policy.tokenizer.decode(whole[:count]) for count in range(1, len(whole) + 1)]
            end = next((count for count, text in enumerate(texts, 1) if string in text), len(whole))
            assert row == whole[:end]
        stopped = torch.tensor([string in text for text in out.objects["completions"]])
        assert stopped[0]
        assert torch.equal(out["truncated"], ~stopped)

    def test_only_the_length_limit_truncates(self, engine, policy, prompts):
        end = policy.tokenizer.eos_token_id
        out = engine.generate(prompts, dataclasses.replace(PARAMS, n=8, max_new_tokens=40, temperature=2.0), step=0)
        ended = torch.tensor([row[-1] == end for row in responses(out)])
        assert ended.any()
        assert not ended.all()
        assert torch.equal(out["truncated"], ~ended)
        assert all(end not in row[:-1] for row in responses(out))
        longer = engine.generate(prompts, SamplingParams(n=2, max_new_tokens=7, ignore_eos=True), step=0)
        assert longer["truncated"].all()
        assert all(len(row) == 7 for row in responses(longer))

    def test_one_token_of_one_prompt(self, engine, policy, prompts):
        out = engine.generate(prompts.index([2]), SamplingParams(n=1, max_new_tokens=1), step=0)
        assert len(out) == 1
        assert out["loss_mask"].sum() == 1
        assert_near(out["behav_logp"], trainer_logp(policy, out), within=self.atol)

    def test_a_prompt_that_is_there_twice_is_refused(self, engine, prompts):
        with pytest.raises(DataError, match="prompt 'p1' is there twice"):
            engine.generate(prompts.index([0, 1, 1]), PARAMS, step=0)

    def test_no_prompts_are_refused(self, engine, prompts):
        with pytest.raises(DataError, match="no prompts to generate for"):
            engine.generate(prompts.index([]), PARAMS, step=0)

    def test_a_pause_is_released_however_it_is_left(self, engine, prompts):
        with pytest.raises(ZeroDivisionError), engine.pause():
            raise ZeroDivisionError
        assert len(engine.generate(prompts, PARAMS, step=0)) == 15

    def test_weights_may_be_updated_in_a_pause(self, engine, policy, prompts):
        with engine.pause():
            change(policy, "model.")
            engine.update_weights(policy.named_weights(), version=2)
        out = engine.generate(prompts, PARAMS, step=0)
        assert_near(out["behav_logp"], trainer_logp(policy, out), within=self.atol)

    def test_nothing_is_in_flight_between_two_calls(self, engine, prompts):
        engine.generate(prompts, PARAMS, step=0)
        assert engine.abort() == 0

    def test_it_sleeps_and_wakes_if_it_says_so(self, engine, prompts):
        if not engine.capabilities.sleeps:
            with pytest.raises(EngineError, match="sleeps"):
                engine.sleep()
            return
        before = responses(engine.generate(prompts, PARAMS, step=0))
        engine.sleep()
        with pytest.raises(EngineError, match="wake"):
            engine.generate(prompts, PARAMS, step=0)
        engine.wake()
        assert responses(engine.generate(prompts, PARAMS, step=0)) == before


def transformers_greedy(policy: Policy, batch: Batch, group: int, tokens: int) -> list[int]:
    """What transformers' own ``generate`` answers to one prompt, up to its end token."""
    prompt = batch.prompts[group]
    pixels = [policy.family.pixels(batch.media[span.media]) for span in prompt.spans]
    inputs = {name: torch.cat([one[name] for one in pixels]) for name in pixels[0]} if pixels else {}
    ids = prompt.ids[None]
    if policy.family.name != "llava":
        inputs["mm_token_type_ids"] = (ids == policy.family.placeholder_id).long()
    out = policy.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=tokens,
        suppress_tokens=list(policy.family.banned_ids),
        pad_token_id=policy.tokenizer.pad_token_id,
        eos_token_id=policy.tokenizer.eos_token_id,
        **inputs,
    )
    return out[0, ids.shape[1] :].tolist()
