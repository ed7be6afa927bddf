"""Records as prompts: templates, messages with picture parts, token ids with the pictures' spans."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import jinja2
import jinja2.sandbox
from torch import Tensor

from rlvlm.batch import Span
from rlvlm.data.marks import IMAGE
from rlvlm.data.media import Picture
from rlvlm.data.records import is_text
from rlvlm.errors import ConfigError, DataError, nearest

Messages = list[dict[str, Any]]
Encoding = tuple[Tensor, Tensor, tuple[Span, ...]]
_ENCODINGS_KEPT = 4096


class PromptFamily(Protocol):
    """What the data asks of a model family; ``rlvlm.models.families`` has them."""

    tokenizer: Any
    placeholder_id: int
    banned_ids: tuple[int, ...]
    """Tokens that stand for pictures and are never said."""

    def target_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) as the model sees a picture of this size; ``DataError`` if it can't take it."""
        ...

    def image_tokens(self, size: tuple[int, int]) -> int:
        """Placeholder tokens of a picture of this (width, height)."""
        ...

    def patches(self, size: tuple[int, int]) -> int:
        """Vision patches of a picture of this (width, height)."""
        ...

    def encode_prompt(self, text: str | Sequence[Mapping[str, Any]], pictures: Sequence[Any]) -> Encoding:
        """Expanded ids, unexpanded ids and spans (``Span.media`` counts through ``pictures``)."""
        ...

    def expand(self, engine_ids: Tensor, pictures: Sequence[Any]) -> Encoding:
        """The same from unexpanded ids, one placeholder for each picture."""
        ...

    def process_all(self, pictures: Sequence[Any]) -> list[dict[str, Tensor]]:
        """Each picture's processed tensors."""
        ...


class OverLongError(DataError):
    """A prompt has more tokens than ``data.max_prompt_tokens``; it is left out or stops the run, never cut."""


@dataclass(frozen=True)
class Template:
    """How a problem becomes the user's message: jinja text with ``{{ problem }}``, and a system message."""

    text: str
    system: str | None = None


TEMPLATES: dict[str, Template] = {
    "as_is": Template("{{ problem }}"),
    "answer_only": Template("{{ problem }}\nReply with the final answer alone, between <answer> and </answer>."),
    "think_answer": Template(
        "{{ problem }}\nReason step by step between <think> and </think>, then write the final answer alone between "
        "<answer> and </answer>."
    ),
    "boxed": Template(
        "{{ problem }}\nReason step by step between <think> and </think>, then write the final answer in \\boxed{}."
    ),
}
"""The built-in templates by name."""


def find_template(name: str | None) -> Template:
    """A built-in template, a jinja file, or jinja text with ``{{ … }}``; anything else raises ``ConfigError``."""
    if name is None:
        return TEMPLATES["as_is"]
    if name in TEMPLATES:
        return TEMPLATES[name]
    if "{{" in name:
        text = name
    elif os.path.isfile(name):
        with open(name, encoding="utf-8") as file:
            text = file.read().rstrip("\n")
    else:
        raise ConfigError(
            f"there is no prompt template '{name}'{nearest(name, TEMPLATES)}; give one of these, a jinja file, "
            "or text with {{ problem }}."
        )
    _compiled(text)  # a syntax error shows before the run
    return Template(text)


def template_of(record: Mapping[str, Any], default: str | None) -> Template:
    """A record's own template, else the default: by a built-in name or as jinja text, never a file, which data must not choose.

    Raises ``DataError`` when the record names none of these.
    """
    own = record.get("prompt_template")
    if not own:
        return find_template(default)
    if not isinstance(own, str) or not (own in TEMPLATES or "{{" in own):
        near = nearest(own, TEMPLATES) if isinstance(own, str) else ""
        raise DataError(
            f"the record's prompt_template is a built-in one or jinja text with {{{{ problem }}}}, got {own!r}{near}."
        )
    try:
        return find_template(own)
    except ConfigError as error:
        raise DataError(str(error)) from error


@lru_cache(maxsize=64)
def _compiled(text: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"the prompt template is no valid jinja (line {error.lineno}: {error.message}).") from error


def to_messages(record: Mapping[str, Any], template: Template, system: str | None = None) -> tuple[Messages, Any]:
    """The prompt's messages, with text content, and the answer that a dialogue's last turn gives (``None`` if it has none).

    The template wraps the last user message. Pictures that the text gives no place stand before the first user message.

    Raises ``DataError`` when there are more or fewer ``<image>`` marks than pictures, or nothing for the model to answer.
    """
    turns, answer = _turns(record)
    turns = place_pictures(turns, len(record.get("images", ())))
    if turns[-1]["role"] == "user":
        turns[-1] = {**turns[-1], "content": _fill(template, record, turns[-1]["content"])}
    return with_system(turns, record, template, system), answer


