"""Dialogues as tokens, with a loss on the assistant's turns only.

A dialogue is rendered by the chat template turn by turn and tokenised piece by piece, so that the ids before each answer
are those that a policy would be prompted with, and the mask starts and ends exactly with the answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rlvlm.batch import Span
from rlvlm.data.marks import IMAGE
from rlvlm.data.media import Picture
from rlvlm.data.prompts import (
    Messages,
    PromptFamily,
    Template,
    place_pictures,
    template_of,
    to_messages,
    with_parts,
    with_system,
)
from rlvlm.data.records import SAYING_KEYS, is_filled, is_text
from rlvlm.errors import DataError

_LOG = logging.getLogger("rlvlm.data")
_SENTINEL = "The answer stands here."
_LOSS_KEYS = ("loss_mask", "loss", "weight")


@dataclass(frozen=True)
class Dialogue:
    """One dialogue as tokens.

    Attributes:
        ids: [L] int64, expanded: as many placeholders as the pictures have features.
        engine_ids: unexpanded ids of the part before the first answer.
        loss_mask: [L] bool, true on the assistant's tokens, the end of turn included.
        turn_ids: [L] int32, the answer's number on its tokens, -1 elsewhere.
        prompt_length: tokens before the first answer.
        spans: the pictures' places; ``media`` counts through the dialogue's pictures.
    """

    ids: Tensor
    engine_ids: Tensor
    loss_mask: Tensor
    turn_ids: Tensor
    prompt_length: int
    spans: tuple[Span, ...]


def dialogue_turns(record: Mapping[str, Any], template: Template, system: str | None = None) -> Messages:
    """The turns of a record, ending with an answer: its messages as they are, or problem (by the template) and ``response``
    (else ``answer``).

    Raises ``DataError`` for a record with neither an assistant's turn nor an answer.
    """
    if record.get("messages") is not None and record["messages"][-1]["role"] == "assistant":
        if record["messages"][0]["role"] == "assistant":
            raise DataError("the dialogue begins with an assistant's turn, which answers nothing.")
        turns = place_pictures([dict(turn) for turn in record["messages"]], len(record.get("images", ())))
        return with_system(turns, record, template, system)
    answer = record.get("response") if is_filled(record.get("response")) else record.get("answer")
    if isinstance(answer, (list, tuple)):
        answer = answer[0] if answer else None
    if answer is None:
        raise DataError(
            "the record holds nothing to learn from: neither an assistant's turn nor a 'response' or 'answer'."
        )
    if not is_text(str(answer)):
        raise DataError(f"the answer {str(answer)[:40]!r} is no valid text; it is a string of Unicode.")
    turns, _ = to_messages(record, template, system)
    return [*turns, {"role": "assistant", "content": str(answer)}]


def tools_of(record: Mapping[str, Any]) -> list[Any] | None:
    """The functions that a record's ``tools`` column describes, a list or its JSON; ``None`` without any."""
    tools = record.get("tools")
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise DataError(f"the column 'tools' is no valid JSON ({error}).") from error
    if not is_filled(tools):
        return None
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DataError(f"the column 'tools' is a list of descriptions of functions, or its JSON, got {tools!r:.60}.")
    return list(tools)


def encode_dialogue(
    turns: Messages, pictures: Sequence[Picture], family: PromptFamily, tools: Sequence[Any] | None = None
) -> Dialogue:
    """Tokenises a dialogue whose pictures are marked ``<image>`` in its texts.

    ``tools`` are given to the chat template.
    Tokens that stand for pictures carry no loss, also inside an answer, nor do turns with ``loss_mask`` 0 (or ``loss`` false).

    Raises ``DataError`` when the chat template changes earlier turns as later ones are added, since then no cut between
    prompt and answer is right; when it leaves out a turn's ``tool_calls`` or ``reasoning_content``; and when nothing is left to learn.
    """
    pieces = _pieces(turns, family.tokenizer, family.placeholder_id, tools)
    unsaid = {
        family.placeholder_id,
        *family.banned_ids,
    }  # pictures in an answer are shown to the policy, not said by it
    ids: list[int] = []
    answer_of: list[int] = []
    for text, answer in pieces:
        tokens = _tokenize(text, family.tokenizer, first=not ids)
        ids += tokens
        answer_of += [-1 if token in unsaid else answer for token in tokens]
    if not any(answer >= 0 for answer in answer_of):
        raise DataError("the dialogue holds nothing to learn from: every assistant's turn has loss_mask 0.")
    before = next((place for place, answer in enumerate(answer_of) if answer >= 0), len(ids))
    flat = torch.tensor(ids, dtype=torch.int64)
    expanded, _, spans = family.expand(flat, pictures)
    repeats = torch.ones_like(flat)
    repeats[flat == family.placeholder_id] = torch.tensor([span.length for span in spans], dtype=torch.int64)
    turn_ids = torch.tensor(answer_of, dtype=torch.int32).repeat_interleave(repeats)
    return Dialogue(expanded, flat[:before], turn_ids >= 0, turn_ids, int(repeats[:before].sum()), spans)


