"""``check_reward``: tries a reward on typical and hostile completions before a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.registry import unregistered
from rlvlm.rewards.compose import Rule
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.rule import REWARDS, TRAITS
from rlvlm.rewards.runner import Runner
from rlvlm.rewards.samples import Samples, known_names

_THOUGHT = "<think>I look at the picture, count what is asked for, and check it once more before I answer.</think>\n"


@dataclass(frozen=True)
class Trial:
    """One completion that was tried: its name, the score or the failure, and the seconds that it took."""

    name: str
    score: float | None
    failure: str
    seconds: float


@dataclass
class CheckReport:
    """What a check found: ``problems`` are to be mended, ``notes`` to be thought about; ``trials`` in the order tried."""

    name: str
    reads: tuple[str, ...]
    options: tuple[str, ...]
    trials: list[Trial] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def raise_for_problems(self) -> CheckReport:
        """Returns itself, or raises ``RewardError`` with every problem."""
        if self.problems:
            raise RewardError(f"reward '{self.name}' did not pass its check: " + " ".join(self.problems))
        return self

    def __str__(self) -> str:
        head = f"reward '{self.name}' reads {', '.join(self.reads) or 'nothing'}"
        lines = [f"{head}; options: {', '.join(self.options) or 'none'}"]
        for trial in self.trials:
            result = trial.failure if trial.score is None else f"{trial.score:.4f}"
            lines.append(f"  {trial.name:<24} {trial.seconds * 1e3:8.1f} ms  {result}")
        lines += [f"problem: {problem}" for problem in self.problems] + [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, "passed" if self.ok else "not passed"])


def check_reward(
    reward: str | Callable[..., Any] | Mapping[str, Any],
    *,
    answer: Any = "42",
    wrong: str = "7",
    record: Mapping[str, Any] | None = None,
    style: str | None = None,
    timeout: float = 8.0,
    **options: Any,
) -> CheckReport:
    """Tries a reward as a run would, on completions that are right, wrong, oddly formed and hostile.

    Args:
        reward: a registered name, a function or class of one's own (registered or not), or a node of ``reward.rules``.
        answer: a gold answer that the reward can read; the right completions give it.
        wrong: an answer that is wrong.
        record: the other columns that the reward reads.
        style: of another library's function, one of ``rlvlm.rewards.compose.PEER_STYLES``.
        timeout: seconds for one completion.
        options: the reward's options.

    The report says what it reads, every score, and problems: exceptions, time-outs, scores that are no finite number or
    that differ from call to call, columns that are missing.
    """
    runner = _runner(reward, style, options, timeout)
    part = runner.rules[0].part
    assert part is not None  # a single rule is no choice
    report = CheckReport(part.name, (*part.needs, *part.optional), tuple(part.entry.options))
    columns = {"answer": answer, "problem": "How many are there?", **(record or {})}
    missing = [name for name in part.needs if name not in columns and name not in known_names()]
    if missing:
        report.problems.append(
            f"It reads {', '.join(map(repr, missing))}; pass record={{…}} with such columns, or mend the parameter's name."
        )
        return report
    try:
        for name, completion in _completions(str(answer), wrong).items():
            _try(runner, name, completion, columns, report)
    finally:
        runner.close()
    _judge(report)
    return report


def _runner(reward: Any, style: str | None, options: Mapping[str, Any], timeout: float) -> Runner:
    if isinstance(reward, str):
        return Runner(RewardConfig(rules={reward: {**options, "weight": 1.0}}, timeout=timeout, workers=1))
    if isinstance(reward, Mapping):
        label = str(reward.get("name", "reward"))
        return Runner(RewardConfig(rules={label: {**reward, **options}}, timeout=timeout, workers=1))
    registered = [name for name in REWARDS.names() if REWARDS.get(name).target is reward]
    if registered:
        return _runner(registered[0], style, options, timeout)
    return Runner(
        RewardConfig(rules={}, timeout=timeout, workers=1), rules=[_own_rule(reward, style, options, timeout)]
    )


def _own_rule(function: Callable[..., Any], style: str | None, options: Mapping[str, Any], timeout: float) -> Rule:
    """A rule of a function that is not registered; it runs in a fork, which has it already."""
    label = getattr(function, "__name__", type(function).__name__)
    if style is not None:
        from rlvlm.compat.rewards import adapt

        part = adapt(function, style, label, **options)
    else:
        part = unregistered("reward", label, function, options, TRAITS)
    return Rule(label, 1.0, timeout, {}, part, in_process=True)


def _completions(right: str, wrong: str) -> dict[str, str]:
    """Completions by what they try."""
    long = "word " * 200_000
    return {
        "right, in tags": f"{_THOUGHT}<answer>{right}</answer>",
        "right, in a box": f"{_THOUGHT}\\boxed{{{right}}}",
        "right, bare": right,
        "wrong": f"{_THOUGHT}<answer>{wrong}</answer>",
        "both": f"{_THOUGHT}<answer>{right}</answer> or <answer>{wrong}</answer>",
        "only in thought": f"<think>It is {right}.</think>",
        "cut off": f"{_THOUGHT}<answer>{right}",
        "empty": "",
        "blank": f"{_THOUGHT}<answer>  </answer>",
        "long": f"<think>{long}</think><answer>{right}</answer>",
        "many tags": "<think><answer>" * 20_000,
        "many braces": "\\boxed{" * 20_000,
        "deeply nested": f"<answer>{'(' * 5_000}{right}{')' * 5_000}</answer>",
        "tower of powers": "<answer>$9^{9^{9^{9}}}$</answer>",
        "huge number": f"<answer>{'9' * 20_000}e{'9' * 200}</answer>",
        "not a number": "<answer>[NaN, -1e999, 1e999, 0]</answer>",
        "null bytes": "<answer>\x00\x01\x02</answer>",
        "lone surrogate": "<answer>\ud800\udfff</answer>",
        "format marks": "<answer>%s {0} {answer} %(x)s \\1</answer>",
        "long run": f"<answer>{'a' * 100_000}!</answer>",
    }


def _try(runner: Runner, name: str, completion: str, columns: Mapping[str, Any], report: CheckReport) -> None:
    samples = Samples(
        [completion],
        [columns],
        columns={
            "response_length": [len(completion) // 4],
            "max_length": [1024],
            "completion_ids": [[*range(len(completion) // 4)]],
            "prompt_ids": [[0]],
            "training": [{"step": 0, "steps": 1, "epoch": 0}],
        },
    )
    start = time.monotonic()
    result = runner.score(samples)
    seconds = time.monotonic() - start
    failure = result.failures[0].message if result.failures else ""
    report.trials.append(Trial(name, result.scores[0], failure, seconds))
    if not failure and runner.score(samples).scores != result.scores:
        report.problems.append(
            f"On '{name}' it gave another score when it was called again; a run can't be repeated with it."
        )


def _judge(report: CheckReport) -> None:
    """Failures as problems, each once, and notes on scores that would teach nothing, or the wrong thing."""
    failed: dict[str, list[str]] = {}
    for trial in report.trials:
        if trial.score is None:
            failed.setdefault(trial.failure, []).append(f"'{trial.name}'")
    report.problems += [f"On {', '.join(names)}: {message}" for message, names in failed.items()]
    scores = {trial.name: trial.score for trial in report.trials if trial.score is not None}
    if len(scores) > 1 and len(set(scores.values())) == 1:
        report.notes.append(f"Every completion scored {next(iter(scores.values()))}; such a reward teaches nothing.")
    right = [scores[name] for name in ("right, in tags", "right, in a box", "right, bare") if name in scores]
    if right and "wrong" in scores and max(right) <= scores["wrong"]:
        report.notes.append("No right answer scored more than the wrong one; pass answer= and wrong= that it can read.")
    for name in ("empty", "blank"):
        if right and scores.get(name, min(right)) > max(right):
            report.notes.append(f"The completion '{name}' scored more than a right answer.")
