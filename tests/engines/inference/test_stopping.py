"""Stop strings end a sample with the token that completes them, wherever token boundaries fall."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlvlm.engines.inference.stopping import StopTable, may_finish
from rlvlm.errors import ConfigError


@pytest.fixture(scope="module")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, three merged pieces that straddle stop strings, and a special token."""
    vocab = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("<", "/"), ("E", "N"), ("EN", "D"), (">", "Ċ")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<|end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")


def stops_at(tokenizer, text: str | list[int], **options) -> int | None:
    """Number of tokens after which a response that spells ``text`` ends, or None."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] if isinstance(text, str) else text
    table = StopTable(tokenizer, len(tokenizer), **options)
    for length in range(1, len(ids) + 1):
        if table.stopped(torch.tensor([ids]), torch.tensor([0]), length)[0]:
            return length
    return None


def test_a_stop_string_over_several_tokens_ends_with_its_last(byte_tokenizer):
    text = "abc</d>xyz"  # '</' is one token
    assert stops_at(byte_tokenizer, text, stop=["</d>"]) == 6
    assert stops_at(byte_tokenizer, text, stop=["<d>"]) is None


@pytest.mark.parametrize(
    ("text", "stop", "length"),
    [
        ("aEND", "N", 2),  # in the middle of a token
        ("a>\nb", ">", 2),  # at its start
        ("a>\nb", "a>", 2),  # ends inside a token
        ("a>\nb", "\n", 2),  # at its end
        ("aa", "aaa", None),
        ("aaa", "aaa", 3),
        ("xabab", "abab", 5),
        ("ab", "b ", None),
    ],
)
def test_wherever_the_boundaries_fall(byte_tokenizer, text, stop, length):
    assert stops_at(byte_tokenizer, text, stop=[stop]) == length


def test_a_character_of_several_byte_tokens_counts_when_it_is_whole(byte_tokenizer):
    assert len(byte_tokenizer("€")["input_ids"]) == 3
    assert stops_at(byte_tokenizer, "a€b", stop=["€"]) == 4
    assert stops_at(byte_tokenizer, "aé€b", stop=["é€b"]) == 7


def test_the_first_of_several_strings_ends_it(byte_tokenizer):
    assert stops_at(byte_tokenizer, "one two", stop=["two", "e"]) == 3


def test_a_special_token_can_be_spelt_as_a_stop_string(byte_tokenizer):
    ids = [*byte_tokenizer("ab")["input_ids"], byte_tokenizer.eos_token_id]
    assert stops_at(byte_tokenizer, ids, stop=["<|end|>"]) == 3
    assert stops_at(byte_tokenizer, ids, stop=["b<|"]) == 3


def test_stop_ids_and_strings_are_both_heeded_row_by_row(byte_tokenizer):
    eos, (a, b) = byte_tokenizer.eos_token_id, byte_tokenizer("ab")["input_ids"]
    table = StopTable(byte_tokenizer, len(byte_tokenizer), stop_ids=[eos], stop=["ab"])
    responses = torch.tensor([[a, b], [b, a], [b, b], [a, eos]])
    assert table.stopped(responses, torch.arange(4), 2).tolist() == [True, False, False, True]
    assert table.stopped(responses, torch.tensor([3, 0, 1]), 1).tolist() == [False, False, False]


def test_without_strings_no_text_is_made():
    table = StopTable(None, 8, stop_ids=[3])
    assert table.stopped(torch.tensor([[3], [2]]), torch.tensor([1, 0]), 1).tolist() == [False, True]


def test_a_long_response_is_decoded_only_at_its_end(byte_tokenizer, monkeypatch):
    table = StopTable(byte_tokenizer, len(byte_tokenizer), stop=["END!"])
    lengths = []
    decode = byte_tokenizer.batch_decode
    monkeypatch.setattr(
        byte_tokenizer, "batch_decode", lambda rows, **kw: lengths.extend(map(len, rows)) or decode(rows, **kw)
    )
    ids = byte_tokenizer("x" * 300 + "END!")["input_ids"]
    assert table.stopped(torch.tensor([ids]), torch.tensor([0]), len(ids))[0]
    assert lengths == [8]
    assert not table.stopped(torch.tensor([ids]), torch.tensor([0]), 9)[0]  # 'x' can't finish it: not decoded
    assert lengths == [8]


def test_tokenizers_that_hide_the_space_before_a_lone_piece():
    vocab = {"<unk>": 0, "▁": 1, "▁stop": 2, "▁go": 3, "s": 4, "t": 5, "o": 6, "p": 7}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    core.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    assert tokenizer.decode([2]) == "stop"
    assert stops_at(tokenizer, [3, 3, 2], stop=[" stop"]) == 3
    assert stops_at(tokenizer, [3, 3, 2], stop=["go s"]) == 3


def test_only_tokens_that_fit_the_end_of_a_string_are_candidates():
    assert may_finish("d>", ["</d>"])
    assert may_finish("d>\n", ["</d>"])
    assert may_finish("\ufffd", ["</d>"])
    assert not may_finish("d", ["</d>"])
    assert not may_finish("x>", ["</d>"])
    assert not may_finish("", ["</d>"])


def test_a_stop_id_outside_the_vocabulary_is_an_error():
    with pytest.raises(ConfigError, match="stop id 9 is outside the vocabulary, whose ids run from 0 to 7"):
        StopTable(None, 8, stop_ids=[9])
