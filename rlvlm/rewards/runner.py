"""Scores completions by several rules: where each rule runs, gates, choices by column, the weighted sum."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvlm.errors import TrainingStopped
from rlvlm.rewards.compose import GATE_HOLDS, Rule, build_rules
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.execute import Failure, Scores, run_batched, run_rows
from rlvlm.rewards.samples import MISSING, Samples

ERROR_WINDOW = 1000
"""The error rate is taken over so many last rows."""


@dataclass
class Result:
    """What the rules gave for B completions.

    Attributes:
        scores: weighted sum for each row; ``None`` where a rule failed.
        parts: raw score of each rule, by label, for each row; ``None`` where it failed.
        details: what rules told beside their scores, by label and row.
        failures: the first failure of each row that has one.
    """

    scores: list[float | None]
    parts: dict[str, list[float | None]]
    details: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)


class Runner:
    """Owns the rules of a config and what they run in.

    Args:
        config: rules, limits, workers.
    """

    def __init__(self, config: RewardConfig) -> None:
        self.config, self.rules = config, build_rules(config)
        self._recent: deque[bool] = deque(maxlen=ERROR_WINDOW)

    def samples(
        self,
        completions: Sequence[str],
        records: Sequence[Mapping[str, Any]],
        **columns: Sequence[Any] | Callable[[], Sequence[Any]],
    ) -> Samples:
        """Completions and records as the columns that the rules read."""
        return Samples(
            completions,
            records,
            think_prefilled=self.config.think_prefilled,
            unmarked=self.config.unmarked,
            columns=columns,
        )

    def score(self, samples: Samples) -> Result:
        """Scores every completion by every rule; a failing rule never raises, it takes its row's score away."""
        kept: dict[str, Scores] = {}
        for rule in self.rules:
            rows: Sequence[int] = range(len(samples))
            into = Scores([None] * len(samples))
            if rule.gate is not None:
                gate = kept[rule.gate]
                rows = [row for row in rows if _holds(gate.values[row])]
                for row in set(range(len(samples))) - set(rows):
                    into.values[row] = None if row in gate.failures else 0.0
            self._run(rule, samples, rows, into)
            kept[rule.label] = into
        return _sum(self.rules, kept, len(samples))

    def check_error_rate(self, result: Result) -> None:
        """Counts the failures; raises ``TrainingStopped`` when their share of the last rows is above ``max_error_rate``."""
        self._recent.extend(row in result.failures for row in range(len(result.scores)))
        errors = sum(self._recent)
        if errors > self.config.max_error_rate * len(self._recent):
            last = next(reversed(result.failures.values()))
            raise TrainingStopped(
                f"{errors} of the last {len(self._recent)} rewards failed, above reward.max_error_rate = {self.config.max_error_rate:g}; "
                f"the last one: {last.message} Mend the rule or the records, or raise the limit."
            )

    def close(self) -> None:
        """Ends the worker processes."""

    def _run(self, rule: Rule, samples: Samples, rows: Sequence[int], into: Scores) -> None:
        if rule.by is not None:
            for chosen, picked in self._chosen(rule, samples, rows, into):
                self._run(chosen, samples, picked, into)
        elif rule.part is not None and rows:
            run = run_batched if rule.part.traits["batched"] else run_rows
            run(rule.part, rule.label, samples, rows, into)

    def _chosen(self, rule: Rule, samples: Samples, rows: Sequence[int], into: Scores) -> list[tuple[Rule, list[int]]]:
        """The rows of each rule that the column picks; a value that picks none fails its row."""
        column = samples.column(str(rule.by))
        picked: dict[int, tuple[Rule, list[int]]] = {}
        for row in rows:
            value = column[row]
            chosen = rule.choices.get(str(value), rule.default) if value is not MISSING else rule.default
            if chosen is None:
                into.put(row, rule.label, _unknown_choice(rule, value))
            else:
                picked.setdefault(id(chosen), (chosen, []))[1].append(row)
        return list(picked.values())


def _holds(score: float | None) -> bool:
    return score is not None and score >= GATE_HOLDS


def _unknown_choice(rule: Rule, value: Any) -> Failure:
    from rlvlm.errors import nearest

    said = (
        "has no such column"
        if value is MISSING
        else f"has {value!r}, for which the table has no rule{nearest(str(value), rule.choices)}"
    )
    return Failure(
        rule.label,
        "error",
        f"reward.rules.{rule.label} picks a rule by column '{rule.by}', but the record {said}; add it to 'table' or set 'default'.",
    )


def _sum(rules: Sequence[Rule], kept: Mapping[str, Scores], size: int) -> Result:
    totals: list[float | None] = [0.0] * size
    failures: dict[int, Failure] = {}
    for rule in rules:
        scores, weight = kept[rule.label], rule.weight
        totals = [
            None if value is None or total is None else total + weight * value
            for total, value in zip(totals, scores.values, strict=True)
        ]
        for row, failure in scores.failures.items():
            failures.setdefault(row, failure)
    return Result(
        totals,
        {label: scores.values for label, scores in kept.items()},
        {label: scores.details for label, scores in kept.items()},
        failures,
    )
