"""Dialogues: loss on the assistant's tokens alone, ids as the policy would be prompted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from rlvlm.data.config import DataConfig
from rlvlm.data.dialogues import dialogue_turns, encode_dialogue
from rlvlm.data.media import Picture
from rlvlm.data.prompts import TEMPLATES, PromptEncoder, Template
from rlvlm.data.supervised import DialogueAssembler, supervised_loader
from rlvlm.errors import DataError
from tests.data.helpers import family, png, write_jsonl

TURNS = [
    {"role": "user", "content": "<image>What is it?"},
    {"role": "assistant", "content": "A square."},
    {"role": "user", "content": "And <image>this?"},
    {"role": "assistant", "content": "A circle."},
]
PICTURES = [Picture(Image.new("RGB", size)) for size in ((56, 56), (112, 84))]


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_loss_is_on_the_answers_and_their_end_of_turn_alone(name: str) -> None:
    bound = family(name)
    dialogue = encode_dialogue(TURNS, PICTURES, bound)
    decode = bound.tokenizer.decode
    assert decode(dialogue.ids[dialogue.loss_mask]) == "A square.<|im_end|>A circle.<|im_end|>"
    for turn, text in enumerate(("A square.<|im_end|>", "A circle.<|im_end|>")):
        assert decode(dialogue.ids[dialogue.turn_ids == turn]) == text
    assert int((dialogue.ids == bound.placeholder_id).sum()) == sum(bound.image_tokens(p.size) for p in PICTURES)
    assert not dialogue.loss_mask[dialogue.ids == bound.placeholder_id].any()
    for span in dialogue.spans:
        assert (dialogue.ids[span.offset : span.offset + span.length] == bound.placeholder_id).all()


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_the_part_before_an_answer_is_what_a_policy_is_prompted_with(name: str) -> None:
    bound = family(name)
    dialogue = encode_dialogue(TURNS, PICTURES, bound)
    ids, engine_ids, spans = PromptEncoder(bound)(TURNS[:1], PICTURES[:1])
    assert torch.equal(dialogue.ids[: dialogue.prompt_length], ids)
    assert torch.equal(dialogue.engine_ids, engine_ids)
    assert dialogue.spans[:1] == spans
    whole, _, _ = PromptEncoder(bound)(TURNS[:3], PICTURES)
    second = int((dialogue.turn_ids == 1).nonzero()[0])
    assert torch.equal(dialogue.ids[:second], whole)


def test_without_a_chat_template_answers_end_with_the_end_token(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = family("llava")
    monkeypatch.setattr(bound.tokenizer, "chat_template", None)
    dialogue = encode_dialogue(TURNS, PICTURES, bound)
    assert bound.tokenizer.decode(dialogue.ids[dialogue.turn_ids == 0]) == "A square.<|im_end|>"


def test_a_template_that_rewrites_earlier_turns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = family("llava")
    monkeypatch.setattr(
        bound.tokenizer, "chat_template", "{{ messages | length }}{% for m in messages %}{{ m.role }}{% endfor %}"
    )
    with pytest.raises(DataError, match="rewrites earlier turns"):
        encode_dialogue(TURNS, [], bound)


def test_turns_of_each_kind_of_record() -> None:
    assert dialogue_turns({"messages": TURNS, "images": [1, 2]}, TEMPLATES["as_is"]) == TURNS
    told = dialogue_turns({"problem": "q", "answer": ["a", "b"], "images": [1]}, Template("{{ problem }}?", "brief"))
    assert [turn["content"] for turn in told] == ["brief", "<image>q?", "a"]
    assert (
        dialogue_turns({"problem": "q", "answer": "a", "response": "It is a."}, TEMPLATES["as_is"])[-1]["content"]
        == "It is a."
    )
    for record in ({"problem": "q"}, {"problem": "q", "answer": []}, {"messages": TURNS[:1], "images": [1]}):
        with pytest.raises(DataError, match="nothing to learn from"):
            dialogue_turns(record, TEMPLATES["as_is"])
    with pytest.raises(DataError, match="begins with an assistant's turn"):
        dialogue_turns({"messages": TURNS[1:], "images": [1]}, TEMPLATES["as_is"])
    with pytest.raises(DataError, match="no valid text"):
        dialogue_turns({"problem": "q", "answer": "\ud800"}, TEMPLATES["as_is"])


def test_rows_of_a_batch_are_right_padded_and_later_pictures_have_their_places(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(png((56, 56), (number, 0, 0)))
    rows: list[dict[str, Any]] = [
        {"messages": TURNS, "images": ["0.png", "1.png"]},
        {"problem": "q", "answer": "a", "images": []},
    ]
    config = DataConfig(train=write_jsonl(tmp_path / "a.jsonl", rows), template=None, prompts_per_step=2, shuffle=False)
    loader = supervised_loader(config, family("llava"))
    batch = next(iter(loader))
    loader.close()
    assert batch["input_ids"].shape == batch["loss_mask"].shape == (2, batch.n_tokens)
    assert batch["attention_mask"].sum(1).tolist()[0] == batch.n_tokens
    assert not batch["loss_mask"][~batch["attention_mask"]].any()
    assert (batch["turn_ids"][~batch["loss_mask"]] == -1).all()
    (later,), none = batch.objects["spans"]
    assert none == ()
    assert batch.prompts[0].spans[0].media == 0
    assert later.media == 1
    placed = batch["input_ids"][0, later.offset : later.offset + later.length]
    assert (placed == family("llava").placeholder_id).all()
    assert torch.equal(batch["input_ids"][1, : len(batch.prompts[1].ids)], batch.prompts[1].ids)


TOOL = {"type": "function", "function": {"name": "zoom", "parameters": {}}}


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL])])
def test_tools_of_a_record_reach_the_chat_template(tools: object, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = family()
    template = bound.tokenizer.chat_template
    monkeypatch.setattr(
        bound.tokenizer, "chat_template", "{% if tools %}TOOLS {{ tools | tojson }} {% endif %}" + template
    )
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "images": []}
    rows = DialogueAssembler(DataConfig(), bound)
    plain, told = (rows.encode(some, [], None)[1][0].dialogue for some in (row, {**row, "tools": tools}))
    assert "zoom" in bound.tokenizer.decode(told.ids)
    assert "zoom" not in bound.tokenizer.decode(plain.ids)
    assert told.loss_mask.sum() == plain.loss_mask.sum(), "what tools there are is context"
    with pytest.raises(DataError, match="the column 'tools'"):
        rows.encode({**row, "tools": '{"a'}, [], None)
