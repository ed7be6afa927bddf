"""Formats: each kind of row becomes the same kind of record, and faults name file and row."""

from __future__ import annotations

from typing import Any

import pytest

from rlvlm.data.records import FORMATS, as_record, format_of, picture_list, register_format
from rlvlm.errors import DataError, RegistryError

ORIGIN = "x.jsonl, row 4"


def read(row: dict[str, Any], format: Any = None, columns: dict[str, str] | None = None) -> dict[str, Any]:
    chosen = None if format is None else FORMATS.build(format)
    return as_record(row, format_of(row, chosen, bool(columns), ORIGIN), columns or {}, ORIGIN)


def test_flat_rows_under_their_usual_names() -> None:
    assert read({"problem": "q", "answer": "a", "images": ["x.png"], "level": 3}) == {
        "problem": "q",
        "answer": "a",
        "images": ["x.png"],
        "level": 3,
    }
    record = read({"question": "q", "solution": "a", "image": "cat.jpg"})
    assert (record["problem"], record["answer"], record["images"]) == ("q", "a", ["cat.jpg"])
    assert read({"problem": "q", "images": None})["images"] == []


def test_verl_rows_keep_their_columns() -> None:
    row = {
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "<image>q"}],
        "images": [{"bytes": b"x", "path": None}],
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "data_source": "geo3k",
        "extra_info": {"index": 7},
    }
    record = read(row)
    assert record["messages"] == row["prompt"]
    assert (record["answer"], record["data_source"], record["extra_info"]) == ("42", "geo3k", {"index": 7})
    assert record["images"] == [{"bytes": b"x", "path": None}]


def test_verl_content_in_parts_with_pictures_inside() -> None:
    parts = [
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": "q"},
        {"type": "image_url", "image_url": {"url": "b.png"}},
    ]
    record = read({"prompt": [{"role": "user", "content": parts}], "reward_model": {"ground_truth": "1"}})
    assert record["messages"] == [{"role": "user", "content": "<image>q<image>"}]
    assert record["images"] == ["a.png", "b.png"]


def test_llava_conversations_of_several_turns() -> None:
    turns = [
        {"from": "human", "value": "<image>\nq1"},
        {"from": "gpt", "value": "a1"},
        {"from": "human", "value": "q2"},
        {"from": "gpt", "value": "a2"},
    ]
    record = read({"id": "7", "image": "coco/7.jpg", "conversations": turns})
    assert [turn["role"] for turn in record["messages"]] == ["user", "assistant", "user", "assistant"]
    assert record["images"] == ["coco/7.jpg"]
    assert record["id"] == "7"


def test_onevision_rl_rows_choose_their_template() -> None:
    row = {
        "problem": "<image>q",
        "answer": ["5"],
        "problem_type": "counting",
        "answer_type": "number",
        "prompt_type": "normal",
        "images": ["x"],
    }
    assert read(row)["prompt_template"] == "answer_only"
    assert read({**row, "prompt_type": "thinking"})["prompt_template"] == "think_answer"
    assert "prompt_template" not in read(row, {"name": "llava_ov_rl", "use_prompt_type": False})
    assert read(row)["answer"] == "5"
    assert read({**row, "answer": ["5", "five"]})["answer"] == ["5", "five"]
    assert read({**row, "format_guidance": "As a number."})["problem"] == "As a number.\n<image>q"


def test_captions_become_a_turn_each() -> None:
    record = read({"caption": "a cat", "image": "c.jpg"}, {"name": "caption", "instruction": "Say what you see."})
    assert record["messages"] == [
        {"role": "user", "content": "Say what you see."},
        {"role": "assistant", "content": "a cat"},
    ]


def test_columns_rename_also_into_nested_ones() -> None:
    record = read(
        {"q": "q", "meta": {"gold": "a"}, "pic": b"x"}, columns={"problem": "q", "answer": "meta.gold", "images": "pic"}
    )
    assert (record["problem"], record["answer"], record["images"]) == ("q", "a", [b"x"])


def test_a_format_of_one_s_own() -> None:
    @register_format("mine_for_a_test", override=True)
    def mine(row: Any, *, shout: bool = False) -> dict[str, Any]:
        """Mine."""
        return {"problem": row["text"].upper() if shout else row["text"], "images": []}

    assert read({"text": "q"}, {"name": "mine_for_a_test", "shout": True})["problem"] == "Q"
    with pytest.raises(RegistryError, match="shuot"):
        read({"text": "q"}, {"name": "mine_for_a_test", "shuot": True})
    with pytest.raises(
        DataError, match=r"x.jsonl, row 4: format 'mine_for_a_test' can't read the row \(KeyError: 'text'\)"
    ):
        read({"txet": "q"}, "mine_for_a_test")
    assert {"flat", "verl", "llava", "llava_ov_rl", "messages", "caption"} <= set(FORMATS.names())


@pytest.mark.parametrize(("row", "message"), [
    ({"a": 1}, "can't tell what the row means from its columns"),
    ({"problem": None, "question": None, "prompt_type": "x"}, "row 4"),
    ({"problem": 3}, "'problem' \\(text\\)"),
    ({"problem": "\ud800"}, "no valid text"),
    ({"conversations": [{"from": "alien", "value": "x"}]}, "got 'alien'"),
    ({"conversations": [{"from": "human", "value": None}]}, "no content \\(null\\)"),
    ({"conversations": []}, "can't tell what the row means"),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "type 'audio'"),
    ({"problem": "q", "videos": ["v.mp4"]}, "videos"),
    ({"messages": "text"}, "can't read the row"),
])  # fmt: skip
def test_unusable_rows_are_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(row)
    assert str(caught.value).startswith(ORIGIN)


def test_a_misspelt_column_names_the_nearest() -> None:
    with pytest.raises(DataError, match="no column 'qeustion' .did you mean 'question'"):
        read({"question": "q"}, columns={"problem": "qeustion"})


@pytest.mark.parametrize(
    ("value", "count"),
    [(None, 0), ("", 0), ("cat.jpg", 1), (b"x", 1), (["a", None, "b"], 2), ((), 0), ({"bytes": b"x"}, 1)],
)
def test_picture_columns_as_lists(value: Any, count: int) -> None:
    assert len(picture_list(value)) == count
