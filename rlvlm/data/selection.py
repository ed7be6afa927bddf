"""``rlvlm data select``: which prompts are worth training on, from several answers to each.

Worth most are prompts that the model can answer but mostly does not: pass@k high, pass@1 not (latent ability). Prompts that
it always or never answers give a group no difference to learn from.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlvlm.data.config import SourceConfig
from rlvlm.data.jobs import Job, write_atomic
from rlvlm.data.progress import Progress
from rlvlm.data.selection_report import selection_page
from rlvlm.data.sources import open_source
from rlvlm.data.workers import Chunk, plan_chunks, run_chunks
from rlvlm.errors import ConfigError, DataError, printable

CHUNK = 64  # prompts whose answers are one part of the job
_SIDES = (0.0, 1.0)


@dataclass(frozen=True)
class Answered:
    """One prompt with its scored answers.

    Attributes:
        row: in the source's file.
        rewards: of each answer whose reward did not fail.
        correct: whether each of these is right.
        completions: their texts, kept for inspection.
        columns: of the record, for windows by column and for the report.
    """

    row: int
    rewards: tuple[float, ...]
    correct: tuple[bool, ...]
    completions: tuple[str, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SelectionRules:
    """Which prompts are kept. All rules that are set must hold.

    Attributes:
        k: of pass@k; a prompt with fewer answers is left out and counted. ``None`` takes as many as each prompt has answers.
        widest: of the prompts that pass, only the so many with the widest gap of pass@k over pass@1, equal gaps by row.
        min_pass_k, max_pass_1: latent ability: pass@k at least, pass@1 at most.
        drop_solved, drop_hopeless: leave out prompts that are always, or never, answered right.
        window: mean rewards strictly between these are kept; ``None`` for no window.
        window_by: a column of the record, such as ``answer_type`` or ``source``, that chooses the window.
        windows: windows by that column's value; other values take ``window``.
    """

    k: int | None = None
    min_pass_k: float = 0.5
    max_pass_1: float = 0.75
    drop_solved: bool = True
    drop_hopeless: bool = True
    window: tuple[float, float] | None = None
    window_by: str | None = None
    windows: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    widest: int | None = None

    def __post_init__(self) -> None:
        for name in ("min_pass_k", "max_pass_1"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a share between 0 and 1, got {getattr(self, name)}.")
        if self.k is not None and self.k < 1:
            raise ConfigError(f"k of pass@k is at least 1, got {self.k}.")
        if self.widest is not None and self.widest < 1:
            raise ConfigError(f"at least 1 prompt is kept, got --count {self.widest}.")
        for low, high in (*self.windows.values(), *([self.window] if self.window else [])):
            if low >= high:
                raise ConfigError(f"a window of mean rewards goes from low to high, got ({low}, {high}).")
        if self.windows and self.window_by is None:
            raise ConfigError("windows by value need window_by, the column whose values they are for.")


@dataclass(frozen=True)
class Verdict:
    """What was found of a prompt, and whether it is kept: ``reason`` is ``kept`` or the first rule that it fails."""

    row: int
    answers: int
    right: int
    pass_1: float
    pass_k: float
    gap: float
    mean_reward: float
    kept: bool
    reason: str
    group: str


def pass_at_k(answers: int, right: int, k: int) -> float:
    """The chance that k answers drawn from those given hold a right one: unbiased for pass@k (Chen et al. 2021).

    ``1 - C(answers - right, k) / C(answers, k)``. Raises ``ConfigError`` for k above the number of answers.
    """
    if not 0 <= right <= answers or not 1 <= k <= answers:
        raise ConfigError(
            f"pass@{k} takes at least {k} answers and no more right ones than answers, got {right} of {answers}."
        )
    return 1.0 - math.comb(answers - right, k) / math.comb(answers, k)


def judge(answered: Answered, rules: SelectionRules) -> Verdict:
    """Applies the rules to one prompt."""
    count, right = len(answered.rewards), sum(answered.correct)
    group = printable(str(answered.columns.get(rules.window_by, ""))) if rules.window_by else ""
    if count == 0:
        nan = math.nan
        return Verdict(answered.row, 0, 0, nan, nan, nan, nan, False, "no scored answer", group)
    pass_1 = right / count
    mean = math.fsum(answered.rewards) / count
    if rules.k is not None and rules.k > count:
        nan = math.nan
        return Verdict(
            answered.row, count, right, pass_1, nan, nan, mean, False, f"fewer than {rules.k} answers", group
        )
    pass_k = pass_at_k(count, right, rules.k or count)
    reason = _reason(pass_1, pass_k, mean, rules, rules.windows.get(group, rules.window))
    gap = pass_k - pass_1
    return Verdict(answered.row, count, right, pass_1, pass_k, gap, mean, reason == "kept", reason, group)


def _reason(
    pass_1: float, pass_k: float, mean: float, rules: SelectionRules, window: tuple[float, float] | None
) -> str:
    if rules.drop_solved and pass_1 == 1:
        return "solved"
    if rules.drop_hopeless and pass_k == 0:
        return "hopeless"
    if pass_k < rules.min_pass_k:
        return "pass@k below"
    if pass_1 > rules.max_pass_1:
        return "pass@1 above"
    if window is not None and not window[0] < mean < window[1]:
        return "mean reward outside"
    return "kept"


@dataclass(frozen=True)
class AnswerTask:
    """How prompts are answered: ``answer(start, end)`` gives those of the source's records from start up to end."""

    total: int
    answer: Callable[[int, int], Iterable[Answered]]


