"""Finds the answer in a completion: the one place where ``<think>``, ``<answer>``, ``\\boxed{}`` and fences are read.

Every scan is linear in the text, since the text comes from a model and may be anything.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache

_THINK = re.compile(r"</?think>")
_ANSWER = re.compile(r"</?answer>")
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[\\{}]|[{}]")
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
_WORD = re.compile(r"[^\W\d_]{2,}")
_TEX_COMMAND = re.compile(r"\\[A-Za-z]+")
_CACHED_CHARS = 2048
BARE_CHARS = 200
"""A longer completion without any mark is never taken for a bare answer."""


@dataclass(frozen=True)
class Extraction:
    """What a completion holds.

    Attributes:
        visible: the text outside thinking.
        thinks: closed think blocks; ``think_open`` tells whether one is left open, and ``think_nested`` whether tags are nested
            or close what was never opened.
        think_end: where the last think block ends in the completion, 0 without one.
        candidates: the marked answers outside thinking, in order, each once (white space and case aside), blanks left out;
            none when the last mark is cut off, which ``unfinished`` tells.
        answer: the answer; ``""`` when there is none or when several candidates differ.
        unmarked: the visible text when nothing in it is marked; ``""`` otherwise, or where unmarked text never counts.
    """

    visible: str
    thinks: int
    think_open: bool
    think_nested: bool
    think_end: int
    candidates: tuple[str, ...]
    unfinished: bool
    answer: str
    unmarked: str

    @property
    def n_candidates(self) -> int:
        """How many different answers are marked."""
        return len(self.candidates)


@dataclass(frozen=True)
class Box:
    """A ``\\boxed{}``: the span of its content, and whether it holds another box or lies in one."""

    start: int
    end: int
    holds_box: bool
    in_box: bool


def extract(completion: str, *, think_prefilled: bool = False, unmarked: str = "bare") -> Extraction:
    """Reads a completion.

    Args:
        think_prefilled: the prompt ends with an opened ``<think>``.
        unmarked: what counts as the answer when nothing is marked: ``none``, ``bare`` (one line, at most one word) or ``text``.
    """
    if len(completion) <= _CACHED_CHARS:
        return _extract_cached(completion, think_prefilled, unmarked)
    return _extract(completion, think_prefilled, unmarked)


def _extract(completion: str, think_prefilled: bool, unmarked: str) -> Extraction:
    visible, thinks, think_open, nested, think_end = _split_thinking(completion, think_prefilled)
    found, marked, unfinished = _marked_answers(visible)
    candidates = () if unfinished else _distinct(found)
    loose = "" if marked or unmarked == "none" else visible.strip()
    if marked:
        answer = candidates[0] if len(candidates) == 1 else ""
    else:
        answer = loose if unmarked == "text" or _is_bare(loose) else ""
        candidates = (answer,) if answer else ()
    return Extraction(
        visible, thinks, think_open, nested, think_end, candidates, unfinished, strip_fence(answer), loose
    )


_extract_cached = lru_cache(maxsize=4096)(_extract)


def _split_thinking(text: str, prefilled: bool) -> tuple[str, int, bool, bool, int]:
    """Gives the visible text, closed blocks, whether one is open, whether tags are nested or stray, and the last end."""
    depth = 1 if prefilled else 0
    if prefilled and text.lstrip().startswith("<think>"):
        depth = 0  # the model repeated the tag that the prompt ends with
    visible: list[str] = []
    closed, nested, position, end = 0, False, 0, 0
    for tag in _THINK.finditer(text):
        if depth == 0:
            visible.append(text[position : tag.start()])
        if tag.group() == "<think>":
            nested = nested or depth > 0
            depth += 1
        elif depth > 0:
            depth -= 1
            closed += depth == 0
            end = tag.end()
        else:  # it closes what the prompt must have opened: all before it was thinking
            nested = True
            visible.clear()
            end = tag.end()
        position = tag.end()
    if depth == 0:
        visible.append(text[position:])
    return "".join(visible), closed, depth > 0, nested, end


def _marked_answers(text: str) -> tuple[list[str], bool, bool]:
    """Gives the marked answers, whether anything is marked, and whether the last mark is cut off."""
    blocks, open_at, marked = [], -1, False
    for tag in _ANSWER.finditer(text):
        if tag.group() == "<answer>":
            open_at = tag.end()
        elif open_at >= 0:
            blocks.append(text[open_at : tag.start()])
            open_at = -1
        elif not marked:  # the prompt opened it
            blocks.append(text[: tag.start()])
        marked = True
    if open_at >= 0:
        return blocks, True, True
    if not marked:
        boxes, cut = find_boxes(text)
        return [text[box.start : box.end] for box in boxes if not box.holds_box], bool(boxes) or cut, cut
    found: list[str] = []
    for block in blocks:
        boxes, cut = find_boxes(block)
        if cut:
            return found, True, True
        found.extend([block[box.start : box.end] for box in boxes if not box.holds_box] or [block])
    return found, True, False


def find_boxes(text: str) -> tuple[list[Box], bool]:
    """Every closed ``\\boxed{}`` in order of its end, with braces balanced, and whether one is left open."""
    if "\\boxed" not in text and "\\fbox" not in text:
        return [], False
    boxes: list[Box] = []
    stack: list[tuple[int, bool]] = []  # (content start or -1 for a plain brace, holds a box)
    open_boxes = 0
    for match in _BRACES.finditer(text):
        mark = match.group()
        if mark == "{":
            if open_boxes:
                stack.append((-1, False))
        elif mark == "}":
            if not stack:
                continue
            start, holds = stack.pop()
            if start >= 0:
                open_boxes -= 1
                boxes.append(Box(start, match.start(), holds, open_boxes > 0))
                holds = True
            if stack and holds:
                stack[-1] = (stack[-1][0], True)
        elif len(mark) > 2:  # an opened box; the rest are escaped braces
            stack.append((match.end(), False))
            open_boxes += 1
    return boxes, open_boxes > 0


def _distinct(found: list[str]) -> tuple[str, ...]:
    kept: dict[str, str] = {}
    for text in found:
        stripped = text.strip()
        if stripped:
            kept.setdefault(" ".join(stripped.split()).casefold() if len(found) > 1 else stripped, stripped)
    return tuple(kept.values())


def _is_bare(text: str) -> bool:
    if not text or len(text) > BARE_CHARS or "\n" in text:
        return False
    return len(_WORD.findall(_TEX_COMMAND.sub(" ", text))) <= 1


def strip_fence(text: str) -> str:
    """The content of a code fence when the text is one fenced block and nothing else; otherwise the text."""
    if not text.startswith(("```", "~~~")):
        return text
    fences = list(itertools.islice(_FENCE.finditer(text), 3))
    if len(fences) != 2 or fences[1].group(2) or text[fences[1].end() :].strip():
        return text
    return text[fences[0].end() : fences[1].start()].strip()


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """``(language, content)`` of every closed code fence in the text."""
    blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence.group(1)[0] == opened.group(1)[0] and len(fence.group(1)) >= len(opened.group(1)):
            blocks.append((opened.group(2).lower(), text[opened.end() + 1 : fence.start()]))
            opened = None
    return blocks
