"""Tokens as text for people: pieces that never cut a character in two, and prompts without placeholders of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BROKEN = "\ufffd"
_LONGEST = 4  # tokens, and so bytes, that one character takes at most
_PICTURES = ("<image>", "<|image_pad|>", "<|vision_start|>", "<|vision_end|>")


def token_pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token; a character that several tokens share stands with the last of them, and the others are empty.

    Bytes that are no character are shown as the tokenizer's vocabulary spells them, and never as U+FFFD.
    """
    pieces: list[str] = []
    waiting: list[int] = []  # tokens of a character that is not whole yet
    for token in ids:
        text = tokenizer.decode([*waiting, token])
        if BROKEN not in text:
            pieces.append(text)
            waiting = []
        elif text.endswith(BROKEN) and len(waiting) + 1 < _LONGEST:
            pieces.append("")
            waiting.append(token)
        else:  # what waits is no character, whatever comes
            if waiting:
                pieces[-1] = _spelled(tokenizer, waiting)
            alone = tokenizer.decode([token])
            pieces.append("" if BROKEN in alone else alone)
            waiting = [token] if BROKEN in alone else []
    if waiting:  # cut off in the middle of a character
        pieces[-1] = _spelled(tokenizer, waiting)
    return pieces


def without_placeholders(text: str) -> str:
    """A question without the marks of its pictures, which are shown beside it."""
    for mark in _PICTURES:
        text = text.replace(mark, "")
    return text.strip()


def _spelled(tokenizer: Any, ids: Sequence[int]) -> str:
    return "".join(str(token) for token in tokenizer.convert_ids_to_tokens(list(ids))).replace(BROKEN, "")
