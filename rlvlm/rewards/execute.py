"""Calls a rule on rows, in this process, and checks what it gives; the pool's workers use it too."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvlm.errors import RewardError, nearest
from rlvlm.registry import Part
from rlvlm.rewards.printing import escaped
from rlvlm.rewards.samples import MISSING, Samples, known_names


@dataclass(frozen=True)
class Failure:
    """Why a row has no score.

    Attributes:
        kind: ``error`` (the rule says so, by ``RewardError``), ``exception`` (any other), ``timeout``, ``memory``, ``crash``
            (the process died) or ``value`` (no finite number).
    """

    rule: str
    kind: str
    message: str


@dataclass(frozen=True)
class Batched:
    """What a batched rule may give instead of a list: the values of all rows, and metrics of the whole batch by name."""

    values: Sequence[Any]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Scores:
    """What one rule gave: a score or ``None`` for each row, details and failures by row, and metrics of the batch by name."""

    values: list[float | None]
    details: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def put(self, row: int, label: str, value: Any) -> None:
        """Keeps one result: a number, a mapping with ``score``, a ``Failure``, or a ``RewardError`` in place of a score."""
        if type(value) is float and value - value == 0.0:  # finite, the usual case
            self.values[row] = value
        elif isinstance(value, Failure):
            self.failures[row] = value
        else:
            self._put_other(row, label, value)

    def _put_other(self, row: int, label: str, value: Any) -> None:
        try:
            score, detail = read_score(value)
        except RewardError as error:
            kind = "error" if value is error else "value"
            self.failures[row] = Failure(label, kind, str(error))
            return
        self.values[row] = score
        if detail:
            self.details[row] = detail


def read_score(value: Any) -> tuple[float, Mapping[str, Any]]:
    """The score and detail in what a rule gave; raises ``RewardError`` unless it is a finite number or a mapping with one.

    Other keys of the mapping are details too.
    """
    if isinstance(value, RewardError):
        raise value
    detail: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        if "score" not in value:
            raise RewardError(
                f"a reward gave a mapping without 'score' (it has {list(value)}); expected {{'score': …, 'detail': …}}."
            )
        detail = value.get("detail") or {}
        if not isinstance(detail, Mapping):
            detail = {"detail": detail}
        beside = {str(key): given for key, given in value.items() if key not in ("score", "detail")}
        detail = {**beside, **detail} if beside else detail
        value = value["score"]
    if isinstance(value, str) or value is None:
        raise RewardError(f"a reward gave {value!r}, expected a float or {{'score': …, 'detail': …}}.")
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise RewardError(
            f"a reward gave {type(value).__name__}, expected a float or {{'score': …, 'detail': …}}."
        ) from error
    if score - score != 0.0:
        raise RewardError(f"a reward gave {score}, expected a finite number.")
    return score, detail


def arguments(part: Part, samples: Samples) -> tuple[list[Sequence[Any]], dict[str, Sequence[Any]]]:
    """The columns that a part needs, in its order, and those of its optional names that stand for something."""
    needed = [samples.column(name) for name in part.needs]
    return needed, {name: samples.column(name) for name in part.optional if samples.has(name)}


def run_rows(part: Part, label: str, samples: Samples, rows: Sequence[int], into: Scores) -> None:
    """Calls a part of one sample at a time on these rows, one after another, and keeps a failure where one is raised.

    Arguments go by position where they can: rules that take microseconds run here.
    """
    needed, optional = arguments(part, samples)
    rows = complete_rows(part, label, samples, rows, into)
    loose = samples.incomplete.intersection(optional)
    if not loose and [*optional] == [*part.optional[: len(optional)]]:
        needed, optional = [*needed, *optional.values()], {}
    call = by_position(part)
    columns = needed if len(rows) == len(samples) else [[column[row] for row in rows] for column in needed]
    if columns and not optional:
        put_all(label, _mapped(call, label, columns), rows, into)
        return
    for row, given in zip(rows, zip(*columns, strict=True) if columns else [()] * len(rows), strict=True):
        try:
            value = call(*given, **_present(optional, row))
        except Exception as error:  # a rule's fault is its row's failure, whatever it raises
            value = failure_of(label, error)
        into.put(row, label, value)


def _mapped(call: Callable[..., Any], label: str, columns: Sequence[Sequence[Any]]) -> list[Any]:
    """What the call gives for each row, or the failure that it raises: unlike a generator, ``map`` goes on after one."""
    found: list[Any] = []
    results = map(call, *columns)
    while True:
        try:
            found.extend(results)
            return found
        except Exception as error:  # a rule's fault is its row's failure, whatever it raises
            found.append(failure_of(label, error))


def by_position(part: Part) -> Callable[..., Any]:
    """The part's function with its options set, without the registry's wrapper between."""
    function = getattr(part.call, "__wrapped__", None)
    return part.call if function is None else functools.partial(function, **part.options) if part.options else function


def complete_rows(part: Part, label: str, samples: Samples, rows: Sequence[int], into: Scores) -> Sequence[int]:
    """The rows that have all that the part needs; the others fail."""
    for name in part.needs:
        column = samples.column(name)
        if name not in samples.incomplete:
            continue
        for row in rows:
            if column[row] is MISSING:
                into.failures[row] = Failure(label, "error", str(_missing(part, name, samples, row)))
        rows = [row for row in rows if column[row] is not MISSING]
    return rows


def run_batched(part: Part, label: str, samples: Samples, rows: Sequence[int], into: Scores) -> None:
    """Calls a part of whole columns on these rows at once; an exception fails all of them."""
    rows = complete_rows(part, label, samples, rows, into)
    try:
        values = list(part.call(**columns_of(part, samples, rows))) if rows else []
    except Exception as error:
        values = [failure_of(label, error)] * len(rows)
    put_all(label, values, rows, into)


def put_all(label: str, values: Sequence[Any], rows: Sequence[int], into: Scores) -> None:
    """Keeps what a rule gave for these rows; another number of values fails all of them."""
    if len(values) != len(rows):
        message = f"the batched reward '{label}' gave {len(values)} scores for {len(rows)} completions; it gives one for each."
        values = [Failure(label, "value", message)] * len(rows)
    if len(rows) == len(into.values) and set(map(type, values)) == {float} and math.isfinite(sum(values)):
        into.values[:] = values  # the usual case, quicker than one by one
        return
    for row, value in zip(rows, values, strict=True):
        into.put(row, label, value)


def columns_of(part: Part, samples: Samples, rows: Sequence[int]) -> dict[str, list[Any]]:
    """The columns that a part reads, for some rows; ``None`` where an optional name stands for nothing."""
    needed, optional = arguments(part, samples)
    given = {name: [column[row] for row in rows] for name, column in zip(part.needs, needed, strict=True)}
    for name, column in optional.items():
        given[name] = [None if column[row] is MISSING else column[row] for row in rows]
    return given


def rows_of(part: Part, samples: Samples, rows: Sequence[int]) -> list[dict[str, Any]]:
    """What a part reads of each of these rows, by name."""
    needed, optional = arguments(part, samples)
    names = [*zip(part.needs, needed, strict=True)]
    return [{**{name: column[row] for name, column in names}, **_present(optional, row)} for row in rows]


async def run_async(
    part: Part, label: str, samples: Samples, rows: Sequence[int], into: Scores, timeout: float
) -> None:
    """Awaits an async part: one of single samples for all rows at once with ``timeout`` seconds each, or one of columns."""
    rows = complete_rows(part, label, samples, rows, into)
    if not part.traits["batched"]:
        values = await await_rows(part, label, rows_of(part, samples, rows), timeout)
    elif rows:
        try:
            values = list(await part.call(**columns_of(part, samples, rows)))
        except Exception as error:
            values = [failure_of(label, error)] * len(rows)
    else:
        values = []
    put_all(label, values, rows, into)


async def await_rows(part: Part, label: str, rows: Sequence[dict[str, Any]], timeout: float) -> list[Any]:
    """Awaits an async part of single samples for all rows at once, with ``timeout`` seconds for each."""

    async def one(given: dict[str, Any]) -> Any:
        try:
            return await asyncio.wait_for(part.call(**given), timeout)
        except (TimeoutError, asyncio.TimeoutError):
            return timed_out(label, timeout)
        except Exception as error:
            return failure_of(label, error)

    return await asyncio.gather(*map(one, rows))


def is_async(target: Callable[..., Any]) -> bool:
    """Whether calling the part gives something to await."""
    return inspect.iscoroutinefunction(target.__call__ if inspect.isclass(target) else target)  # type: ignore[operator]


def timed_out(label: str, seconds: float, rows: int = 1) -> Failure:
    """The failure of a row, or of several that were scored at once, that took too long."""
    what = "one completion" if rows == 1 else f"{rows} completions"
    return Failure(
        label,
        "timeout",
        f"reward '{label}' took longer than {seconds:g} s for {what}; raise its 'timeout' or mend the rule.",
    )


def failure_of(label: str, error: BaseException) -> Failure:
    """The failure that an exception means; a typed one keeps its message, another one names its type and line."""
    if isinstance(error, RewardError):
        return Failure(label, "error", escaped(str(error)))
    if isinstance(error, MemoryError):
        return Failure(label, "memory", f"reward '{label}' ran out of memory; raise reward.memory_mb or mend the rule.")
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return Failure(label, "exception", f"reward '{label}' raised {type(error).__name__}: {escaped(str(error))}{where}.")


def _present(optional: Mapping[str, Sequence[Any]], row: int) -> dict[str, Any]:
    return {
        name: column[row] for name, column in optional.items() if column[row] is not None and column[row] is not MISSING
    }


def _missing(part: Part, name: str, samples: Samples, row: int) -> RewardError:
    return RewardError(
        f"reward '{part.name}' reads '{name}', which is neither a column of the record nor filled in"
        f"{nearest(name, [*samples.records[row], *known_names()])}."
    )
