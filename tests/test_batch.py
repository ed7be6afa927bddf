"""The batch: checks on assignment, row and column operations, and tables that follow them."""

from __future__ import annotations

import pytest
import torch

from rlvlm.batch import Batch, Media, Prompt, Span
from rlvlm.errors import FieldError
from rlvlm.fields import FIELDS, register_field


def prompt(uid: str, *spans: Span) -> Prompt:
    return Prompt(uid, {"answer": uid}, torch.arange(4), torch.arange(2), tuple(spans))


def make(groups: list[int], n_prompts: int = 3, length: int = 5) -> Batch:
    size = len(groups)
    media = [
        Media(f"m{i}", (8, 8), image=i, pixels={"pixel_values": torch.full((2,), float(i))}) for i in range(n_prompts)
    ]
    prompts = [prompt(f"p{i}", Span(i, 1, 2)) for i in range(n_prompts)]
    return Batch(
        {
            "input_ids": torch.arange(size * length).reshape(size, length),
            "attention_mask": torch.ones(size, length, dtype=torch.bool),
            "versions": torch.zeros(size, length, dtype=torch.int32),
            "group_ids": torch.tensor(groups),
            ("scores_by_rule", "format"): torch.arange(size, dtype=torch.float32),
        },
        objects={"completions": [f"c{i}" for i in range(size)]},
        prompts=prompts,
        media=media,
        prompt_tensors={"greedy_rewards": torch.arange(n_prompts, dtype=torch.float32)},
        meta={"step": 3},
    )


def pointed_at(batch: Batch) -> list[tuple[str, str]]:
    """Each row's (prompt uid, key of the prompt's first picture), read through the tables."""
    rows = [batch.prompts[g] for g in batch["group_ids"].tolist()]
    return [(p.uid, batch.media[p.spans[0].media].key) for p in rows]


def test_fields_are_checked_on_assignment():
    batch = make([0, 1, 2])
    with pytest.raises(FieldError, match=r"no batch field 'advantage' \(did you mean 'advantages'\?\)"):
        batch.with_(advantage=torch.zeros(3, 5))
    with pytest.raises(FieldError, match=r"'advantages' has shape \[B=3, L=5\], got \[3, 4\]"):
        batch.with_(advantages=torch.zeros(3, 4))
    with pytest.raises(FieldError, match=r"'behav_logp' has dtype torch.float32, got torch.float64"):
        batch.with_(behav_logp=torch.zeros(3, 5, dtype=torch.float64))
    with pytest.raises(FieldError, match="takes a tensor, got list"):
        batch.with_(scores=[1.0, 2.0, 3.0])
    with pytest.raises(FieldError, match="group_ids run from 0 to 7, but there are 3 prompts"):
        make([0, 7, 1])
    with pytest.raises(FieldError, match="points at picture 5, but there are 0"):
        Batch({"group_ids": torch.tensor([0])}, prompts=[prompt("a", Span(5, 0, 1))])


def test_a_missing_field_says_who_writes_it_and_what_turns_that_on():
    with pytest.raises(FieldError, match=r"no field 'values' .*Critic writes it, turned on by critic"):
        make([0]).require("input_ids", "values")
    assert make([0]).get("values") is None
    with pytest.raises(FieldError, match="did you mean 'values'"):
        make([0]).get("valeus")


def test_operations_never_change_their_argument():
    batch = make([0, 1, 2])
    before = {key: batch[key].clone() for key in batch.keys()}
    batch.with_(scores=torch.ones(3)).index([2, 0]).drop("input_ids")
    batch.with_objects(note=["a", "b", "c"])
    batch.with_meta(extra=1)
    assert "scores" not in batch
    assert "note" not in batch.objects
    assert "extra" not in batch.meta
    assert all(torch.equal(before[key], batch[key]) for key in batch.keys())
    assert batch.with_(scores=torch.ones(3))["input_ids"].data_ptr() == batch["input_ids"].data_ptr()


def test_rewards_are_always_the_row_sum_of_token_rewards():
    token_rewards = torch.tensor([[0.0, 1.0, 2.0, 0.0, 0.0]] * 3)
    batch = make([0, 1, 2]).with_(token_rewards=token_rewards)
    assert batch["rewards"].tolist() == [3.0] * 3
    assert batch.with_(token_rewards=token_rewards * 2)["rewards"].tolist() == [6.0] * 3
    with pytest.raises(FieldError, match="row sum of 'token_rewards'"):
        batch.with_(rewards=torch.ones(3))


def test_tables_follow_filter_split_and_index():
    batch = make([2, 0, 2, 1])
    assert pointed_at(batch) == [("p2", "m2"), ("p0", "m0"), ("p2", "m2"), ("p1", "m1")]
    kept = batch.filter(torch.tensor([True, False, True, False]))
    assert pointed_at(kept) == [("p2", "m2")] * 2
    assert [m.key for m in kept.media] == ["m2"]
    assert kept["greedy_rewards"].tolist() == [2.0]
    assert kept.objects["completions"] == ["c0", "c2"]
    for piece, rows in zip(batch.split([1, 3]), ([0], [1, 2, 3]), strict=True):
        assert pointed_at(piece) == [pointed_at(batch)[row] for row in rows]
        assert piece.objects["completions"] == [f"c{row}" for row in rows]
    empty = batch.filter(torch.zeros(4, dtype=torch.bool))
    assert (len(empty), empty.prompts, empty.media) == (0, (), ())
    assert [len(piece) for piece in batch.chunk(3)] == [2, 1, 1]
    assert [len(piece) for piece in batch.chunk(9)] == [1, 1, 1, 1]


