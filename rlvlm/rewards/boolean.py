"""``bool``: a yes or a no, however it is worded."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.text import golds_of, plain

MAX_CHARS = 2000
"""A longer answer is no verdict."""

_TRUE, _FALSE = (
    {"yes", "true", "correct", "是", "对", "正确"},
    {"no", "false", "incorrect", "否", "不是", "不对", "错误"},
)
_CLAUSES = re.compile(r"[.,;:!?\n—]|\s-\s")
_VERDICT = re.compile(r"(?<!\w)(?:(not|isn't|n't)\s+(?:\w+\s+)?)?(yes|no|true|false|correct|incorrect)(?!\w)")
_DOUBTFUL = (
    r"(?:maybe|perhaps|probably|possibly|presumably|likely|unlikely|i (?:guess|suppose)|(?:could|might|may) be|unsure"
    r"|uncertain|unclear|unknown|not (?:\w+ )?(?:sure|certain)|don't know|hard to (?:say|tell)|可能|也许|大概|或许)"
)
_DOUBT = re.compile(rf"(?<!\w){_DOUBTFUL}(?!\w)")
_MERE_DOUBT = re.compile(rf"(?:(?:but|or|well|i|i'm|am|very|most) )*{_DOUBTFUL}(?: (?:so|not|no|yes|it|though|wrong))*")
_HEDGE = re.compile(r"(?<!\w)(?:or|either|neither|cannot|can't|whether|if)(?!\w)")


@register_reward(
    "bool", isolated=False, example={"completion": "<answer>Yes, the light is green</answer>", "answer": "yes"}
)
def boolean(answer_text: str, answer: Any) -> float:
    """1 when the answer says yes (true) or no (false) as the gold does, else 0; both, neither, or a hedge is no answer.

    Raises ``RewardError`` when the gold is neither.
    """
    golds = {_gold(gold) for gold in golds_of(answer, short=True)}
    verdict = read_bool(answer_text) if answer_text else None
    return float(verdict in golds)


@lru_cache(maxsize=1024)
def _gold(text: str) -> bool:
    verdict = {"1": True, "0": False}.get(text.strip(), read_bool(text))
    if verdict is None:
        raise RewardError(
            f"the record's gold answer {text[:80]!r} is neither yes nor no; mend the record or use another rule for it."
        )
    return verdict


def read_bool(text: str) -> bool | None:
    """The verdict of a short text: its leading yes or no where it has one, else the only one that it states."""
    if len(text) > MAX_CHARS:
        return None
    text = plain(text).lower().strip(" .!\"'()[]*")
    clauses = [clause.strip() for clause in _CLAUSES.split(text) if clause.strip()]
    alone = {verdict for clause in clauses if (verdict := _word(clause)) is not None}
    if len(alone) == 2:
        return None
    if clauses and (leading := _word(clauses[0])) is not None:
        doubted = any(_MERE_DOUBT.fullmatch(clause) for clause in clauses[1:])
        return None if doubted else leading  # what follows explains it
    if _HEDGE.search(text) or _DOUBT.search(text):
        return None
    stated = {(match[2] in _TRUE) != bool(match[1]) for match in _VERDICT.finditer(text)}
    return stated.pop() if len(stated) == 1 else None


def _word(text: str) -> bool | None:
    return True if text in _TRUE else False if text in _FALSE else None
