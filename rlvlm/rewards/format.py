"""``format``: whether a completion keeps to the form that the prompt template asks for."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal

from rlvlm.rewards.extract import extract, find_boxes
from rlvlm.rewards.options import share
from rlvlm.rewards.rule import register_reward

_ANSWER_TAG = re.compile(r"</?answer>")
_ONLY_BOX = re.compile(r"\\f?boxed\s*\{.*\}", re.DOTALL)
_CACHED_CHARS = 2048


@register_reward(
    "format",
    isolated=False,
    ranges=(share("max_share"),),
    example={
        "completion": "<think>Two rows of three squares make six in all.</think> \\boxed{6}",
        "options": {"style": "boxed"},
    },
)
def format_rule(
    completion: str,
    think_prefilled: bool = False,
    *,
    style: Literal["boxed", "answer"] = "boxed",
    think: bool = True,
    max_share: float = 0.2,
    whole_text: bool = False,
) -> float | dict[str, Any]:
    """1 when the form is kept, else 0, with the reason in the detail.

    The form is exactly one closed think block and after it at least one closed ``\\boxed{}`` (or ``<answer>``), whose text
    makes up at most ``max_share`` of the response, white space aside.

    Args:
        style: ``boxed`` or ``answer``, what the prompt template asks for.
        think: whether the template asks for a think block; ``False`` allows none, and ``max_share`` is not looked at.
        max_share: largest share of the response that may be answer.
        whole_text: whether the tags make up the whole completion, as R1-V, EasyR1 and VLM-R1 match it: nothing stands before the
            think block, only white space between it and the one ``<answer>``, and nothing after that. With boxes,
            other text may follow the think block; without thinking the box is all. These libraries set no ``max_share``, which is 1.

    Source: the format reward on the LLaVA-OneVision-1.5-RL page.
    """
    judge = _fault_cached if len(completion) <= _CACHED_CHARS else _fault
    fault = judge(completion, think_prefilled, style, think, max_share, whole_text)
    return {"score": 0.0, "detail": {"fault": fault}} if fault else 1.0


def _fault(completion: str, prefilled: bool, style: str, think: bool, max_share: float, whole_text: bool) -> str:
    """The first way in which the form is broken; ``""`` when it is kept."""
    found = extract(completion, think_prefilled=prefilled)
    if found.think_open or found.think_nested:
        return "think tags are not one closed block"
    if found.thinks != int(think):
        return f"{found.thinks} think blocks, expected {int(think)}"
    rest = completion[found.think_end :]
    spans, cut = _boxed(rest) if style == "boxed" else _answers(rest)
    if cut:
        return f"an {style} mark is not closed" if style == "answer" else "a box is not closed"
    if not any(span.strip() for span in spans):
        return "no answer block after thinking" if style == "answer" else "no box after thinking"
    if whole_text and (fault := _outside(completion, rest, prefilled, style, think, len(spans))):
        return fault
    if think and _dense_length(spans) > max_share * _dense_length([completion]):
        return f"more than {max_share:.0%} of the response is answer"
    return ""


def _outside(completion: str, rest: str, prefilled: bool, style: str, think: bool, answers: int) -> str:
    """What stands outside the tags; ``""`` when nothing does."""
    if think and not prefilled and not completion.startswith("<think>"):
        return "text stands before the think block"
    if style == "boxed":
        return "" if think or _ONLY_BOX.fullmatch(rest) else "text stands around the box"
    if answers != 1:
        return f"{answers} answer blocks, expected 1"
    if not (rest.lstrip() if think else rest).startswith("<answer>"):
        return "text stands before the answer block"
    return "" if rest.endswith("</answer>") else "text stands after the answer block"


_fault_cached = lru_cache(maxsize=4096)(_fault)


def _boxed(text: str) -> tuple[list[str], bool]:
    boxes, cut = find_boxes(text)
    return [text[box.start : box.end] for box in boxes if not box.in_box], cut


def _answers(text: str) -> tuple[list[str], bool]:
    """The text of every answer block, and whether tags are nested, stray or left open."""
    blocks: list[str] = []
    open_at = -1
    for tag in _ANSWER_TAG.finditer(text):
        opens = tag.group() == "<answer>"
        if opens == (open_at >= 0):
            return blocks, True
        if not opens:
            blocks.append(text[open_at : tag.start()])
        open_at = tag.end() if opens else -1
    return blocks, open_at >= 0


def _dense_length(texts: list[str]) -> int:
    return sum(len("".join(text.split())) for text in texts)