def _pieces(turns: Messages, tokenizer: Any, placeholder_id: int, tools: Sequence[Any] | None) -> list[tuple[str, int]]:
    """The rendered text in pieces, each with the number of the answer that it is, or -1."""
    if not getattr(tokenizer, "chat_template", None):
        if tools:
            raise DataError("the record has 'tools', which take a chat template to write; the tokenizer has none.")
        return _plain_pieces(turns, tokenizer, tokenizer.convert_ids_to_tokens(placeholder_id))
    messages = with_parts(turns)

    def render(count: int, prompt: bool) -> str:
        return str(
            tokenizer.apply_chat_template(messages[:count], tools=tools, tokenize=False, add_generation_prompt=prompt)
        )

    end = end_of_turn(tokenizer)
    pieces: list[tuple[str, int]] = []
    done, answers = "", 0
    for place, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        before, after = render(place, True), render(place + 1, False)
        if not (before.startswith(done) and after.startswith(before)):
            raise DataError(
                "the chat template rewrites earlier turns as later ones are added, so its answers can't be told from its prompts; "
                "set a template without that."
            )
        _check_written(messages[: place + 1], after, tokenizer, tools)
        said, rest = end.cut(after[len(before) :])
        number = answers if _is_learned(turn) else -1
        pieces += [(before[len(done) :], -1), (said, number), (rest, -1)]
        done, answers = after, answers + (number >= 0)
    return pieces


def _is_learned(turn: Mapping[str, Any]) -> bool:
    """Whether a turn carries loss: ``loss_mask``, ``loss`` and ``weight`` of 0 or false take it out."""
    return not any(turn.get(name) in (0, False) for name in _LOSS_KEYS if turn.get(name) is not None)


def _check_written(messages: Messages, rendered: str, tokenizer: Any, tools: Sequence[Any] | None) -> None:
    """Raises ``DataError`` where the last turn says something in a key that the chat template does not write."""
    for key in SAYING_KEYS & messages[-1].keys():
        without = [*messages[:-1], {name: value for name, value in messages[-1].items() if name != key}]
        written = tokenizer.apply_chat_template(without, tools=tools, tokenize=False, add_generation_prompt=False)
        if str(written) == rendered:
            raise DataError(
                f"an assistant's turn has '{key}', which the chat template does not write, so it would not be learned; set a "
                "model whose chat template writes it, or take the key out of the data."
            )


@dataclass(frozen=True)
class EndOfTurn:
    """How a chat template ends an answer.

    Attributes:
        mark: what is learned as the end, special tokens alone.
        tail: what the template itself writes behind an answer's text.
        added: whether ``mark`` is the tokenizer's end token, put behind answers since the template writes no end.
    """

    mark: str
    tail: str
    added: bool

    def cut(self, text: str) -> tuple[str, str]:
        """A rendered answer up to its end mark, mark included, and what the template writes behind it, which carries no loss."""
        if self.added:
            body = text[: len(text) - len(self.tail)] if self.tail and text.endswith(self.tail) else text
            return body + self.mark, text[len(body) :]
        head, found, behind = text.rpartition(self.mark)
        return (head + found, behind) if found else (text + self.mark, "")


def end_of_turn(tokenizer: Any) -> EndOfTurn:
    """The end of an answer that supervised training teaches, by what the chat template writes behind one.

    It is the tokenizer's end token where the template writes that, else the first special token that it writes; a template that writes
    none gets the end token put behind each answer. What is not the tokenizer's own end is logged, once.

    Raises ``DataError`` where neither template nor tokenizer has an end.
    """
    turns = with_parts([{"role": "user", "content": "a"}, {"role": "assistant", "content": _SENTINEL}])
    rendered = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False))
    tail = rendered.rpartition(_SENTINEL)[2] if _SENTINEL in rendered else ""
    special = frozenset(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return _end_of(tail, tokenizer.eos_token, special)


@lru_cache(maxsize=64)  # so that it is logged once
def _end_of(tail: str, eos: str | None, special: frozenset[str]) -> EndOfTurn:
    if eos and eos in tail:
        return EndOfTurn(eos, tail, False)
    first = min(
        (token for token in special if token in tail), key=lambda token: (tail.index(token), -len(token)), default=None
    )
    if first is not None:
        _LOG.warning(
            "the chat template ends a turn with %r, which is not the tokenizer's end token %r: it is learned as the end; for answers that "
            "stop there, name it in the model's generation_config.json (eos_token_id) or set rollout.stop_ids.",
            first,
            eos,
        )
        return EndOfTurn(first, tail, False)
    if not eos:
        raise DataError(
            "neither the chat template nor the tokenizer has an end of turn, so that no answer would learn to stop; set the "
            "tokenizer's eos_token."
        )
    _LOG.warning(
        "the chat template writes no end of turn: the tokenizer's end token %r is put behind each answer and learned.",
        eos,
    )
    return EndOfTurn(eos, tail, True)


def _plain_pieces(turns: Messages, tokenizer: Any, placeholder: str) -> list[tuple[str, int]]:
    end = tokenizer.eos_token
    if not end:
        raise DataError(
            "the tokenizer has neither a chat template nor an end token, so that no answer would learn to stop."
        )
    pieces, answers = [], 0
    for turn in turns:
        text = turn["content"].replace(IMAGE, placeholder)
        if turn["role"] != "assistant":
            pieces.append((text, -1))
            continue
        if lost := sorted(SAYING_KEYS & turn.keys()):
            raise DataError(
                f"an assistant's turn has '{lost[0]}', which takes a chat template to write; the tokenizer has none."
            )
        learned = _is_learned(turn)
        pieces.append((text + end, answers if learned else -1))
        answers += learned
    return pieces


def _tokenize(text: str, tokenizer: Any, first: bool) -> list[int]:
    begin = tokenizer.bos_token
    special = first and not (begin and text.startswith(begin))
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


def dialogue_of(
    record: Mapping[str, Any],
    pictures: Sequence[Picture],
    family: PromptFamily,
    template: str | None = None,
    system: str | None = None,
) -> Dialogue:
    """A record's dialogue as tokens; its own template comes before ``template``."""
    chosen = template_of(record, template)
    return encode_dialogue(dialogue_turns(record, chosen, system), pictures, family, tools_of(record))
