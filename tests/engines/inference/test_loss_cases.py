"""Cases of what counts as a sample's tokens: as the in-process engine writes it, of a model that is made to say the case's ids."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from rlvlm.engines.inference.config import SamplingParams
from rlvlm.engines.inference.hf import HfEngine
from rlvlm.models.policy import Policy
from rlvlm.models.rows import Rows
from tests import tiny
from tests.loss_cases import Case, cases_of, table

SPACING = 50
"""Prompt lengths are multiples of it, so that a token's position tells whose it is and which."""


@functools.cache
def real_policy() -> Policy:
    return tiny.policy("qwen2_5_vl")


class Dictated:
    """A hook that turns the policy's logits into ones that say row r's tokens, whatever rows a forward has."""

    def __init__(self, said: list[list[int]]) -> None:
        self.said = said

    def __call__(self, policy: Policy, given: tuple[Rows], logits: Tensor) -> Tensor:
        (rows,) = given
        place = rows.positions.reshape(-1, rows.ids.numel())[0][rows.reads].tolist()
        sure = torch.full_like(logits, -100.0)
        for row, position in enumerate(place):
            whose, token = divmod(position + 1, SPACING)
            sure[row, self.said[whose - 1][token]] = 0
        return sure


def completion_mask(x: Case, expected: Case, case: Case) -> None:
    """A sample ends with the first stop id that it draws, whichever id pads it afterwards."""
    policy, said = real_policy(), x["completion_ids"]
    tokenizer = policy.tokenizer
    words = ["w" * (SPACING * (row + 1)) for row in range(len(said))]
    bare = len(tiny.prompts(policy, [[]], [""]).prompts[0].ids)
    asked = tiny.prompts(policy, [[]] * len(said), [word[bare:] for word in words])
    assert [len(prompt.ids) for prompt in asked.prompts] == [SPACING * (row + 1) for row in range(len(said))]
    before: tuple[Any, ...] = (tokenizer.pad_token_id, policy.model.generation_config.eos_token_id)
    hook = policy.register_forward_hook(Dictated(said))
    try:
        tokenizer.pad_token_id = x["pad_token_id"]
        policy.model.generation_config.eos_token_id = x["eos_token_ids"]
        params = SamplingParams(max_new_tokens=len(said[0]))
        out = HfEngine(policy).generate(asked, params, step=0)
        by_stop_ids = HfEngine(policy).generate(
            asked, SamplingParams(max_new_tokens=len(said[0]), ignore_eos=True, stop_ids=x["eos_token_ids"]), step=0
        )
    finally:
        hook.remove()
        tokenizer.pad_token_id, policy.model.generation_config.eos_token_id = before
    assert torch.equal(out["loss_mask"], by_stop_ids["loss_mask"])
    for row, (prompt, ids, mask) in enumerate(zip(asked.prompts, said, expected["mask"], strict=True)):
        start, count = len(prompt.ids), sum(mask)
        assert out["loss_mask"][row].nonzero().flatten().tolist() == [start + t for t, own in enumerate(mask) if own]
        assert out["input_ids"][row, start : start + count].tolist() == ids[:count]
        assert (out["input_ids"][row, start + count :] == x["pad_token_id"]).all()
        assert int(out["attention_mask"][row].sum()) == start + count
        assert bool(out["truncated"][row]) == (ids[count - 1] not in x["eos_token_ids"])
    judged = policy.layout(out)
    assert judged.targets is not None
    assert judged.targets.tolist() == [
        i for ids, own in zip(said, expected["mask"], strict=True) for i in ids[: sum(own)]
    ]


OPERATIONS = table(completion_mask)


@cases_of(OPERATIONS)
def test_a_fault_reported_of_another_library(case: Case) -> None:
    OPERATIONS[case["input"]["op"]](case["input"], case["expected"], case)
