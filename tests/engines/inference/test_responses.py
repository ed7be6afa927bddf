"""Drawn tokens become rows of a batch, whichever engine drew them."""

from __future__ import annotations

import pytest
import torch

from rlvlm.batch import Batch, Prompt
from rlvlm.engines.inference.config import SamplingParams
from rlvlm.engines.inference.responses import Responses, check_prompts, decode_texts, to_batch
from rlvlm.errors import EngineError
from tests import tiny


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


def prompt_batch(*lengths: int) -> Batch:
    rows = [
        Prompt(f"p{n}", {}, torch.arange(1, length + 1), torch.arange(1, length + 1))
        for n, length in enumerate(lengths)
    ]
    return Batch({"group_ids": torch.arange(len(rows))}, prompts=rows)


def drawn() -> Responses:
    ids = torch.tensor([[65, 66, 0], [67, 258, 0], [68, 69, 70], [71, 0, 0]])
    logp = -ids.float() / 100
    return Responses(ids, logp, torch.tensor([2, 2, 3, 1]), torch.tensor([False, False, True, False]))


def test_rows_are_laid_out_as_the_fields_say(tokenizer):
    params = SamplingParams(n=2, temperature=0.5)
    out = to_batch(prompt_batch(3, 1), drawn(), params, version=6, step=2, tokenizer=tokenizer)
    pad = tokenizer.pad_token_id
    assert out["input_ids"].tolist() == [
        [1, 2, 3, 65, 66],
        [1, 2, 3, 67, 258],
        [1, 68, 69, 70, pad],
        [1, 71, pad, pad, pad],
    ]
    assert out["attention_mask"].sum(1).tolist() == [5, 5, 4, 2]
    assert out["loss_mask"].nonzero().tolist() == [[0, 3], [0, 4], [1, 3], [1, 4], [2, 1], [2, 2], [2, 3], [3, 1]]
    assert out["versions"][2].tolist() == [-1, 6, 6, 6, -1]
    assert out["turn_ids"][3].tolist() == [-1, 0, -1, -1, -1]
    torch.testing.assert_close(out["behav_logp"][2], torch.tensor([0, -0.68, -0.69, -0.70, 0]))
    assert out["truncated"].tolist() == [False, False, True, False]
    assert out["temperature"].tolist() == [0.5] * 4
    assert out["group_ids"].tolist() == [0, 0, 1, 1]
    assert out.meta["step"] == 2


def test_special_tokens_are_ids_of_the_row_and_no_part_of_its_text(tokenizer):
    out = to_batch(prompt_batch(3, 1), drawn(), SamplingParams(n=2), version=0, step=0, tokenizer=tokenizer)
    assert tokenizer.decode([258]) == "<|im_end|>"
    assert [len(text) for text in out.objects["completions"]] == [2, 1, 3, 1]


def test_grounding_tokens_stay_in_the_text_where_asked_for(tokenizer):
    """Boxes of special tokens reach the rules; the token that ends the answer, and only that, is no part of its text."""
    start, end, eos = (
        tokenizer.convert_tokens_to_ids(token) for token in ("<|vision_start|>", "<|vision_end|>", "<|im_end|>")
    )
    text = tokenizer("(1,2),(3,4)")["input_ids"]
    written = [[start, *text, end, eos], [start, *text, end]]
    ids = torch.zeros(2, len(written[0]), dtype=torch.long)
    for row, tokens in enumerate(written):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    lengths = torch.tensor([len(tokens) for tokens in written])
    drawn = Responses(ids, torch.zeros(ids.shape), lengths, torch.tensor([False, True]))
    for skipped, wanted in ((True, "(1,2),(3,4)"), (False, "<|vision_start|>(1,2),(3,4)<|vision_end|>")):
        params = SamplingParams(n=2, skip_special_tokens=skipped)
        out = to_batch(prompt_batch(3), drawn, params, version=0, step=0, tokenizer=tokenizer, end_ids={eos})
        assert out.objects["completions"] == [wanted, wanted]


def test_an_end_token_of_the_model_alone_is_no_part_of_the_text(tokenizer):
    """As where the generation config ends at another token than the tokenizer."""
    last = tokenizer.convert_tokens_to_ids("<|vision_end|>")
    drawn = Responses(torch.tensor([[65, last]]), torch.zeros(1, 2), torch.tensor([2]), torch.tensor([False]))
    params = SamplingParams(n=1, skip_special_tokens=False)
    for ends, extra in (({last}, ""), ((), "<|vision_end|>")):
        out = to_batch(prompt_batch(3), drawn, params, version=0, step=0, tokenizer=tokenizer, end_ids=ends)
        assert out.objects["completions"] == [tokenizer.decode([65]) + extra]


def test_columns_and_meta_of_the_prompt_batch_go_along(tokenizer):
    asked = prompt_batch(3, 1).with_objects(source=["a", "b"]).with_meta(epoch=3)
    out = to_batch(asked, drawn(), SamplingParams(n=2), version=0, step=0, tokenizer=tokenizer)
    assert out.objects["source"] == ["a", "a", "b", "b"]
    assert out.meta["epoch"] == 3


def test_texts_are_those_of_the_tokenizers_own_batch_decode(tokenizer):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 269, (length,), generator=generator).tolist() for length in (0, 1, 5, 40)]
    assert decode_texts(tokenizer, rows) == tokenizer.batch_decode(rows, skip_special_tokens=True)


def test_a_tokenizer_that_cleans_its_text_up_still_does():
    tokenizer = tiny.tokenizer()
    tokenizer.clean_up_tokenization_spaces = True
    rows = [tokenizer("a , b .")["input_ids"]]
    assert decode_texts(tokenizer, rows) == tokenizer.batch_decode(rows, skip_special_tokens=True)


def test_only_log_probs_that_were_drawn_must_be_finite(tokenizer):
    good = drawn()
    good.logp[3, 2] = float("nan")  # behind the end of its row
    to_batch(prompt_batch(3, 1), good, SamplingParams(n=2), version=0, step=0, tokenizer=tokenizer)
    good.logp[3, 0] = float("-inf")
    with pytest.raises(EngineError, match="1 sampled tokens have a log-prob that is not finite at step 8"):
        to_batch(prompt_batch(3, 1), good, SamplingParams(n=2), version=0, step=8, tokenizer=tokenizer)


def test_groups_of_a_prompt_batch_may_come_in_any_order():
    assert check_prompts(prompt_batch(3, 1, 2).index([2, 0, 1])) == [2, 0, 1]