def test_row_spans_follow_too():
    batch = make([2, 0]).with_objects(spans=[(Span(0, 3, 1),), (Span(2, 2, 1),)])
    kept = batch.index([0])  # prompt 2 (picture m2), and picture m0 in its observation
    assert {m.key for m in kept.media} == {"m0", "m2"}
    assert kept.media[kept.objects["spans"][0][0].media].key == "m0"
    joined = Batch.concat([batch.index([1]), kept])
    assert [joined.media[row[0].media].key for row in joined.objects["spans"]] == ["m2", "m0"]


def test_concat_of_a_split_is_the_batch_again():
    batch = make([2, 0, 2, 1])
    again = Batch.concat(batch.split([1, 2, 1]))
    assert pointed_at(again) == pointed_at(batch)
    assert len(again.prompts) == 3
    assert len(again.media) == 3
    for key in ("input_ids", "attention_mask", "versions", ("scores_by_rule", "format")):
        assert torch.equal(again[key], batch[key])
    values = dict(zip([p.uid for p in again.prompts], again["greedy_rewards"].tolist(), strict=True))
    assert values == {"p0": 0.0, "p1": 1.0, "p2": 2.0}


def test_concat_pads_tokens_right_with_each_fields_padding():
    short, long = make([0], length=3), make([1], length=5)
    joined = Batch.concat([short, long])
    assert joined["input_ids"].shape == (2, 5)
    assert joined["attention_mask"][0].tolist() == [True] * 3 + [False] * 2
    assert joined["versions"][0].tolist() == [0, 0, 0, -1, -1]
    with pytest.raises(FieldError, match=r"only some have \['scores'\]"):
        Batch.concat([short, long.with_(scores=torch.zeros(1))])


def test_repeat_keeps_one_table_entry_for_each_group():
    batch = make([0, 1]).repeat(3)
    assert batch["group_ids"].tolist() == [0, 0, 0, 1, 1, 1]
    assert len(batch.prompts) == 2
    assert len(batch.media) == 2


def test_columns_select_drop_rename_merge():
    batch = make([0, 1])
    assert set(batch.select("input_ids", "completions").keys()) == {"input_ids"}
    assert batch.select("completions", "input_ids").objects == {"completions": ["c0", "c1"]}
    with pytest.raises(FieldError, match="can't drop 'inputids'.*did you mean 'input_ids'"):
        batch.drop("inputids")
    renamed = batch.with_(behav_logp=torch.ones(2, 5)).rename(behav_logp="prox_logp", completions="texts")
    assert "behav_logp" not in renamed
    assert renamed["prox_logp"].sum() == 10
    assert renamed.objects["texts"] == ["c0", "c1"]
    merged = batch.merge(batch.select("group_ids").with_(scores=torch.ones(2)))
    assert merged["scores"].tolist() == [1.0, 1.0]
    with pytest.raises(FieldError, match="two different values of field 'versions'"):
        batch.merge(batch.with_(versions=batch["versions"] + 1))
    with pytest.raises(FieldError, match="same samples, got 2 and 3"):
        batch.merge(make([0, 1, 2]))


def test_bad_rows_are_refused_in_one_sentence():
    batch = make([0, 1, 2])
    with pytest.raises(FieldError, match="row numbers from 0 to 2, got 0 to 3"):
        batch.index([0, 3])
    with pytest.raises(FieldError, match="bool mask of shape"):
        batch.filter(torch.ones(3))
    with pytest.raises(FieldError, match="add up to 3 samples"):
        batch.split([1, 1])
    with pytest.raises(FieldError, match="permutation of 3 rows"):
        batch.reorder([0, 0, 1])
    with pytest.raises(FieldError, match="has 1 entries for 3 samples"):
        batch.with_objects(note=["a"])


def test_repr_names_sizes_fields_and_columns():
    text = repr(make([0, 1]))
    assert text.startswith("Batch(2 samples, 5 tokens, 3 prompts, 3 pictures)")
    assert "input_ids          int64    [2, 5]" in text
    assert "scores_by_rule/format" in text
    assert "objects: completions" in text


def test_register_field_declares_a_column_that_is_checked_like_the_others():
    try:
        register_field(
            "saliency", "B L", torch.float32, "how much a token looks at the picture", writer=lambda b: b["behav_logp"]
        )
        batch = make([0]).with_(saliency=torch.zeros(1, 5))
        assert "saliency" in batch
        with pytest.raises(FieldError, match=r"\[B=1, L=5\], got \[1, 2\]"):
            batch.with_(saliency=torch.zeros(1, 2))
        with pytest.raises(FieldError, match="'saliency' is declared already"):
            register_field("saliency", "B", torch.float32, "again")
    finally:
        FIELDS.pop("saliency", None)
    with pytest.raises(FieldError, match="first is B"):
        register_field("odd", "L", torch.float32, "no rows")
    with pytest.raises(FieldError, match="dimension 'Q'"):
        register_field("odd", "B Q", torch.float32, "no such size")


def test_a_batch_moves_with_its_tables():
    batch = make([0, 1])
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved["input_ids"].device.type == "meta"
    assert moved.prompts[0].ids.device.type == "meta"
    assert moved.media[0].pixels["pixel_values"].device.type == "meta"
