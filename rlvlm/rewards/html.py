"""``html``: how near a page's text and tag tree are to the gold page's."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, Literal

from rlvlm.errors import RewardError
from rlvlm.rewards.extras import require
from rlvlm.rewards.markup import find_code, same_markup, sequence_similarity, set_similarity
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.text import golds_of

MAX_CHARS = 200_000
MAX_TAGS = 20_000
"""A page beyond these is no answer: parsing takes time quadratic in nesting."""

_WORD = re.compile(r"\w+|[^\w\s]")
_SET_TOKEN = re.compile(r'\w+|[<>=/"]')
_SET_TAG = re.compile(r"<(/?\w+)")
_IMPLIED = ("html", "head", "body")
_UNSEEN = ("script", "style", "template", "noscript")
_HIDING = (
    *(";display:none", ";visibility:hidden", ";visibility:collapse", ";opacity:0", ";opacity:0.0", ";font-size:0"),
    *(";font-size:0px", ";color:transparent"),
)
"""Declarations of a ``style`` attribute under which nothing is seen."""


@register_reward(
    "html",
    details=("tokens", "structure"),
    isolated=True,
    imports=("rapidfuzz", "selectolax"),
    example={"completion": "<answer><h1>Soup</h1><p>Leek</p></answer>", "answer": "<h1>Soup</h1><p>Pea</p>"},
)
def html(
    answer_text: str, unmarked_text: str, answer: Any, *, compat: Literal["ov15"] | None = None
) -> dict[str, Any] | float:
    """0.6 · similarity of words and attributes in order + 0.4 · similarity of the tag tree, the best over the golds.

    Words, attributes and tags count as often as they occur and in their order, tags with all tags around them, so neither
    an empty nor a shuffled page is paid, and what a script or a hidden element says is not what a page shows.
    The page is parsed as a browser does; tags that it only implies do not count.

    An answer without words and attributes scores 0 where the gold has any.

    Args:
        compat: ``ov15`` gives the published score of LLaVA-OneVision-1.5-RL, overlaps of token and tag sets.

    Raises ``RewardError`` when the gold is no page, or beyond the limits of one.
    """
    golds = golds_of(answer)
    read = [_read_gold(gold) for gold in golds] if compat is None else []
    page = find_code(answer_text, unmarked_text, ("html", "xml"))
    if not page or _too_large(page):
        return 0.0
    if compat == "ov15":
        return max(published_score(gold.strip(), page) for gold in golds)
    words, tags = _read(page)
    best: dict[str, Any] = {"score": 0.0}
    for gold_words, gold_tags in read:
        structure = sequence_similarity(gold_tags, tags) if gold_tags or tags else 1.0
        tokens = sequence_similarity(gold_words, words) if gold_words or words else structure
        empty = not words and (bool(gold_words) or not tags)  # a skeleton says nothing of what the gold page says
        score = 0.0 if empty else 0.6 * tokens + 0.4 * structure
        if score > best["score"]:
            best = {"score": score, "detail": {"tokens": tokens, "structure": structure}}
    return best


def _too_large(page: str) -> bool:
    return len(page) > MAX_CHARS or page.count("<") > MAX_TAGS


def _read(page: str) -> tuple[list[Hashable], list[Hashable]]:
    """Words and attributes in document order, and every tag as the number of its path from the root.

    Words that are not shown are words of their own kind: they match those of the gold that are hidden likewise.
    """
    parser = require("selectolax.lexbor").LexborHTMLParser
    root = parser(page.replace("\x00", "").encode("utf-8", "replace").decode()).root
    lowered = page.lower()
    implied = {tag for tag in _IMPLIED if f"<{tag}" not in lowered}
    words: list[Hashable] = []
    tags: list[Hashable] = []
    paths: dict[int, int] = {}  # of a node, by its address: the hash of the tags above it and its own
    unseen: dict[int, str] = {}  # of a node that is not shown: the tag, or "hidden"
    for node in root.traverse(include_text=True) if root is not None else ():
        parent = paths.get(node.parent.mem_id, 0) if node.parent is not None else 0
        place = unseen.get(node.parent.mem_id, "") if node.parent is not None else ""
        if node.tag == "-text":
            found = _WORD.findall(node.text_content or "")
            words.extend([(place, word) for word in found] if place else found)
            continue
        if place or node.tag in _UNSEEN or _is_hidden(node.attributes):
            unseen[node.mem_id] = place or (node.tag if node.tag in _UNSEEN else "hidden")
        if node.tag in implied:
            paths[node.mem_id] = parent
            continue
        paths[node.mem_id] = path = hash((parent, node.tag))
        tags.append(path)
        words.extend(f"{name}={value or ''}" for name, value in sorted(node.attributes.items(), key=str))
    return words, tags


def _is_hidden(attributes: Mapping[str, str | None]) -> bool:
    if "hidden" in attributes:
        return True
    style = "".join((attributes.get("style") or "").lower().split())
    return any(f"{rule};" in f";{style};" or f"{rule}!" in style for rule in _HIDING)


@lru_cache(maxsize=256)
def _read_gold(page: str) -> tuple[list[Hashable], list[Hashable]]:
    words, tags = ([], []) if _too_large(page) else _read(page)
    if not words and not tags:
        raise RewardError(f"the record's gold answer {page[:80]!r} is no page, or too large for one; mend the record.")
    return words, tags


def published_score(gold: str, page: str) -> float:
    """The score of the published module: 1 for the same source, else 0.6 · token sets + 0.4 · tag-name sets."""
    if same_markup(gold, page):
        return 1.0
    gold, page = gold.lower(), page.lower()
    tokens = set_similarity(_SET_TOKEN.findall(gold), _SET_TOKEN.findall(page))
    return 0.6 * tokens + 0.4 * set_similarity(_SET_TAG.findall(gold), _SET_TAG.findall(page))
