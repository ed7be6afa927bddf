"""The rollout: fields of its rows, draws that do not depend on the batch, and evaluation draws that stay the same."""

from __future__ import annotations

import torch

from rlvlm.engines.inference.hf import HfEngine
from rlvlm.roles.config import RolloutConfig
from rlvlm.roles.rollout import Rollout
from tests import tiny


def made(**config) -> tuple[Rollout, object]:
    policy = tiny.policy("llava")
    return Rollout(HfEngine(policy, shared=True), RolloutConfig(n=3, max_new_tokens=5, **config), seed=11), policy


def test_rows_hold_what_the_trainer_needs():
    rollout, policy = made(temperature=0.7)
    batch = rollout.generate(tiny.prompts(policy, [[(20, 20)], []]), step=4)
    batch.require("input_ids", "attention_mask", "loss_mask", "versions", "behav_logp", "turn_ids", "truncated")
    assert len(batch) == 6
    assert batch["group_ids"].tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.allclose(batch["temperature"], torch.tensor(0.7))
    assert len(batch.objects["completions"]) == 6
    assert (batch["versions"][batch["loss_mask"]] == 0).all()
    assert (batch["behav_logp"][~batch["loss_mask"]] == 0).all()


def test_draws_change_with_the_step_and_not_with_the_batch():
    rollout, policy = made()
    asked = tiny.prompts(policy, [[(20, 20)], [], []])
    whole = rollout.generate(asked, step=1).objects["completions"]
    alone = rollout.generate(asked.index([2]), step=1).objects["completions"]
    assert whole[6:] == alone
    assert rollout.generate(asked, step=2).objects["completions"] != whole


def test_evaluation_draws_the_same_every_time_and_one_answer_for_each_prompt():
    rollout, policy = made()
    asked = tiny.prompts(policy, [[(20, 20)], []])
    first = rollout.generate_once(asked, greedy=False)
    again = rollout.generate_once(asked, greedy=False)
    assert len(first) == 2
    assert first.objects["completions"] == again.objects["completions"]
    greedy = rollout.generate_once(asked, greedy=True)
    assert (greedy["temperature"] == 1.0).all()


def test_versions_follow_the_weights():
    rollout, policy = made()
    rollout.update_weights(policy.named_weights(), version=7)
    batch = rollout.generate(tiny.prompts(policy, [[]]), step=0)
    assert (batch["versions"][batch["loss_mask"]] == 7).all()


def test_special_tokens_stay_in_the_text_where_the_setting_says_so():
    rollout, policy = made(skip_special_tokens=False)
    batch = rollout.generate(tiny.prompts(policy, [[(20, 20)], []]), step=0)
    tokenizer = policy.tokenizer
    for row, text in enumerate(batch.objects["completions"]):
        ids = batch["input_ids"][row][batch["loss_mask"][row]].tolist()
        ended = ids[-1] == tokenizer.eos_token_id
        assert text == tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=False)
    plain = made()[0].generate(tiny.prompts(policy, [[(20, 20)], []]), step=0)
    assert torch.equal(plain["input_ids"], batch["input_ids"])
