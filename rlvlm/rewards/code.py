"""``code``: programs by their tests, run in the sandbox."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.ranges import above, at_least
from rlvlm.rewards.code_checks import Check
from rlvlm.rewards.code_tests import Dialogue, read_tests
from rlvlm.rewards.code_values import NoValueError, value_of
from rlvlm.rewards.markup import find_code
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.sandbox import Limits, Run, run_python

MAX_CHARS = 100_000
"""A longer program is no answer."""
MIN_MEMORY_MB = 64
"""Less than this leaves a program little beside Python itself."""


@lru_cache(maxsize=2)
def _try_sandbox(without_landlock: bool) -> None:
    """Raises ``RewardError`` where this machine has no sandbox to offer."""
    run_python("", limits=Limits(without_landlock=without_landlock))


@register_reward(
    "code",
    details=("passed", "tests"),
    isolated=True,
    ready=lambda options: _try_sandbox(bool(options.get("without_landlock"))),
    ranges=(above(0, "seconds"), at_least(MIN_MEMORY_MB, "memory_mb")),
    example={
        "completion": "<answer>```python\ndef double(x):\n    return 2 * x\n```</answer>",
        "answer": ["assert double(2) == 4", "assert double(-1) == -2"],
    },
)
def code(
    answer_text: str,
    unmarked_text: str,
    answer: Any,
    *,
    partial: bool = False,
    seconds: float = 4.0,
    memory_mb: int = 512,
    without_landlock: bool = False,
) -> dict[str, Any] | float:
    """1 when the program passes every test, else 0 (or the share that it passes); run in the sandbox without network.

    Tests are pairs ``{"input": …, "output": …}`` of standard input and output, calls ``{"call": "f(1)", "expected": 2}``, or
    lines ``assert f(1) == 2``; one, a list of them, ``{"tests": …}`` of them, or the JSON of any of these. The forms of MBPP,
    HumanEval (``def check(candidate)`` with ``entry_point``), APPS, TACO and LiveCodeBench are read; a function that these name may be
    a method of ``Solution``. Only the calls of the program run beside it; what they
    gave is compared outside, as plain values (``all``, ``math.isclose``, ``abs(…) < …`` too), so that a program can't read the expected
    values, nor make its objects equal to everything.

    Args:
        partial: pay the share of tests that pass.
        seconds: wall-clock time for all tests together; a program that needs more fails the rest.
        memory_mb: memory of the program.
        without_landlock: run as root on a kernel without Landlock too, where programs can read files that every user may read
            and write to shared memory.

    Raises ``RewardError`` when there is no test, or one is none of these, or where there can be no sandbox.
    """
    checks, dialogues = read_tests(answer)
    if not checks and not dialogues:
        raise RewardError("the record's gold answer holds no test; a program without tests can't be scored.")
    program = find_code(answer_text, unmarked_text, ("python", "py", "python3"))
    if not program or len(program) > MAX_CHARS:
        return 0.0
    limits = Limits(seconds=seconds, memory_mb=memory_mb, without_landlock=without_landlock)
    passed = _passed(program, checks, dialogues, limits)
    share = sum(passed) / len(passed)
    return {"score": share if partial else float(all(passed)), "detail": {"passed": sum(passed), "tests": len(passed)}}


def _passed(program: str, checks: Sequence[Check], dialogues: Sequence[Dialogue], limits: Limits) -> list[bool]:
    """Which tests pass, the checks first: one run of the program serves them all, and each dialogue has one of its own."""
    end = time.monotonic() + limits.seconds
    passed: list[bool] = []
    if checks:
        calls = [call for check in checks for call in check.calls]
        program_with = program + _methods(checks)
        passed += _checked(run_python(program_with, calls=calls, limits=limits), checks)
    for dialogue in dialogues:
        left = end - time.monotonic()
        if left <= 0:
            passed.append(False)
            continue
        room = max(limits.output_bytes, 2 * len(dialogue.expected.encode("utf-8", "replace")))
        bounds = dataclasses.replace(limits, seconds=left, output_bytes=room)
        run = run_python(program, stdin=dialogue.given, limits=bounds)
        passed.append(run.exit_code == 0 and not run.stopped and _lines(run.stdout) == _lines(dialogue.expected))
    return passed


def _methods(checks: Sequence[Check]) -> str:
    """Lines that let a function under test be a method of ``Solution``, where the program defines no such function."""
    names = sorted({check.function for check in checks if check.function})
    return "".join(
        f"\n\ntry:\n    {name}\nexcept NameError:\n    {name} = lambda *given: Solution().{name}(*given)\n"
        for name in names
    )


def _checked(run: Run, checks: Sequence[Check]) -> list[bool]:
    results = iter(run.results)
    passed = []
    for check in checks:
        own = list(itertools.islice(results, len(check.calls)))
        try:
            passed.append(check.passes([value_of(found) for found in own]))
        except NoValueError:
            passed.append(False)
    return passed


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
