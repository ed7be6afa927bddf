"""What of a dialogue is learned: the end of each answer, tool calls and thoughts, and never a picture's tokens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvlm.data import dialogues
from rlvlm.data.check import check_source
from rlvlm.data.config import DataConfig, SourceConfig
from rlvlm.data.sources import open_source
from rlvlm.data.supervised import supervised_loader
from rlvlm.errors import DataError
from tests import tiny
from tests.data.helpers import png, write_jsonl

PART = (
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] or [] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
)
PLAIN = f"{{% for m in messages %}}{{{{ m['role'].upper() }}}}: {PART}TAIL{{% endfor %}}"
PLAIN += "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    f"{PART}{{% for t in m.tool_calls or [] %}}<tool_call>{{{{ t.function.name }}}}</tool_call>{{% endfor %}}<|im_end|>\n{{% endfor %}}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = [{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]


@pytest.fixture
def policy() -> Any:
    return tiny.policy("llava")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dialogues._end_of.cache_clear()
    yield
    dialogues._end_of.cache_clear()


def batch_of(turns: list[dict[str, Any]], family: Any, folder: Path, images: int = 0) -> Any:
    for number in range(images):
        (folder / f"{number}.png").write_bytes(png())
    rows = [{"messages": turns, "images": [f"{number}.png" for number in range(images)]}]
    path = write_jsonl(folder / "a.jsonl", rows)
    config = DataConfig(train=path, template=None, prompts_per_step=1, prefetch=0)
    report = check_source(open_source(SourceConfig(path=path), config), config, family, dialogues=True, progress=False)
    try:
        batch = next(iter(supervised_loader(config, family)))
    except DataError:
        assert report.fault_count == 1, "the check finds what the loader finds"
        raise
    assert report.usable == 1
    return batch


def learned(batch: Any, family: Any) -> str:
    return str(family.tokenizer.decode(batch["input_ids"][0][batch["loss_mask"][0]]))


def asked(*said: Any) -> list[dict[str, Any]]:
    return [turn for one in said for turn in ({"role": "user", "content": "q"}, {"role": "assistant", "content": one})]


@pytest.mark.parametrize(
    ("tail", "eos", "text", "logged"),
    [
        (" ", "<|im_end|>", " red<|im_end|> blue<|im_end|>", "writes no end of turn"),
        ("", "<|im_end|>", " red<|im_end|> blue<|im_end|>", "writes no end of turn"),
        ("###\n", "<|im_end|>", " red<|im_end|> blue<|im_end|>", "writes no end of turn"),
        ("<|im_end|>\n", "<|im_end|>", " red<|im_end|> blue<|im_end|>", ""),
        (" <|im_end|>\n", "<|im_end|>", " red <|im_end|> blue <|im_end|>", ""),
        (
            "<|im_end|>\n",
            "<|endoftext|>",
            " red<|im_end|> blue<|im_end|>",
            "not the tokenizer's end token '<|endoftext|>'",
        ),
        ("<|im_end|>\n", None, " red<|im_end|> blue<|im_end|>", "not the tokenizer's end token None"),
    ],
)
def test_the_end_of_an_answer_is_learned_and_said(
    tail: str, eos: str | None, text: str, logged: str, policy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bound = policy.family
    bound.tokenizer.chat_template, bound.tokenizer.eos_token = (
        PLAIN.replace("TAIL", tail.replace("\n", "\\n") and f"{{{{ {tail!r} }}}}"),
        eos,
    )
    with caplog.at_level(logging.WARNING, "rlvlm.data"):
        batch = batch_of(asked("red", "blue"), bound, tmp_path)
    assert learned(batch, bound) == text
    assert logged in caplog.text
    assert bool(logged) == bool(caplog.records)
    assert len(caplog.records) <= 1, "once, not for each row"


def test_without_any_end_the_row_is_refused(policy: Any, tmp_path: Path) -> None:
    policy.family.tokenizer.chat_template, policy.family.tokenizer.eos_token = PLAIN.replace("TAIL", ""), None
    with pytest.raises(DataError, match="neither the chat template nor the tokenizer has an end"):
        batch_of(asked("red"), policy.family, tmp_path)


def test_calls_and_thoughts_are_learned_or_refused(policy: Any, tmp_path: Path) -> None:
    bound = policy.family
    turns = asked("It rains.")
    turns[1:1] = [{"role": "assistant", "content": None, "tool_calls": CALL}, {"role": "tool", "content": "rain"}]
    turns[-1]["reasoning_content"] = "hm"
    with pytest.raises(DataError, match="'tool_calls', which the chat template does not write"):
        batch_of(turns, bound, tmp_path)
    bound.tokenizer.chat_template = TOOLS
    batch = batch_of(turns, bound, tmp_path)
    text = "<tool_call>get_weather</tool_call><|im_end|><think>hm</think>It rains.<|im_end|>"
    assert learned(batch, bound) == text


@pytest.mark.parametrize("mark", [{"loss_mask": 0}, {"loss": False}, {"weight": 0}])
def test_a_turn_without_loss_is_context_alone(mark: dict[str, Any], policy: Any, tmp_path: Path) -> None:
    turns = asked("red", "blue")
    turns[1].update(mark)
    batch = batch_of(turns, policy.family, tmp_path)
    assert learned(batch, policy.family) == "blue<|im_end|>"
    assert "red" in policy.family.tokenizer.decode(batch["input_ids"][0])
    turns[3].update(mark)
    with pytest.raises(DataError, match="nothing to learn from"):
        batch_of(turns, policy.family, tmp_path)


@pytest.mark.parametrize("name", tiny.FAMILIES)
@pytest.mark.parametrize(("said", "images"), [("I zoom: <image> ok", 2), ("it opens with <|vision_start|> x", 1)])
def test_pictures_in_an_answer_carry_no_loss_and_the_step_runs(
    name: str, said: str, images: int, tmp_path: Path
) -> None:
    policy = tiny.policy(name)
    bound = policy.family
    turns = asked(said, "end")
    turns[0]["content"] = "look <image>"
    batch = batch_of(turns, bound, tmp_path, images)
    silent = {bound.placeholder_id, *bound.banned_ids}
    assert not silent & set(batch["input_ids"][0][batch["loss_mask"][0]].tolist())
    assert (batch["turn_ids"] >= 0).equal(batch["loss_mask"])
    assert policy(policy.layout(batch)).logp.min() > -1000
    assert learned(batch, bound).endswith("end<|im_end|>")
