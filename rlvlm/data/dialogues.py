"""Dialogues as tokens, with a loss on the assistant's turns only.

A dialogue is rendered by the chat template turn by turn and tokenised piece by piece, so that the ids before each answer
are those that a policy would be prompted with, and the mask starts and ends exactly with the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvlm.batch import Span
from rlvlm.data.media import Picture
from rlvlm.data.prompts import (
    Messages,
    PromptFamily,
    Template,
    place_pictures,
    template_of,
    to_messages,
    with_parts,
)
from rlvlm.data.records import IMAGE, is_text
from rlvlm.errors import DataError


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
        head = system if system is not None else template.system
        return turns if head is None or turns[0]["role"] == "system" else [{"role": "system", "content": head}, *turns]
    answer = record.get("response", record.get("answer"))
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


def encode_dialogue(turns: Messages, pictures: Sequence[Picture], family: PromptFamily) -> Dialogue:
    """Tokenises a dialogue whose pictures are marked ``<image>`` in its texts.

    Raises ``DataError`` when the chat template changes earlier turns as later ones are added, since then no cut between
    prompt and answer is right.
    """
    pieces = _pieces(turns, family.tokenizer, family.placeholder_id)
    ids: list[int] = []
    answer_of: list[int] = []
    for text, answer in pieces:
        tokens = _tokenize(text, family.tokenizer, first=not ids)
        ids += tokens
        answer_of += [answer] * len(tokens)
    before = next((place for place, answer in enumerate(answer_of) if answer >= 0), len(ids))
    flat = torch.tensor(ids, dtype=torch.int64)
    expanded, _, spans = family.expand(flat, pictures)
    repeats = torch.ones_like(flat)
    repeats[flat == family.placeholder_id] = torch.tensor([span.length for span in spans], dtype=torch.int64)
    turn_ids = torch.tensor(answer_of, dtype=torch.int32).repeat_interleave(repeats)
    return Dialogue(expanded, flat[:before], turn_ids >= 0, turn_ids, int(repeats[:before].sum()), spans)


def _pieces(turns: Messages, tokenizer: Any, placeholder_id: int) -> list[tuple[str, int]]:
    """The rendered text in pieces, each with the number of the answer that it is, or -1."""
    if not getattr(tokenizer, "chat_template", None):
        return _plain_pieces(turns, tokenizer, tokenizer.convert_ids_to_tokens(placeholder_id))
    messages = with_parts(turns)

    def render(count: int, prompt: bool) -> str:
        return str(tokenizer.apply_chat_template(messages[:count], tokenize=False, add_generation_prompt=prompt))

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
        said, rest = _cut_behind(after[len(before) :], tokenizer.eos_token)
        pieces += [(before[len(done) :], -1), (said, answers), (rest, -1)]
        done, answers = after, answers + 1
    return pieces


def _cut_behind(text: str, mark: str | None) -> tuple[str, str]:
    """The text up to the mark, mark included, and what the template writes after it; the policy would stop at the mark."""
    head, found, tail = text.rpartition(mark) if mark else ("", "", text)
    return (head + found, tail) if found else (text, "")


def _plain_pieces(turns: Messages, tokenizer: Any, placeholder: str) -> list[tuple[str, int]]:
    end = tokenizer.eos_token or ""
    pieces, answers = [], 0
    for turn in turns:
        if turn["role"] == "assistant":
            pieces.append((turn["content"] + end, answers))
            answers += 1
        else:
            pieces.append((turn["content"].replace(IMAGE, placeholder), -1))
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
    return encode_dialogue(dialogue_turns(record, chosen, system), pictures, family)