def with_system(turns: Messages, record: Mapping[str, Any], template: Template, system: str | None) -> Messages:
    """The turns behind a system message: their own, else the record's ``system`` column, else ``system``, else the template's."""
    own = record.get("system")
    head = own if is_text(own) and own else (system if system is not None else template.system)
    return turns if head is None or turns[0]["role"] == "system" else [{"role": "system", "content": head}, *turns]


def _fill(template: Template, record: Mapping[str, Any], problem: str) -> str:
    try:
        return _compiled(template.text).render({**record, "problem": problem, "content": problem})
    except jinja2.UndefinedError as error:
        raise DataError(f"the prompt template reads a column that the record has not ({error.message}).") from error
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise DataError(
            f"the prompt template can't be filled from the record ({type(error).__name__}: {error})."
        ) from error


def _turns(record: Mapping[str, Any]) -> tuple[Messages, Any]:
    if record.get("messages") is None:
        return [{"role": "user", "content": record["problem"]}], None
    turns = [dict(turn) for turn in record["messages"]]
    answer = turns.pop()["content"] if turns and turns[-1]["role"] == "assistant" else None
    if not turns or turns[-1]["role"] not in ("user", "tool"):
        raise DataError("the messages hold no user turn for the model to answer.")
    return turns, answer


def place_pictures(messages: Messages, pictures: int) -> Messages:
    """Messages with one ``<image>`` for each picture; without any mark, all stand before the first user message.

    Raises ``DataError`` with both counts when marks and pictures are not equally many.
    """
    marks = sum(message["content"].count(IMAGE) for message in messages)
    if marks == pictures:
        return messages
    if marks:
        raise DataError(f"the text has {marks} {IMAGE} marks for {pictures} pictures; give each picture one.")
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), 0)
    placed = list(messages)
    placed[first] = {**placed[first], "content": IMAGE * pictures + placed[first]["content"]}
    return placed


def turns_key(messages: Messages) -> str:
    """What tells dialogues apart: every key of every turn."""
    return repr([sorted(turn.items()) for turn in messages])


def with_parts(messages: Messages) -> Messages:
    """Messages whose content is a list of text and image parts, as chat templates of VLMs take it."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def _parts(text: str) -> list[dict[str, str]]:
    parts: list[dict[str, str]] = []
    for number, piece in enumerate(text.split(IMAGE)):
        if number:
            parts.append({"type": "image"})
        if piece:
            parts.append({"type": "text", "text": piece})
    return parts


def without_template(messages: Messages, family: PromptFamily) -> str:
    """The messages' text on its own, for tokenizers without a chat template."""
    placeholder = family.tokenizer.convert_ids_to_tokens(family.placeholder_id)
    return "\n".join(message["content"] for message in messages).replace(IMAGE, placeholder)


class PromptEncoder:
    """Messages and pictures to token ids; equal prompts over pictures of equal sizes are encoded once."""

    def __init__(self, family: PromptFamily, max_tokens: int | None = None) -> None:
        self.family, self.max_tokens = family, max_tokens
        self._kept: OrderedDict[Any, Encoding] = OrderedDict()

    def __call__(self, messages: Messages, pictures: Sequence[Picture]) -> Encoding:
        """Expanded ids, unexpanded ids and spans; a prompt over the limit raises ``OverLongError`` with both lengths."""
        key = (turns_key(messages), tuple(picture.size for picture in pictures))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        has_template = bool(getattr(self.family.tokenizer, "chat_template", None))
        text = with_parts(messages) if has_template else without_template(messages, self.family)
        encoding = self.family.encode_prompt(text, pictures)
        check_length(len(encoding[0]), self.max_tokens, encoding[2])
        self._kept[key] = encoding
        if len(self._kept) > _ENCODINGS_KEPT:
            self._kept.popitem(last=False)
        return encoding


def check_length(tokens: int, limit: int | None, spans: Sequence[Span] = ()) -> None:
    """Raises ``OverLongError`` when there are more tokens than the limit; a prompt is never cut, least of all inside a picture."""
    if limit is not None and tokens > limit:
        shown = sum(span.length for span in spans)
        raise OverLongError(
            f"the prompt has {tokens} tokens ({shown} of them pictures), data.max_prompt_tokens allows {limit}; "
            "raise it, lower data.max_pixels, or set data.over_long=drop."
        )


def move_spans(spans: Sequence[Span], media: Sequence[int], offset: int = 0) -> tuple[Span, ...]:
    """Spans that count through a prompt's own pictures as spans into the batch's pictures, moved by ``offset`` tokens."""
    return tuple(replace(span, media=media[span.media], offset=span.offset + offset) for span in spans)