def collect_answers(
    task: AnswerTask,
    folder: str | Path,
    settings: Mapping[str, Any],
    *,
    shard: tuple[int, int] = (0, 1),
    quiet: bool = False,
) -> bool:
    """Answers the prompts of this shard and writes ``parts/*.jsonl``; goes on where a killed run stopped.

    Args:
        settings: whatever decides the answers; a folder of other settings is refused.
        shard: (number, of how many): every so-many-th part is this process's; all write into one folder.

    Returns whether all parts, those of other shards too, are finished.
    """
    number, shards = shard
    if not 0 <= number < shards:
        raise ConfigError(f"a shard is one of 0 to {shards - 1}, got {number}.")
    job = Job(folder, {"step": "answers", "rows": task.total, "chunk": CHUNK, **settings})
    plan, pending = plan_chunks(job, task.total, CHUNK, ".jsonl")
    mine = [chunk for chunk in plan if chunk.number % shards == number]
    todo = [chunk for chunk in mine if chunk in pending]
    total, left = (sum(chunk.end - chunk.start for chunk in some) for some in (mine, todo))
    with Progress("answers", total, done=total - left, unit="prompts", quiet=quiet) as progress:
        run_chunks(_answer_chunk, task, todo, workers=1, progress=progress)
    return all(job.finished(len(plan), ".jsonl"))


def _answer_chunk(task: AnswerTask, chunk: Chunk) -> None:
    lines = [json.dumps(asdict(one), default=str) for one in task.answer(chunk.start, chunk.end)]
    write_atomic(chunk.target, "".join(f"{line}\n" for line in lines).encode())


def read_answers(folder: str | Path) -> Iterable[Answered]:
    """The answers that :func:`collect_answers` wrote, in the order of the source."""
    for part in sorted((Path(folder) / "parts").glob("*.jsonl")):
        for number, line in enumerate(part.read_bytes().split(b"\n")):
            if not line:
                continue
            try:
                held = json.loads(line)
                lists = {name: tuple(held[name]) for name in ("rewards", "correct", "completions")}
                answered = Answered(held["row"], **lists, columns=held["columns"])
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{part}, row {number}: no answers that can be read ({error}); remove that file, and its prompts are answered again."
                ) from error
            yield answered


def read_scores(path: str, success: float = 1.0) -> Iterable[Answered]:
    """Scores made elsewhere: a data file with ``scores`` (a list), and ``row`` where it is not the row's own number.

    An answer is right when its score is at least ``success``. Other columns are at hand for windows. Raises ``DataError``
    naming file and row for a row without scores, or with scores given twice.
    """
    source = open_source(SourceConfig(path=path))
    seen: set[int] = set()
    for index in range(len(source)):
        answered = _scored(source.raw(index), index, source.origin(index), success)
        if answered.row in seen:
            raise DataError(f"{source.origin(index)}: row {answered.row} has scores already; put them into one list.")
        seen.add(answered.row)
        yield answered


