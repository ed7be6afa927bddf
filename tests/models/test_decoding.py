"""The generation cache attends as plain attention over [prompt, own tokens] does, without copying prompts for samples."""

from __future__ import annotations

import types

import pytest
import torch

from rlvlm.models.attention import grouped_sdpa
from rlvlm.models.decoding import GenerationCache, Prefill
from tests.close import assert_near

LAYERS = [types.SimpleNamespace(layer_idx=index) for index in range(2)]
HEADS, KEY_HEADS, SIZE, SCALING = 6, 2, 8, 0.3


def heads(rows: int, tokens: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Random query, key and value, laid out as a model hands them over: views whose heads and tokens are swapped."""
    return [
        torch.randn(rows, tokens, count, SIZE, generator=generator).transpose(1, 2)
        for count in (HEADS, KEY_HEADS, KEY_HEADS)
    ]


class Reference:
    """Every sample as a row of its own with all of its keys, attended to by plain causal attention."""

    def __init__(self, lengths: list[int], samples: int, generator: torch.Generator) -> None:
        self.prompts = [[heads(1, length, generator) for length in lengths] for _ in LAYERS]
        self.own = [[[[] for _ in range(samples)] for _ in lengths] for _ in LAYERS]

    def packed(self, layer: int, first: int = 0, last: int | None = None) -> list[torch.Tensor]:
        parts = self.prompts[layer][first:last]
        return [torch.cat([prompt[which] for prompt in parts], dim=2) for which in range(3)]

    def prompt_out(self, layer: int) -> torch.Tensor:
        return torch.cat([grouped_sdpa(*qkv, SCALING, causal=True) for qkv in self.prompts[layer]], dim=1)

    def token_out(self, layer: int, prompt: int, sample: int, qkv: list[torch.Tensor]) -> torch.Tensor:
        own = self.own[layer][prompt][sample]
        own.append(qkv)
        _, key, value = self.prompts[layer][prompt]
        key = torch.cat([key, *(part[1] for part in own)], dim=2)
        value = torch.cat([value, *(part[2] for part in own)], dim=2)
        return grouped_sdpa(qkv[0], key, value, SCALING)


def prefilled(
    reference: Reference, lengths: list[int], samples: int, max_tokens: int, pieces: int = 1
) -> GenerationCache:
    cache = GenerationCache(lengths, samples, max_tokens)
    size = len(lengths) // pieces
    for first in range(0, len(lengths), size):
        layout = Prefill.of(cache, first, torch.tensor(lengths[first : first + size]))
        for module in LAYERS:
            layout.attend(module, *reference.packed(module.layer_idx, first, first + size), SCALING)
    return cache


def check_decoding(
    cache: GenerationCache, reference: Reference, rows: list[list[tuple[int, int]]], generator: torch.Generator
) -> None:
    """One token for every (prompt, sample) in ``rows``, compared layer by layer."""
    flat = [pair for row in rows for pair in row]
    for module in LAYERS:
        query, key, value = heads(len(flat), 1, generator)
        got = cache.attend(module, query, key, value, SCALING)
        assert got.shape == (len(flat), 1, HEADS, SIZE)
        for place, (prompt, sample) in enumerate(flat):
            one = slice(place, place + 1)
            want = reference.token_out(module.layer_idx, prompt, sample, [query[one], key[one], value[one]])
            assert_near(got[one], want, within=2e-6)
    cache.advance()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("lengths", [[5, 5, 5], [7, 2, 4], [1, 3], [6]])
def test_prefill_is_causal_attention_within_each_prompt(lengths, generator):
    reference = Reference(lengths, 1, generator)
    layout = Prefill.of(GenerationCache(lengths, 1, 4), 0, torch.tensor(lengths))
    for module in LAYERS:
        got = layout.attend(module, *reference.packed(module.layer_idx), SCALING)
        assert_near(got, reference.prompt_out(module.layer_idx), within=2e-6)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("lengths", [[5, 5], [7, 2], [4]])
def test_each_sample_attends_to_its_prompt_and_to_its_own_tokens(lengths, samples, generator):
    reference = Reference(lengths, samples, generator)
    cache = prefilled(reference, lengths, samples, max_tokens=6)
    rows = [[(p, s) for s in range(samples)] for p in range(len(lengths))]
    for _ in range(6):
        check_decoding(cache, reference, rows, generator)


def test_prompts_may_be_prefilled_in_pieces_of_different_widths(generator):
    lengths = [3, 5, 2, 1]
    reference = Reference(lengths, 2, generator)
    cache = prefilled(reference, lengths, 2, max_tokens=2, pieces=2)
    for _ in range(2):
        check_decoding(cache, reference, [[(p, s) for s in range(2)] for p in range(4)], generator)


def test_samples_outgrow_their_first_room(generator, monkeypatch):
    monkeypatch.setattr("rlvlm.models.decoding._FIRST_ROOM", 2)
    reference = Reference([3, 4], 2, generator)
    cache = prefilled(reference, [3, 4], 2, max_tokens=7)
    for _ in range(7):
        check_decoding(cache, reference, [[(p, s) for s in range(2)] for p in range(2)], generator)
    assert all(layer.own_key.shape[3] == 7 for layer in cache._layers.values())


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_dropped_from_any_prompt_while_the_others_go_on(seed, generator):
    lengths, samples = [4, 6, 3], 4
    reference = Reference(lengths, samples, generator)
    cache = prefilled(reference, lengths, samples, max_tokens=8)
    rows = [(p, s) for p in range(3) for s in range(samples)]
    pick = torch.Generator().manual_seed(seed)
    while rows:
        check_decoding(cache, reference, [rows], generator)
        ended = torch.rand(len(rows), generator=pick) < 0.3
        rows = [row for row, gone in zip(rows, ended.tolist(), strict=True) if not gone]
        if rows and bool(ended.any()):
            cache.drop(ended)
        if cache.tokens == 8:
            break


def test_what_was_dropped_is_cut_out_when_that_pays(generator):
    reference = Reference([4, 6, 3], 4, generator)
    cache = prefilled(reference, [4, 6, 3], 4, max_tokens=4)
    check_decoding(cache, reference, [[(p, s) for s in range(4)] for p in range(3)], generator)
    cache.drop(torch.tensor([True] + [False] * 11))  # one of twelve: the block stays
    assert cache._layers[0].own_key.shape[:3] == (3, KEY_HEADS, 4)
    cache.drop(torch.tensor([True, False, True] + [True] * 4 + [False, True, True, False]))
    assert cache._layers[0].own_key.shape[:3] == (2, KEY_HEADS, 2)
    assert cache._layers[0].prompt_key.shape[0] == 2
    check_decoding(cache, reference, [[(0, 2), (2, 0), (2, 3)]], generator)


def test_prompts_are_kept_once_whatever_the_number_of_samples(generator):
    sizes = {}
    for samples in (1, 16):
        cache = prefilled(Reference([50, 50], samples, generator), [50, 50], samples, max_tokens=4)
        sizes[samples] = sum(layer.prompt_key.numel() for layer in cache._layers.values())
    assert sizes[1] == sizes[16] == 2 * len(LAYERS) * KEY_HEADS * 50 * SIZE


def test_half_precision_keeps_its_dtype_with_the_softmax_in_fp32(generator):
    reference = Reference([9, 4], 2, generator)
    exact, half = GenerationCache([9, 4], 2, 3), GenerationCache([9, 4], 2, 3)
    packed = reference.packed(0)
    Prefill.of(exact, 0, torch.tensor([9, 4])).attend(LAYERS[0], *packed, SCALING)
    Prefill.of(half, 0, torch.tensor([9, 4])).attend(LAYERS[0], *(part.bfloat16() for part in packed), SCALING)
    token = heads(4, 1, generator)
    want = exact.attend(LAYERS[0], *token, SCALING)
    got = half.attend(LAYERS[0], *(part.bfloat16() for part in token), SCALING)
    assert got.dtype == torch.bfloat16
    assert (got.float() - want).abs().max() < 0.03
