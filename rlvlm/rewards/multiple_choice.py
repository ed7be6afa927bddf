"""``multiple_choice``: a letter in any dress, or the text of an option."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.denial import affirmed_parts, denies
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.text import folded, golds_of, plain

MAX_CHARS = 4000
"""A longer answer names no choice."""

_OPEN, _CLOSE = r"[(\[{<\"'*]*", r"[)\]}>\"'*]*"
_NAMED = re.compile(
    r"(?:\b(?:answer|option|choice|select|choose|pick)s?\b(?:\s+(?:is|are|would be|should be|must be))?|答案(?:应该)?(?:是|为)?|应?选择?)"
    r"\s*[:=]?\s*(?:option\s+|choice\s+)?" + _OPEN + r"([A-Za-z])" + _CLOSE + r"(?=$|[\s.,;:!)\]]|[\u3000-\uffff])",
    re.IGNORECASE,
)
_ASSERTED = re.compile(r"\banswer\b|答案", re.IGNORECASE)
_DRESSED = re.compile(r"\s*" + _OPEN + r"([A-Za-z])" + _CLOSE + r"[\s.:,;!]*")
_LEADING = re.compile(
    r"\s*(?:(?:option|choice)\s+)?(?:[(\[{<]([A-Za-z])[)\]}>][.:,]?|([A-Za-z])(?:\s*[).:]|,?(?=\s+(?:because|since|as|for)\b)))\s*(?=\S)",
    re.IGNORECASE,
)
_ITEM = re.compile(r"(?<![A-Za-z0-9])(?:\(([A-Z])\)|([A-Z])[.):])(?=\s|$)")
_JOINED = re.compile(
    r"(?:\bor\b|\band\b|[,/&+、]|或|和)\s*" + _OPEN + r"([A-Z])" + _CLOSE + r"(?=$|[\s.,;:!/&])", re.IGNORECASE
)
_LETTER = re.compile(r"(?<![A-Za-z0-9'])([A-Z])(?![A-Za-z0-9']|-[A-Za-z])")
_ARTICLE = re.compile(r"(?<![A-Za-z0-9'])[AI]\s+(?!(?:and|or|nor|is|was|seems|because|since|as)\b)[a-zA-Z]")
_LIST = re.compile(
    r"[\s(\[{]*[A-Z](?:(?:\s*[)\]}]*\s*(?:[,/&+;|、]|→|and|or|\s|-)\s*[(\[{]*|\s*[)\]}]+\s*[(\[{]+)\s*[A-Z])*[\s)\]}.]*"
)
_DASHED = re.compile(r"(?<![A-Za-z0-9'-])[A-Z](?:-[A-Z])+(?![A-Za-z0-9'-])")
_GOLD_FILLER = re.compile(r"[\s,;/&()\[\]'\".]|\band\b")
_RUN = re.compile(r"[A-Z]{2,10}")
_NONE = re.compile(r"\bnone\b", re.IGNORECASE)
_PREDICATE = re.compile(
    r"(?:is|are|was|were|would|could|cannot|can|may|might|must|does|do|did|seems|looks|has|should|will)(?:n't|nt)?\b|not\s+(?:correct|right|true|it|this|the)\b|不",
    re.IGNORECASE,
)


@register_reward(
    "multiple_choice",
    isolated=False,
    example={
        "completion": "<answer>(B) two dogs</answer>",
        "answer": "B",
        "record": {"options": ["a cat", "two dogs"]},
    },
)
def multiple_choice(answer_text: str, answer: Any, options: Any = None, *, multi_select: bool | None = None) -> float:
    """1 when exactly the gold choice is named, by its letter or by the option's text, else 0; several letters are 0.

    A choice that the answer denies in whatever words ("anything but B") is not named.
    Reads the column ``options`` where the record has one: a list, or a mapping of letters to texts.

    Args:
        multi_select: whether a set of letters is asked for, all of which must be named; ``None`` goes by the gold.

    Raises ``RewardError`` when the gold names no choice, one that is none of the options, or several where one is asked for.
    """
    texts = _labelled(options)
    wanted = [_gold(gold, texts) for gold in golds_of(answer, short=True)]
    if multi_select:
        wanted = [frozenset().union(*wanted)]
    elif multi_select is False or len(wanted) > 1:
        wanted = [letters for letters in wanted if len(letters) == 1]
    if not wanted:
        raise RewardError(
            f"the record's gold answer {str(answer)[:80]!r} names several choices where one is asked for; see 'multi_select'."
        )
    return float(bool(answer_text) and read_choices(answer_text, texts) in wanted)


def _gold(text: str, options: Mapping[str, str]) -> frozenset[str]:
    named = _gold_letters(text, options)
    if not named or (options and not named <= set(options)):
        raise RewardError(
            f"the record's gold answer {text[:80]!r} names no choice; give a letter, or the text of one of the record's 'options'."
        )
    return named


def _gold_letters(text: str, options: Mapping[str, str]) -> frozenset[str]:
    if folded(text) not in map(folded, options.values()):
        letters = _GOLD_FILLER.sub("", text)
        if len(letters) == 1 and letters.isalpha():
            return frozenset(letters.upper())
        if letters and letters.isupper() and letters.isascii() and letters == "".join(sorted(set(letters))):
            return frozenset(letters)  # "AC", "A, C": several are asked for
    return read_choices(text, options)


def _labelled(options: Any) -> dict[str, str]:
    """Options as label → text, whatever the record holds."""
    if options is None:
        return {}
    if isinstance(options, Mapping):
        return {str(label).strip().upper(): str(text) for label, text in options.items() if text is not None}
    if isinstance(options, Sequence) and not isinstance(options, str):
        return dict(zip(string.ascii_uppercase, map(str, options), strict=False))
    raise RewardError(
        f"the record's 'options' are a list or a mapping of letters to texts, got {type(options).__name__}."
    )


def read_choices(text: str, options: Mapping[str, str] | None = None) -> frozenset[str]:
    """The letters that a short answer names; empty when it names none, or denies one.

    Args:
        options: label → text; with them an option's text is a name too, and other letters are none.
    """
    if len(text) > MAX_CHARS:
        return frozenset()
    text = " ".join(plain(text).split())
    options = options or {}
    by_text = _by_option_text(text, options)
    if by_text is not None:
        return by_text
    letters = _read_letters(text)
    return letters if not options or letters <= set(options) else frozenset()


def _by_option_text(text: str, options: Mapping[str, str]) -> frozenset[str] | None:
    """The choice whose text, or label and text, the answer is; ``None`` when the answer is worded otherwise."""
    wanted = folded(text).strip(" .")
    labels = {label for label, option in options.items() if folded(plain(option)).strip(" .") == wanted}
    if labels:
        return frozenset(labels) if len(labels) == 1 else frozenset()
    leading = _LEADING.match(text)
    if not options or leading is None:
        return None
    rest = _by_option_text(text[leading.end() :], options) if leading.end() < len(text) else None
    letter = frozenset(((leading[1] or leading[2]).upper(),))
    if rest is None:
        return None
    return letter if rest == letter else frozenset()  # a letter and another option's text contradict each other


def _read_letters(text: str) -> frozenset[str]:
    whole = _DRESSED.fullmatch(text)
    if whole:
        return frozenset(whole[1].upper())
    text = _DASHED.sub(lambda match: match.group().replace("-", ", "), text)
    if _LIST.fullmatch(text):
        return frozenset(re.findall(r"[A-Z]", re.sub(r"and|or", "", text)))
    run = text.strip(" .()[]")
    if _RUN.fullmatch(run) and len(set(run)) == len(run):
        return frozenset(run)
    leading = _LEADING.match(text)
    if leading and not _PREDICATE.match(text, leading.end()):
        named = _named(affirmed_parts(text))
        return named if named else _leading(leading, text)
    denied = denies(text)
    text = affirmed_parts(text)
    named = _named(text)
    if named:
        return named
    if leading and not denied:
        return _leading(leading, text)
    return frozenset() if _NONE.search(text) else frozenset(_LETTER.findall(_ARTICLE.sub(" ", text)))


def _leading(leading: re.Match[str], text: str) -> frozenset[str]:
    """The letter that an answer starts with, and those listed after it; what else follows is the option's text or a reason."""
    rest = affirmed_parts(text[leading.end() :])
    others = {match[1] or match[2] for match in _ITEM.finditer(rest)} | {
        match[1].upper() for match in _JOINED.finditer(rest) if match[1].isupper()
    }
    start = _LETTER.match(rest)
    if start and not _ARTICLE.match(rest):
        others.add(start[1])
    return frozenset({(leading[1] or leading[2]).upper(), *others})


def _named(text: str) -> frozenset[str]:
    """Letters that are called the answer (or, where no such word is used, the option or choice)."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for match in _NAMED.finditer(text):
        letter = match[1]
        rest = text[match.end() :]
        if letter.islower() and rest[:1] not in ("", ".", ",", ")", "]"):
            continue  # "the answer is a dog"
        if letter in "AI" and re.match(r"\s+(?!(?:and|or|is|because|since|as)\b)[a-z]", rest):
            continue
        group = found[bool(_ASSERTED.search(match.group()))]
        group.add(letter.upper())
        while joined := _JOINED.match(rest.lstrip()):
            group.add(joined[1].upper())
            rest = rest.lstrip()[joined.end() :]
    return frozenset(found[True] or found[False])
