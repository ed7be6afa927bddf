"""``code``: programs by their tests, run in the sandbox."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.ranges import above, at_least
from rlvlm.rewards.code_checks import Check
from rlvlm.rewards.code_values import NoValueError, value_of
from rlvlm.rewards.markup import find_code
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.sandbox import Limits, Run, run_python

MAX_CHARS = 100_000
"""A longer program is no answer."""
MAX_TESTS = 200
_HOLDERS = ("tests", "test_cases", "unit_tests")
"""Keys of a gold answer under which its tests may stand."""
MIN_MEMORY_MB = 64
"""Less than this leaves a program little beside Python itself."""


@dataclass(frozen=True)
class _Dialogue:
    """What the program reads, and what it must write."""

    given: str
    expected: str


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
    lines ``assert f(1) == 2``; one, a list of them, ``{"tests": …}`` of them, or the JSON of any of these.
    Only the calls of the program run beside it; what they
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


def _passed(program: str, checks: Sequence[Check], dialogues: Sequence[_Dialogue], limits: Limits) -> list[bool]:
    """Which tests pass, the checks first: one run of the program serves them all, and each dialogue has one of its own."""
    end = time.monotonic() + limits.seconds
    passed: list[bool] = []
    if checks:
        calls = [call for check in checks for call in check.calls]
        passed += _checked(run_python(program, calls=calls, limits=limits), checks)
    for dialogue in dialogues:
        left = end - time.monotonic()
        if left <= 0:
            passed.append(False)
            continue
        run = run_python(program, stdin=dialogue.given, limits=dataclasses.replace(limits, seconds=left))
        passed.append(run.exit_code == 0 and not run.stopped and _lines(run.stdout) == _lines(dialogue.expected))
    return passed


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


def read_tests(answer: Any) -> tuple[list[Check], list[_Dialogue]]:
    """The tests of a record: what is called, and what is read and written."""
    checks: list[Check] = []
    dialogues: list[_Dialogue] = []
    for count, test in enumerate(_items(answer)):
        if count >= MAX_TESTS:
            raise RewardError(f"the record has more than {MAX_TESTS} tests; keep the telling ones.")
        if isinstance(test, Mapping) and {"input", "output"} <= test.keys():
            dialogues.append(_Dialogue(_text(test["input"]), _text(test["output"])))
        elif isinstance(test, Mapping) and {"call", "expected"} <= test.keys():
            checks.append(Check(str(test["call"]), test["expected"]))
        elif isinstance(test, str):
            checks.extend(_asserted(test))
        else:
            raise RewardError(
                f"a test is {{'input', 'output'}}, {{'call', 'expected'}} or 'assert f(1) == 2', got {str(test)[:80]!r}."
            )
    return checks, dialogues


def _items(answer: Any) -> list[Any]:
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError:  # not JSON: lines of asserts
            return [answer] if answer.strip() else []
        if isinstance(answer, str):  # JSON of JSON, or of a line of asserts
            return _items(answer)
    if isinstance(answer, Mapping) and all(isinstance(answer.get(name), Sequence) for name in ("inputs", "outputs")):
        return _paired(answer)
    if isinstance(answer, Mapping):
        held = next((answer[name] for name in _HOLDERS if name in answer), None)
        return [answer] if held is None else _items(held)
    if isinstance(answer, Sequence) and not isinstance(answer, str) and len(answer) == 1:
        only = answer[0]
        if isinstance(only, Mapping) and any(name in only for name in (*_HOLDERS, "inputs")):
            return _items(only)
    return list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else [answer]


def _paired(answer: Mapping[str, Any]) -> list[Any]:
    """Tests of ``inputs`` and ``outputs``: what is read and written, or, with ``fn_name``, arguments and what they give."""
    pairs = list(zip(answer["inputs"], answer["outputs"], strict=False))
    name = answer.get("fn_name")
    if not name:
        return [{"input": given, "output": wanted} for given, wanted in pairs]
    calls = [given if isinstance(given, (list, tuple)) else [given] for given, _ in pairs]
    return [
        {"call": f"{name}({', '.join(map(repr, given))})", "expected": wanted}
        for given, (_, wanted) in zip(calls, pairs, strict=True)
    ]


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _asserted(source: str) -> list[Check]:
    """The tests in lines of ``assert``."""
    try:
        statements = ast.parse(source.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RewardError(f"the test {source[:80]!r} is no Python ({error}); mend the record.") from error
    checks = []
    for statement in statements:
        if not isinstance(statement, ast.Assert):
            raise RewardError(
                f"the test {ast.unparse(statement)[:80]!r} is no assert; give 'assert f(1) == 2' or {{'call', 'expected'}}."
            )
        checks.append(Check(ast.unparse(statement.test)))
    return checks
