"""Completions and their records as the columns that rules read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from rlvlm.errors import ConfigError, RewardError
from rlvlm.rewards.extract import Extraction, extract
from rlvlm.rewards.rule import DERIVED, INJECTED

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>", "__reduce__": lambda self: "MISSING"})()
"""Stands in a column for a row whose record lacks it."""

_OF_EXTRACTION: dict[str, Callable[[Extraction], Any]] = {
    "answer_text": attrgetter("answer"),
    "candidates": attrgetter("candidates"),
    "n_candidates": attrgetter("n_candidates"),
    "visible_text": attrgetter("visible"),
    "unmarked_text": attrgetter("unmarked"),
}


class Samples:
    """Completions to be scored, as columns by name.

    Args:
        completions: texts of the policy.
        records: each completion's record.
        think_prefilled, unmarked: as in ``RewardConfig``.
        columns: what else is known of each completion (``response_length``, ``images``, …), or functions that give such a
            column when a rule reads it. A name of ``DERIVED`` is taken from the records where they have it.

    ``incomplete`` holds the names that were read and are ``MISSING`` or ``None`` in some row.

    Raises ``ConfigError`` for a record column that has an injected name, ``RewardError`` for a completion that is no text.
    """

    def __init__(
        self,
        completions: Sequence[str],
        records: Sequence[Mapping[str, Any]],
        *,
        think_prefilled: bool = False,
        unmarked: str = "bare",
        columns: Mapping[str, Sequence[Any] | Callable[[], Sequence[Any]]] | None = None,
    ) -> None:
        if len(completions) != len(records):
            raise ConfigError(
                f"every completion has a record; got {len(completions)} completions and {len(records)} records."
            )
        for row, text in enumerate(completions):
            if not isinstance(text, str):
                raise RewardError(f"a completion is text, got {type(text).__name__} as completion {row}.")
        self.completions, self.records = completions, records
        self._prefilled, self._unmarked = think_prefilled, unmarked
        self._columns: dict[str, Sequence[Any]] = {"completion": completions, "record": records}
        self._given = columns or {}
        self._found: list[Extraction] | None = None
        self.incomplete: set[str] = set()
        for record in {id(record): record for record in records}.values():
            check_columns(record)

    def __len__(self) -> int:
        return len(self.completions)

    def column(self, name: str) -> Sequence[Any]:
        """What a name stands for in every row; ``MISSING`` where a row has nothing of that name."""
        if name not in self._columns:
            column = self._read(name)
            if name not in _OF_EXTRACTION and any(value is MISSING or value is None for value in column):
                self.incomplete.add(name)
            self._columns[name] = column
        return self._columns[name]

    def has(self, name: str) -> bool:
        """Whether the name stands for something in at least one row."""
        column = self.column(name)
        return name not in self.incomplete or any(value is not MISSING and value is not None for value in column)

    def _read(self, name: str) -> Sequence[Any]:
        if name in _OF_EXTRACTION:
            if self._found is None:
                self._found = [
                    extract(text, think_prefilled=self._prefilled, unmarked=self._unmarked) for text in self.completions
                ]
            return list(map(_OF_EXTRACTION[name], self._found))
        if name == "think_prefilled":
            return [self._prefilled] * len(self)
        own = [record.get(name, MISSING) for record in self.records] if name not in INJECTED else []
        if name in self._given and (not own or all(value is MISSING for value in own)):
            given = self._given[name]
            return given() if callable(given) else given
        return own or [None] * len(self)


def check_columns(columns: Mapping[str, Any] | Sequence[str]) -> None:
    """Raises ``ConfigError`` when a record column has a name that the library fills in."""
    shadowed = INJECTED.keys() & columns if isinstance(columns, Mapping) else INJECTED.keys() & set(columns)
    if shadowed:
        name = sorted(shadowed)[0]
        raise ConfigError(
            f"a record has a column '{name}', which is a name that rewards fill in themselves ({INJECTED[name]}); rename the column."
        )


def known_names() -> list[str]:
    """Names that a rule may read whatever the records hold."""
    return [*INJECTED, *DERIVED]
