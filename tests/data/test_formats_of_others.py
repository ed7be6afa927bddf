"""Records as other libraries write them: read as they mean, or refused with the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlvlm.conf.check import examine
from rlvlm.data.check import check_source
from rlvlm.data.config import DataConfig, SourceConfig
from rlvlm.data.dialogues import dialogue_turns
from rlvlm.data.loader import as_prompt
from rlvlm.data.prompts import find_template
from rlvlm.data.records import as_record, format_of
from rlvlm.data.sources import open_source
from rlvlm.errors import DataError
from tests.data.helpers import png, write_jsonl


def read(row: dict[str, Any]) -> dict[str, Any]:
    return as_record(row, format_of(row, None, False, "x"), {}, "x")


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


USER, SAID = turn("user", "q"), turn("assistant", "a")
SHARED = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]

READ: list[tuple[str, dict[str, Any], list[str], list[Any]]] = [
    ("mmmu", {"question": "<image 2> or <image 1>?", "image_1": "a", "image_2": "b", "image_3": None}, ["<image> or <image>?"], ["b", "a"]),
    ("mmmu, gap", {"question": "see <image 2>", "image_1": None, "image_2": "b"}, ["see <image>"], ["b"]),
    ("mmmu, an option's picture", {"question": "see <image 1>", "image_1": "a", "image_2": "b"}, ["<image>see <image>"], ["b", "a"]),
    ("numbered columns alone", {"question": "q", "image_1": "a", "image_2": "b"}, ["q"], ["a", "b"]),
    ("a list by number", {"problem": "<image1>, <|image_2|>", "images": ["a", "b"]}, ["<image>, <image>"], ["a", "b"]),
    ("named twice", {"problem": "<image 1> and <image 1>", "images": ["a"]}, ["<image> and <image>"], ["a", "a"]),
    ("qwen-vl", {"problem": "Picture 1: <img>x/a.jpg</img>\nq"}, ["Picture 1: <image>\nq"], ["x/a.jpg"]),
    ("html stays", {"problem": "write <img>text</img>"}, ["write <img>text</img>"], []),
    ("null beside filled", {"problem": "q", "problem_type": "x", "images": None, "image": "a"}, ["q"], ["a"]),
    ("empty beside filled", {"problem": "", "question": "q", "images": [], "image": "", "image_path": "a"}, ["q"], ["a"]),
    ("empty messages", {"messages": [], "conversations": None, "problem": "q", "images": "a"}, ["q"], ["a"]),
    ("no bytes", {"problem": "q", "image": {"bytes": None, "path": None}, "images": ["a"]}, ["q"], ["a"]),
    (
        "by index",
        {"messages": [turn("user", [{"type": "image", "index": 1}, {"type": "text", "text": "x"}])], "images": ["a", "b"]},
        ["<image>x"],
        ["b"],
    ),
    (
        "by index, in another order",
        {"messages": [turn("user", [{"type": "image", "index": i, "text": None} for i in (1, 0, 1)])], "images": ["a", "b"]},
        ["<image>" * 3],
        ["b", "a", "b"],
    ),
    (
        "held and next",
        {"messages": [turn("user", [{"type": "image", "image": "h"}, {"type": "image"}])], "images": ["a"]},
        ["<image>" * 2],
        ["h", "a"],
    ),
    (
        "ms-swift",
        {
            "messages": [turn("user", "<image>find <ref-object>"), turn("assistant", "<bbox> and <bbox>")],
            "images": ["a"],
            "objects": {"ref": ["the dog"], "bbox": [[1, 2, 3, 4], [0.5, 0, 1, 1]]},
        },
        ["<image>find the dog", "[1, 2, 3, 4] and [0.5, 0, 1, 1]"],
        ["a"],
    ),
    ("number", {"messages": [USER, turn("assistant", 3)]}, ["q", "3"], []),
    ("box", {"conversations": [SHARED[0], {"from": "gpt", "value": [1, 2, 3, 4]}]}, ["q", "[1, 2, 3, 4]"], []),
    ("list", {"messages": [USER, turn("assistant", ["red", "crimson"])]}, ["q", "red"], []),
    ("trl", {"prompt": "q", "completion": "a"}, ["q", "a"], []),
    ("trl, messages", {"prompt": [USER], "completion": [SAID], "images": ["p"]}, ["q", "a"], ["p"]),
    ("alpaca", {"instruction": "q", "input": "i", "output": "a", "history": [["h", "r"]]}, ["h", "r", "q\ni", "a"], []),
    ("query", {"query": "q", "response": "a", "images": ["p"]}, ["q", "a"], ["p"]),
]  # fmt: skip


@pytest.mark.parametrize(("row", "texts", "pictures"), [one[1:] for one in READ], ids=[one[0] for one in READ])
def test_rows_are_read_as_they_mean(row: dict[str, Any], texts: list[str], pictures: list[Any]) -> None:
    record = read(row)
    found = [record["problem"]] if "messages" not in record else [one["content"] for one in record["messages"]]
    assert (found, record["images"]) == (texts, pictures)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"problem": "see <image 3>", "images": ["a"]}, "names <image 3>, and the row holds 1 pictures"),
    ({"problem": "see <image 1>"}, "names <image 1>, and the row holds 0 pictures"),
    ({"problem": "<image> <image 1>", "images": ["a", "b"]}, "both <image> and numbered marks"),
    ({"problem": "q", "photo": "x/a.jpg"}, r"'photo' holds a picture and is not read; .*columns: \{images: photo\}"),
    ({"problem": "q", "left": png()}, "'left' holds a picture"),
    ({"problem": "q", "left": {"bytes": png(), "path": None}}, "'left' holds a picture"),
    ({"problem": "q", "video": "a.mp4"}, r"videos or audio \(column 'video'\)"),
    ({"messages": [turn("user", "<ref-object>")]}, "no 'objects'"),
    ({"messages": [turn("user", "<bbox>")], "objects": {"bbox": [[1, 2, 3, 4]] * 2}}, "1 <bbox> marks for 2 entries"),
    ({"messages": [turn("user", [{"type": "image", "index": 2}])], "images": ["a", "b"]}, "index 2, and the row holds 2"),
    ({"prompt": "q", "chosen": "a", "rejected": "b"}, "pair of preferences"),
    ({"messages": [USER, turn("assistant", None)]}, "no content .null. and no 'tool_calls'"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message"), REFUSED)
def test_rows_that_cannot_be_read_are_refused_with_the_remedy(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(row)


@pytest.mark.parametrize("row", [
    {"conversations": SHARED, "system": "Be brief."},
    {"messages": [USER, SAID], "system": "Be brief."},
    {"instruction": "q", "output": "a", "system": "Be brief."},
    {"problem": "q", "answer": "a", "system": "Be brief."},
])  # fmt: skip
def test_a_record_s_system_column_is_its_system_message(row: dict[str, Any]) -> None:
    record = read(row)
    wanted = [("system", "Be brief."), ("user", "q")]
    messages, columns = as_prompt(record, None, "the settings'")
    assert [(one["role"], one["content"]) for one in messages] == wanted
    assert columns["answer"] == "a"
    turns = dialogue_turns(record, find_template(None), "the settings'")
    assert [(one["role"], one["content"]) for one in turns] == [*wanted, ("assistant", "a")]


def test_a_list_of_last_answers_is_the_gold_list() -> None:
    _, columns = as_prompt(read({"messages": [USER, turn("assistant", ["red", "crimson"])]}), None, None)
    assert columns["answer"] == ["red", "crimson"]


def test_a_null_response_does_not_hide_the_answer() -> None:
    record = read({"problem": "q", "response": None, "solution": "", "ground_truth": "a"})
    assert dialogue_turns(record, find_template(None))[-1]["content"] == "a"


@pytest.mark.parametrize(
    "row", [{"conversations": SHARED}, {"messages": [USER, SAID]}, {"prompt": "q", "completion": "a"}]
)
def test_dialogues_serve_rl_from_the_command_line(row: dict[str, Any], tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    config = DataConfig(train=path, template=None)
    source = open_source(SourceConfig(path=path), config)
    assert check_source(source, config, progress=False).usable == 1
    overrides = [f"data.train={path}", f"data.eval={path}", "reward.rules={string: 1.0}", "data.template=null"]
    _, found = examine("quickstart", overrides)
    assert not [line for line in found.problems if "answer" in line]
