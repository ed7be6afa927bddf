"""Rows made of a batch: what they hold, and the errors that name the sample."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlvlm.batch import Batch, Prompt, Span
from rlvlm.errors import ConfigError, DataError
from rlvlm.models.policy import Policy
from tests import tiny
from tests.close import assert_near
from tests.models.grids import mixed_batch, run

KINDS = ("shared", "packed", "padded")


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return tiny.policy(request.param)


@pytest.fixture
def batch(policy: Policy) -> Batch:
    return mixed_batch(policy, [[3, 1, 5], [4, 4], [1], [7, 2]])


def with_prompt(batch: Batch, number: int, **changes: object) -> Batch:
    prompts: list[Prompt] = list(batch.prompts)
    prompts[number] = dataclasses.replace(prompts[number], **changes)  # type: ignore[arg-type]
    return Batch(batch.tensors, prompts=prompts, media=batch.media)


def test_a_shared_row_holds_each_prompt_and_picture_once(policy: Policy, batch: Batch) -> None:
    rows = policy.layout(batch, "shared")
    prompts = torch.cat([prompt.ids for prompt in batch.prompts])
    answers = batch["input_ids"][batch["loss_mask"]]
    assert rows.ids.tolist() == [torch.cat((prompts, answers)).tolist()]
    assert rows.pictures is not None
    assert len(rows.pictures.slots) == int((prompts == policy.family.placeholder_id).sum())
    pictures = sum(len(prompt.spans) for prompt in batch.prompts)
    grids = rows.pictures.pixels.get("image_grid_thw")
    assert len(rows.pictures.pixels["pixel_values"] if grids is None else grids) == pictures


def test_packed_rows_encode_a_picture_once_and_padded_rows_once_a_sample(policy: Policy, batch: Batch) -> None:
    name = "pixel_values" if policy.family.name == "llava" else "image_grid_thw"
    count = {kind: len(policy.layout(batch, kind).pictures.pixels[name]) for kind in KINDS}  # type: ignore[union-attr]
    assert count == {"shared": 4, "packed": 4, "padded": 3 * 1 + 1 * 2 + 2 * 1}


def test_a_picture_that_two_prompts_show_is_encoded_once(policy: Policy) -> None:
    asked = tiny.prompts(policy, [[(60, 90)], [(60, 90)]])
    spans = tuple(dataclasses.replace(span, media=0) for span in asked.prompts[1].spans)
    twice = Batch(
        asked.tensors,
        prompts=[asked.prompts[0], dataclasses.replace(asked.prompts[1], spans=spans)],
        media=asked.media[:1],
    )
    batch = tiny.samples(policy, twice, [[3, 2], [4]])
    truth, _ = run(policy, batch, "padded")
    for kind in ("shared", "packed"):
        assert_near(run(policy, batch, kind)[0].logp, truth.logp)
    name = "pixel_values" if policy.family.name == "llava" else "image_grid_thw"
    assert len(policy.layout(batch, "shared").pictures.pixels[name]) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_no_sample_uses_are_left_out(policy: Policy, batch: Batch, kind: str) -> None:
    few = batch.index([0, 5, 1])
    whole = Batch(few.tensors, prompts=[*few.prompts, batch.prompts[3]], media=[*few.media, batch.media[-1]])
    assert policy.layout(whole, kind).ids.shape == policy.layout(few, kind).ids.shape


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_judge_gives_zeros_and_zero_gradients(policy: Policy, batch: Batch, kind: str) -> None:
    silent = batch.with_(loss_mask=torch.zeros_like(batch["loss_mask"]))
    outputs, gradient = run(policy, silent, kind)
    assert not outputs.logp.any()
    assert gradient.numel() > 0
    assert not gradient.any()


def test_a_batch_without_samples_runs_and_gives_zero_gradients(policy: Policy, batch: Batch) -> None:
    outputs, gradient = run(policy, batch.index([]), None)
    assert outputs.logp.shape == (0, batch.n_tokens)
    assert not gradient.any()


def test_a_prompt_answered_with_nothing_leaves_the_others_as_they_are(policy: Policy) -> None:
    asked = tiny.prompts(policy, [[(60, 90)], []])
    batch = tiny.samples(policy, asked, [[3, 0, 2], [0]])
    truth, _ = run(policy, batch, "padded")
    for kind in ("shared", "packed"):
        assert_near(run(policy, batch, kind)[0].logp, truth.logp)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampled_placeholder_is_named_with_its_sample_and_both_counts(
    policy: Policy, batch: Batch, kind: str
) -> None:
    ids = batch["input_ids"].clone()
    ids[4, int(batch["attention_mask"][4].sum()) - 1] = (
        policy.family.placeholder_id
    )  # second answer of a prompt without pictures
    with pytest.raises(
        DataError, match="sample 4 of prompt 'p1' holds 1 placeholder tokens, but its pictures give 0 features"
    ):
        policy.layout(batch.with_(input_ids=ids), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_span_is_named_with_its_prompt_and_both_counts(policy: Policy, batch: Batch, kind: str) -> None:
    family = policy.family
    both, one = (sum(span.length for span in batch.prompts[2].spans[:n]) for n in (2, 1))
    broken = with_prompt(batch, 2, spans=batch.prompts[2].spans[:1])
    with pytest.raises(
        DataError, match=f"of prompt 'p2' holds {both} placeholder tokens, but its pictures give {one} features"
    ):
        policy.layout(broken, kind)
    assert family.image_tokens((56, 56)) == one


@pytest.mark.parametrize("kind", KINDS)
def test_a_span_in_the_wrong_place_is_named(policy: Policy, batch: Batch, kind: str) -> None:
    span = batch.prompts[0].spans[0]
    moved = with_prompt(batch, 0, spans=(dataclasses.replace(span, offset=span.offset + 1),))
    with pytest.raises(
        DataError, match=f"of prompt 'p0' holds {span.length} placeholder tokens, which stand elsewhere"
    ):
        policy.layout(moved, kind)
    beyond = with_prompt(batch, 0, spans=(dataclasses.replace(span, offset=10_000),))
    with pytest.raises(DataError, match="of prompt 'p0' .* which stand elsewhere"):
        policy.layout(beyond, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_judged_token_that_can_not_be_sampled_is_named(kind: str) -> None:
    policy = tiny.policy("qwen2_5_vl")
    batch = mixed_batch(policy, [[3, 1, 5], [4, 4], [1], [7, 2]])
    ids = batch["input_ids"].clone()
    ids[3, int(batch["attention_mask"][3].sum()) - 2] = policy.tokenizer.get_vocab()["<|vision_start|>"]
    with pytest.raises(DataError, match="sample 3 of prompt 'p1' judges a token that stands for pictures"):
        policy.layout(batch.with_(input_ids=ids), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_another_size_than_its_tokens_is_named_with_both_counts(kind: str) -> None:
    policy = tiny.policy("qwen2_5_vl")
    batch = mixed_batch(policy, [[3, 1, 5], [4, 4], [1], [7, 2]])
    batch.media[0].pixels.update(policy.family.process(tiny.picture((28, 28))))
    with pytest.raises(DataError, match=r"prompt 'p0'.* has 6 placeholder tokens for a picture that gives 1 features"):
        policy.layout(batch, kind)


def test_rows_that_do_not_start_with_their_prompt_are_named(policy: Policy, batch: Batch) -> None:
    swapped = batch["group_ids"].clone()
    swapped[0] = 1
    with pytest.raises(
        DataError, match="sample 0 of prompt 'p1' does not start with its prompt's ids|is shorter than its prompt"
    ):
        policy.layout(batch.with_(group_ids=swapped), "shared")


@pytest.mark.parametrize(
    ("field", "where", "words"),
    [
        ("attention_mask", (0, 3), "attention_mask with gaps"),
        ("loss_mask", (0, 2), "loss_mask true inside its prompt"),
        ("loss_mask", (1, -1), "loss_mask true on padding"),
    ],
)
def test_masks_that_make_no_sense_are_named(
    policy: Policy, batch: Batch, field: str, where: tuple[int, int], words: str
) -> None:
    mask = batch[field].clone()
    mask[where] = ~mask[where]
    with pytest.raises(DataError, match=words):
        policy.layout(batch.with_({field: mask}), "shared")


def test_a_rows_own_span_inside_its_prompt_is_refused(policy: Policy, batch: Batch) -> None:
    spans: list[tuple[Span, ...]] = [()] * len(batch)
    spans[0] = (Span(0, 1, 1),)
    with pytest.raises(DataError, match="a span inside its prompt"):
        policy.layout(batch.with_objects(spans=spans), "shared")


def test_an_unknown_layout_is_named_with_the_nearest(policy: Policy, batch: Batch) -> None:
    with pytest.raises(ConfigError, match="did you mean 'shared'"):
        policy.layout(batch, "sharde")


def test_rows_move_to_a_device_with_everything_in_them(policy: Policy, batch: Batch) -> None:
    rows = policy.layout(batch, "shared")
    assert rows.to("cpu") is rows
    moved = rows.to("meta")
    assert moved.pictures is not None
    assert {t.device.type for t in (moved.ids, moved.positions, moved.reads, moved.pictures.slots)} == {"meta"}
    assert moved.layout.branches.index.device.type == "meta"  # type: ignore[union-attr]
