"""Scores completions by several rules: where each rule runs, gates, choices by column, the weighted sum."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlvlm.errors import TrainingStopped, nearest
from rlvlm.rewards.compose import GATE_HOLDS, Rule, build_rules
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.deadline import run_batched_in_thread, run_on_loop, run_rows_in_thread
from rlvlm.rewards.execute import Failure, Scores, complete_rows, is_async, rows_of, run_batched, run_rows
from rlvlm.rewards.pool import Pool
from rlvlm.rewards.process import is_importable
from rlvlm.rewards.resident import Resident
from rlvlm.rewards.samples import MISSING, Samples

MAX_WORKERS = 8
"""Worker processes at most, unless ``RewardConfig.workers`` says otherwise."""
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
        metrics: what rules told of the whole batch, by label and name.
    """

    scores: list[float | None]
    parts: dict[str, list[float | None]]
    details: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)


class Runner:
    """Owns the rules of a config and what they run in; works from any thread.

    Args:
        config: rules, limits, workers.
        pool: processes to share with other runners; without one it starts its own when a rule needs them.
        rules: rules that are built already, instead of those of the config.
    """

    def __init__(self, config: RewardConfig, pool: Pool | None = None, rules: Sequence[Rule] | None = None) -> None:
        self.config, self.rules = config, list(rules) if rules is not None else build_rules(config)
        self._pool, self._own_pool = pool, pool is None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._recent: deque[bool] = deque(maxlen=ERROR_WINDOW)
        self._residents: dict[int, Resident] = {}
        self._lock = threading.Lock()

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
        size = len(samples)
        kept: dict[str, Scores] = {}
        for level in _levels(self.rules):
            waiting: list[Callable[[], None]] = []
            inline: list[tuple[Rule, Sequence[int], Scores]] = []
            for rule in level:
                into = kept[rule.label] = Scores([None] * size)
                for one, rows in self._pick(rule, samples, self._open_rows(rule, kept, size), into):
                    if place_of(one) == "inline":
                        inline.append((one, rows, into))
                    elif rows:
                        waiting.append(self._start(one, samples, rows, into))
            for one, rows, into in inline:  # while the others run elsewhere
                _run_inline(one, samples, rows, into)
            for wait in waiting:
                wait()
        return _sum(self.rules, kept, size)

    def check_error_rate(self, result: Result) -> None:
        """Counts the failures; raises ``TrainingStopped`` when their share of the last rows is above ``max_error_rate``."""
        with self._lock:
            self._recent.extend([row in result.failures for row in range(len(result.scores))])
            errors, rows = sum(self._recent), len(self._recent)
        if errors > self.config.max_error_rate * rows:
            last = next(reversed(result.failures.values()), None)
            told = f"; the last one: {last.message}" if last else ""
            raise TrainingStopped(
                f"{errors} of the last {rows} rewards failed, above reward.max_error_rate = {self.config.max_error_rate:g}{told} "
                "Mend the rule or the records, or raise the limit."
            )

    def close(self) -> None:
        """Ends the worker processes and the event loop."""
        with self._lock:
            if self._pool is not None and self._own_pool:
                self._pool.close()
            for resident in self._residents.values():
                resident.close()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def _open_rows(self, rule: Rule, kept: Mapping[str, Scores], size: int) -> Sequence[int]:
        """The rows that the rule scores: all, or those where its gate holds; it scores 0 on the others."""
        if rule.gate is None:
            return range(size)
        gate, into = kept[rule.gate], kept[rule.label]
        rows = [row for row, value in enumerate(gate.values) if value is not None and value >= GATE_HOLDS]
        for row in set(range(size)).difference(rows, gate.failures):
            into.values[row] = 0.0
        return rows

    def _start(self, rule: Rule, samples: Samples, rows: Sequence[int], into: Scores) -> Callable[[], None]:
        """Starts a rule that does not run inline; gives what waits for it."""
        assert rule.part is not None  # only a choice has no part, and a choice is never started itself
        if place_of(rule) == "pool":
            rows = complete_rows(rule.part, rule.label, samples, rows, into)
            given = rows_of(rule.part, samples, rows)
            return self._pool_now().submit(rule, list(zip(rows, given, strict=True)), into).wait
        if place_of(rule) == "process":
            return self._resident(rule).submit(samples, rows, into)
        run: Callable[..., None] = run_batched_in_thread if rule.part.traits["batched"] else run_rows_in_thread
        if place_of(rule) == "loop":
            run = functools.partial(run_on_loop, self._loop_now())
        thread = threading.Thread(
            target=run, args=(rule.part, rule.label, samples, rows, into, rule.timeout), daemon=True
        )
        thread.start()
        return thread.join

    def _pool_now(self) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self.config.workers or default_workers(), self.config.memory_mb)
            return self._pool

    def _resident(self, rule: Rule) -> Resident:
        with self._lock:
            if (
                id(rule) not in self._residents
            ):  # the rule lives as long as its process's handle, so the id stays its own
                self._residents[id(rule)] = Resident(rule, self.config.memory_mb)
            return self._residents[id(rule)]

    def _loop_now(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="reward-loop", daemon=True).start()
            return self._loop

    def _pick(
        self, rule: Rule, samples: Samples, rows: Sequence[int], into: Scores
    ) -> list[tuple[Rule, Sequence[int]]]:
        """The rule with its rows; of a choice, each chosen rule with the rows that chose it."""
        return [(rule, rows)] if rule.by is None else self._chosen(rule, samples, rows, into)

    def _chosen(
        self, rule: Rule, samples: Samples, rows: Sequence[int], into: Scores
    ) -> list[tuple[Rule, Sequence[int]]]:
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


def default_workers() -> int:
    """Processes for this process's share of the cores: several trainers of one machine divide them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def place_of(rule: Rule) -> Literal["inline", "pool", "process", "loop", "thread"]:
    """Where a rule runs, by what it declares.

    ``isolated=False``: in this thread. ``in_trainer``: in a thread with a deadline, or on the event loop. Functions of one row that a
    fresh process can find: in the pool of processes. All others, which have state or take whole batches: in a process of their own.
    """
    assert rule.part is not None
    traits, entry = rule.part.traits, rule.part.entry
    waits = is_async(entry.target)
    if traits["in_trainer"] or (waits and traits["isolated"] is False):
        return "loop" if waits else "thread"
    if traits["isolated"] is False:
        return "inline"
    alone = entry.is_class or traits["stateful"] or traits["batched"] or waits or not is_importable(rule)
    return "process" if alone else "pool"


def _run_inline(rule: Rule, samples: Samples, rows: Sequence[int], into: Scores) -> None:
    assert rule.part is not None
    run = run_batched if rule.part.traits["batched"] else run_rows
    run(rule.part, rule.label, samples, rows, into)


def _levels(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Rules that can run at once: first those without a gate, then those whose gates have run."""
    depth: dict[str, int] = {}
    for rule in rules:  # gates come first
        depth[rule.label] = 0 if rule.gate is None else depth[rule.gate] + 1
    return [[rule for rule in rules if depth[rule.label] == level] for level in range(max(depth.values()) + 1)]


def _unknown_choice(rule: Rule, value: Any) -> Failure:
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
        {label: scores.metrics for label, scores in kept.items() if scores.metrics},
    )
