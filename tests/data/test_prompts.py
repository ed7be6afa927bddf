"""Templates, marks and encodings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rlvlm.data.media import Picture
from rlvlm.data.prompts import (
    TEMPLATES,
    OverLongError,
    PromptEncoder,
    Template,
    find_template,
    template_of,
    to_messages,
    with_parts,
)
from rlvlm.errors import ConfigError, DataError
from tests.data.helpers import family


def user_text(record: dict[str, Any], template: str | None) -> str:
    return str(to_messages(record, find_template(template))[0][-1]["content"])


def test_the_three_templates_ask_for_what_their_names_say() -> None:
    record = {"problem": "How many?", "images": []}
    assert all(user_text(record, name).startswith("How many?") for name in TEMPLATES)
    assert "<answer>" in user_text(record, "answer_only")
    assert "<think>" not in user_text(record, "answer_only")
    assert "<think>" in user_text(record, "think_answer")
    assert "<answer>" in user_text(record, "think_answer")
    assert "\\boxed{}" in user_text(record, "boxed")
    assert user_text(record, None) == "How many?"


def test_a_template_of_one_s_own_by_text_or_file(tmp_path: Path) -> None:
    record = {"problem": "q", "choices": ["x", "y"], "images": []}
    assert user_text(record, "{{ problem }}? {{ choices | join('/') }}") == "q? x/y"
    assert user_text(record, "{{ content | trim }} please") == "q please", "EasyR1's name for the problem"
    (tmp_path / "own.jinja").write_text("Look. {{ problem }}\n")
    assert user_text(record, str(tmp_path / "own.jinja")) == "Look. q"
    with pytest.raises(DataError, match="column that the record has not"):
        user_text(record, "{{ problme }}")
    for wrong in ("{{ choices | join('/') }}", "{{ 1 // choices }}", "{{ level + 1 }}"):
        with pytest.raises(DataError, match="can't be filled from the record"):
            user_text({"problem": "q", "choices": 0, "level": "3", "images": []}, wrong)
    with pytest.raises(ConfigError, match="did you mean 'think_answer'"):
        find_template("think_anwser")
    with pytest.raises(ConfigError, match="no valid jinja"):
        find_template("{{ problem ")


def test_a_record_s_own_template_comes_first_and_is_never_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("{{ problem }} secret")
    assert template_of({}, "boxed") == TEMPLATES["boxed"]
    assert template_of({"prompt_template": "as_is"}, "boxed") == TEMPLATES["as_is"]
    assert template_of({"prompt_template": "{{ problem }}!"}, "boxed") == Template("{{ problem }}!")
    for own in (str(tmp_path / "secret.txt"), "/etc/passwd", "bxoed", {"a": 1}, "{{ problem "):
        with pytest.raises(DataError):
            template_of({"prompt_template": own}, "boxed")


def test_templates_run_in_a_sandbox() -> None:
    with pytest.raises(DataError, match="can't be filled from the record .SecurityError: .*unsafe"):
        user_text({"problem": "q", "images": []}, "{{ problem.__class__.__mro__[1].__subclasses__() }}")


def test_pictures_without_marks_stand_before_the_problem_and_marks_are_kept() -> None:
    assert user_text({"problem": "q", "images": [1, 2]}, None) == "<image><image>q"
    assert user_text({"problem": "a <image> b <image>", "images": [1, 2]}, None) == "a <image> b <image>"
    with pytest.raises(DataError, match="1 <image> marks for 2 pictures"):
        user_text({"problem": "<image>q", "images": [1, 2]}, None)


def test_a_dialogue_s_last_answer_is_the_answer_and_earlier_turns_stay() -> None:
    turns = [
        {"role": r, "content": c} for r, c in (("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2"))
    ]
    messages, answer = to_messages({"messages": turns, "images": [1]}, Template("{{ problem }}!", "be brief"))
    assert [turn["content"] for turn in messages] == ["be brief", "<image>q1", "a1", "q2!"]
    assert answer == "a2"
    assert turns[-1]["content"] == "a2", "the record is left as it was"
    with pytest.raises(DataError, match="no user turn"):
        to_messages({"messages": turns[1:2], "images": []}, TEMPLATES["as_is"])


def test_parts_keep_the_order_of_text_and_pictures() -> None:
    parts = with_parts([{"role": "user", "content": "<image>a<image><image>\nb"}])[0]["content"]
    assert [part.get("text", "*") for part in parts] == ["*", "a", "*", "*", "\nb"]


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_ids_are_expanded_by_the_size_alone(name: str) -> None:
    bound = family(name)
    pictures = [Picture(Image.new("RGB", size)) for size in ((56, 56), (112, 84))]
    ids, engine_ids, spans = PromptEncoder(bound)([{"role": "user", "content": "<image>one<image>two"}], pictures)
    assert [span.length for span in spans] == [bound.image_tokens(picture.size) for picture in pictures]
    assert [span.media for span in spans] == [0, 1]
    assert len(ids) == len(engine_ids) + sum(span.length - 1 for span in spans)
    for span in spans:
        assert (ids[span.offset : span.offset + span.length] == bound.placeholder_id).all()


def test_equal_prompts_are_encoded_once_and_other_sizes_are_not_mixed_up() -> None:
    encoder = PromptEncoder(family())
    turns = [{"role": "user", "content": "<image>q"}]
    one = encoder(turns, [Picture(Image.new("RGB", (56, 56), "red"))])
    assert encoder(turns, [Picture(Image.new("RGB", (56, 56), "blue"))]) is one
    assert len(encoder(turns, [Picture(Image.new("RGB", (112, 56)))])[0]) > len(one[0])


def test_without_a_chat_template_the_text_goes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = family("llava")
    monkeypatch.setattr(bound.tokenizer, "chat_template", None)
    ids, _, spans = PromptEncoder(bound)(
        [{"role": "user", "content": "<image>q"}], [Picture(Image.new("RGB", (56, 56)))]
    )
    assert len(ids) == spans[0].length + 1


def test_over_the_limit_says_both_lengths() -> None:
    with pytest.raises(OverLongError, match=r"has \d+ tokens .* allows 3"):
        PromptEncoder(family(), 3)([{"role": "user", "content": "a long question"}], [])
