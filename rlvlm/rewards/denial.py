"""Choices that a sentence denies: "not B", "B is ruled out", "anything but B", "不是B"; whatever stands in such words is not chosen."""

from __future__ import annotations

import re
from collections.abc import Iterator

_AFTER = (
    r"not|never|neither|nor|no|non|except|excluding|excludes?|without|instead of|rather than|other than|apart from|aside from"
    r"|besides|unlike|far from|hardly|barely|scarcely|opposite of|least|minus|avoid|reject|eliminate|discard|dismiss|disregard|ignore"
    r"|rule out|ruling out|doubt|deny|disagree with|cannot|can't|\w+n't|(?:is|are|was|were|do|does|did|ca|could|would|should|wo|ai)nt"
    r"|(?:any|every)(?:thing|one)? but|(?:any|every|all|none|nothing)(?: (?:of them|option|choice|answer)s?)? but"
    r"|nicht|keine?|pas|jamais"
)
"""Words whose denial falls on what follows, or on what stands before them where nothing does."""
_BEFORE = (
    r"wrong|incorrect|mistakes?|false|untrue|invalid|impossible|unlikely|improbable|implausible|unsupported|inaccurate|mistaken|bad"
    r"|(?:ruled|crossed|struck) out|(?:is|are|was|be) out|excluded|eliminated|rejected|discarded|dismissed|refuted|contradicted"
    r"|fails?|distractors?|fehlerhaft|falsch|faux|fausse|incorrecto|falso"
)
"""Words that deny what stands before them, or what follows where nothing does."""
_SIGNS = r"(?:[¬~≠✗✘❌]|!=?)(?=\s*[(\[]?[A-Za-z](?![A-Za-z]))|\b(?:non)-(?=[A-Z](?![A-Za-z]))"
_SIGNS_BEHIND = r"(?<=[A-Z)\]])\s*[✗✘❌]"
_CHINESE_AFTER, _CHINESE_BEFORE = (
    "不是|不选|不应|不能|不可能|并非|并不|排除|除了|别选|非",
    "不对|不正确|不符|不成立|错误|错|不",
)
_DENIAL = re.compile(
    rf"(?P<after>(?<!\w)(?:{_AFTER})(?!\w)|{_SIGNS}|{_CHINESE_AFTER})"
    rf"|(?P<before>(?<!\w)(?:{_BEFORE})(?!\w)|{_SIGNS_BEHIND}|{_CHINESE_BEFORE})",
    re.IGNORECASE,
)
_SURELY = re.compile(
    r"\b(?:no|without(?: any| a)?|beyond(?: any| a)?) (?:doubt|question)\b|\bnot only\b|\bno[.:]?\s*(?=[0-9])",
    re.IGNORECASE,
)
_EXCEPTING = "".join(
    f"(?<!{word} )" for word in ("thing", "all", "any", "every", "none", "one", "them", "options", "choices", "answers")
)
"""Before "but", a word after which it excepts something."""
_CLAUSE_END = re.compile(
    rf"[.,;:?，。；：！？\n]|!(?![=A-Za-z(\[])|\((?=[a-z]{{2}})|\s[-–—]+\s|—|{_EXCEPTING}\bbut\b"
    r"|\b(?:so|because|since|hence|therefore|thus|although|though|while|whereas|however)\b|而是|而|所以|因此|因为|但",
    re.IGNORECASE,
)
_NEXT_IN_LIST = re.compile(
    r"(?<![A-Za-z0-9'])([(\[]?[A-Z][)\]]?)\s*,\s*(?=(?:(?:and|or|nor)\s+)?[(\[]?[A-Z][)\]]?(?![A-Za-z0-9']))"
)
_LAST_LETTER = re.compile(r"(?<![A-Za-z0-9'])[(\[]?([A-Z])[)\]]?\s*(?:\b(?:and|or)\s*)?$")
_MERE_DENIAL = re.compile(
    r"(?:no+|nope|not|wrong|false|incorrect|never|not (?:really|quite|so|that|this)|不|错)", re.IGNORECASE
)


def denies(text: str) -> bool:
    """Whether a text denies anything."""
    return _DENIAL.search(_SURELY.sub(" ", text)) is not None


def affirmed_parts(text: str) -> str:
    """The text without the clauses, or the ends of clauses, that it denies; a full stop stands in the place of each."""
    kept: list[str] = []
    denied_next = False
    text = _SURELY.sub(" ", text)
    for clause, end in _clauses(_NEXT_IN_LIST.sub(r"\1 ", text) if denies(text) else text):
        mere = _MERE_DENIAL.fullmatch(clause.strip())
        found = _DENIAL.search(clause)
        if denied_next or (mere and end != ":" and not kept):
            kept.append(" . ")
        elif mere:
            kept = kept if end == ":" else kept[:-1]  # "B? No."
        elif found is None:
            kept.append(clause + end)
        elif found["after"] and _names_letter(clause[found.end() :]) and _ends_in_letter(clause[: found.start()]):
            kept.append(clause[: found.start()] + " . ")  # "C not B"
        else:
            kept.append(" . ")
        denied_next = mere is not None and end == ":"
    return "".join(kept).strip()


def _clauses(text: str) -> Iterator[tuple[str, str]]:
    """Clauses, each with the mark or word that ends it."""
    position = 0
    for end in _CLAUSE_END.finditer(text):
        yield text[position : end.start()], end.group()
        position = end.end()
    yield text[position:], ""


def _names_letter(text: str) -> bool:
    return re.search(r"(?<![A-Za-z0-9'])[A-Z](?![A-Za-z0-9'])", text) is not None


def _ends_in_letter(text: str) -> bool:
    """Whether the words before a denial end in a letter that it does not take back: "it is C not B"; the word I is none."""
    found = _LAST_LETTER.search(text)
    return found is not None and found[1] != "I"
