"""Concept vocabularies, in one language or several: a concept is found by any of its names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlvlm.errors import DataError


@dataclass(frozen=True)
class Vocabulary:
    """Concepts and their names.

    Attributes:
        concepts: [C] what each concept is called in reports: its first name.
        texts: [T] all names, those of one concept side by side.
        starts: [C] where each concept's names begin in ``texts``.
    """

    concepts: list[str]
    texts: list[str]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, names: list[list[str]]) -> Vocabulary:
        """From each concept's names."""
        lengths = np.array([len(group) for group in names], np.int64)
        starts = np.cumsum(lengths) - lengths
        return cls([group[0] for group in names], [name for group in names for name in group], starts)

    @property
    def one_name_each(self) -> bool:
        """Whether no concept has a second name."""
        return len(self.texts) == len(self.concepts)


def read_vocabulary(path: str) -> Vocabulary:
    """Reads a vocabulary file.

    ``.txt``: a concept a line, its names in other languages behind tabs. ``.jsonl``: a string, a list of names, or a mapping
    of language to name (or names) a line. Lines that share a first name are one concept.

    Raises ``DataError`` naming the line for anything else, and for a file without concepts.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"vocabulary '{path}' does not exist.")
    names: dict[str, list[str]] = {}
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"vocabulary '{path}' is no UTF-8 text ({error}).") from error
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        group = _names_of_json(line, path, number) if file.suffix == ".jsonl" else line.split("\t")
        group = [name.strip() for name in group if name.strip()]
        if not group:
            raise DataError(f"{path}, row {number}: a concept needs at least one name.")
        held = names.setdefault(group[0], [])
        held += [name for name in group if name not in held]
    if not names:
        raise DataError(f"vocabulary '{path}' holds no concepts.")
    return Vocabulary.of(list(names.values()))


def _names_of_json(line: str, path: str, number: int) -> list[str]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}, row {number}: no valid JSON ({error}).") from error
    found = value if isinstance(value, list) else list(value.values()) if isinstance(value, Mapping) else [value]
    flat = [name for entry in found for name in (entry if isinstance(entry, list) else [entry])]
    if not all(isinstance(name, str) for name in flat):
        raise DataError(
            f"{path}, row {number}: names are text, a list of texts, or a mapping of language to text, got {line[:60]}."
        )
    return flat
