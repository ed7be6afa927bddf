"""What the families are called, without loading them; and what a folder's name tells of a model's family."""

from __future__ import annotations

import re

FAMILY_NAMES = ("llava", "qwen2_5_vl", "qwen3_vl")
"""The library's own families, as ``model_type`` in a model's ``config.json`` has them."""


def family_names() -> tuple[str, ...]:
    """The library's own families, sorted."""
    return FAMILY_NAMES


def looks_unknown(folder: str) -> bool:
    """Whether a folder's name is that of a model whose makers have families here, but none of that model's."""
    name = _plain(folder)
    stems = {re.match(r"[a-z]+", family).group() for family in map(_plain, FAMILY_NAMES)}  # type: ignore[union-attr]
    if not any(stem in name for stem in stems):
        return False
    return not any(
        re.search(f"{family}(?![a-z])|{family}(?:hf|instruct|base)", name) for family in map(_plain, FAMILY_NAMES)
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
