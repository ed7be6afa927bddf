"""``string`` and ``critic``: text that must match, normalised or to the letter."""

from __future__ import annotations

from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.text import folded, golds_of, plain

MAX_CHARS = 1_000_000
"""A longer answer is no answer."""

_EDGES = " \t\r\n.,;:!?\"'()[]"


@register_reward(
    "string",
    isolated=False,
    example={"completion": "<answer>Painted wolf.</answer>", "answer": ["painted wolf", "African wild dog"]},
)
def string(answer_text: str, unmarked_text: str, answer: Any, *, case_sensitive: bool = False) -> float:
    """1 when the answer is the gold text (or any of several), else 0; part of it is not enough, and a blank never matches.

    Width, white space, TeX and Markdown wrappers and punctuation at the ends do not matter.

    Args:
        case_sensitive: whether upper and lower case differ.

    Raises ``RewardError`` when the gold is blank.
    """
    golds = [text for gold in golds_of(answer) if (text := _normalised(gold, case_sensitive))]
    if not golds:
        raise RewardError(f"the record's gold answer {str(answer)[:80]!r} is nothing but markup; mend the record.")
    read = answer_text or unmarked_text
    text = _normalised(read, case_sensitive) if len(read) <= MAX_CHARS else ""
    return float(text in golds)


def _normalised(text: str, case_sensitive: bool) -> str:
    text = plain(text)
    text = " ".join(text.split()) if case_sensitive else folded(text)
    return text.strip(_EDGES) or text  # a gold of nothing but punctuation stays as it is


@register_reward(
    "critic", isolated=False, example={"completion": "<answer>Response 2</answer>", "answer": "Response 2"}
)
def critic(answer_text: str, unmarked_text: str, answer: Any, *, verdicts: list[str] | None = None) -> float:
    """1 when the verdict is the gold verdict to the letter, white space at the ends aside, else 0.

    Args:
        verdicts: the verdicts that exist; a gold outside them raises ``RewardError``, as a blank one does.
    """
    text = (answer_text or unmarked_text).strip()
    golds = [gold.strip() for gold in golds_of(answer)]
    for gold in golds:
        if verdicts is not None and gold not in verdicts:
            raise RewardError(
                f"the record's gold verdict {gold[:80]!r} is none of {verdicts}; mend the record or the option 'verdicts'."
            )
    return float(text in golds)