def _scored(row: Mapping[str, Any], number: int, origin: str, success: float) -> Answered:
    scores, own = row.get("scores"), row.get("row", number)
    if not isinstance(scores, Sequence) or not all(map(_is_score, scores)):
        raise DataError(f"{origin}: 'scores' is a list of finite numbers, got {scores!r:.80}.")
    if not isinstance(own, int) or own < 0:
        raise DataError(f"{origin}: 'row' is the number of a row of the data, from 0, got {own!r}.")
    others = {name: value for name, value in row.items() if name != "scores"}
    return Answered(own, tuple(map(float, scores)), tuple(score >= success for score in scores), columns=others)


def _is_score(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def select(answers: Iterable[Answered], rules: SelectionRules, folder: str | Path) -> dict[str, Any]:
    """Judges every prompt and writes ``scores.parquet`` (all verdicts), ``picked.parquet`` (kept rows), ``report.html``.

    Returns the report: prompts, kept ones, and counts by reason. Equal input gives equal files.
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    examples: dict[str, list[Answered]] = {}
    verdicts, with_column = [], 0
    for answered in answers:
        verdict = judge(answered, rules)
        with_column += rules.window_by in answered.columns
        verdicts.append(verdict)
        examples.setdefault(verdict.reason, [])
        if len(examples[verdict.reason]) < 3:
            examples[verdict.reason].append(answered)
    if rules.window_by is not None and verdicts and not with_column:
        raise ConfigError(f"window_by is '{rules.window_by}', a column that none of the {len(verdicts)} prompts has.")
    counts = Counter(verdict.answers for verdict in verdicts)
    if rules.k is not None and verdicts and max(counts) < rules.k:
        raise ConfigError(
            f"pass@{rules.k} takes {rules.k} answers to a prompt, and none of {len(verdicts)} prompts has more than {max(counts)}; lower "
            "--k, or answer more often (rollout.n)."
        )
    verdicts = _only_widest(verdicts, rules.widest)
    kept = [verdict for verdict in verdicts if verdict.kept]
    reasons = Counter(verdict.reason for verdict in verdicts)
    scored = [verdict for verdict in verdicts if not math.isnan(verdict.pass_k)]
    report = {
        "prompts": len(verdicts),
        "kept": len(kept),
        "reasons": dict(reasons.most_common()),
        "prompts_by_answers": dict(sorted(counts.items())),
        **{
            f"mean_{name}": _mean([getattr(v, name) for v in scored])
            for name in ("pass_1", "pass_k", "gap", "mean_reward")
        },
        "rules": {**asdict(rules), "windows": {name: list(window) for name, window in rules.windows.items()}},
    }
    table = (
        pa.Table.from_pylist([asdict(verdict) for verdict in verdicts])
        if verdicts
        else pa.table({"row": pa.array([], pa.int64())})
    )
    write_atomic(out / "scores.parquet", lambda path: pq.write_table(table, path))
    picked = pa.table({"row": pa.array([verdict.row for verdict in kept], pa.int64())})
    write_atomic(out / "picked.parquet", lambda path: pq.write_table(picked, path))
    write_atomic(out / "report.html", printable(selection_page(report, verdicts, examples)).encode())
    write_atomic(out / "report.json", json.dumps(report, indent=1).encode())
    return report


def _only_widest(verdicts: list[Verdict], count: int | None) -> list[Verdict]:
    """Leaves out all but ``count`` of the kept prompts: those with the widest gap, equal ones by row."""
    if count is None:
        return verdicts
    by_gap = sorted((verdict for verdict in verdicts if verdict.kept), key=lambda verdict: (-verdict.gap, verdict.row))
    narrow = {verdict.row for verdict in by_gap[count:]}
    return [
        replace(verdict, kept=False, reason="gap narrower") if verdict.kept and verdict.row in narrow else verdict
        for verdict in verdicts
    ]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
