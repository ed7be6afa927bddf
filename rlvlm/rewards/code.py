"""``code``: programs by their tests, run in the sandbox."""

from __future__ import annotations

import ast
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.ranges import above, at_least
from rlvlm.rewards.markup import find_code
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.sandbox import Limits, Run, run_python

MAX_CHARS = 100_000
"""A longer program is no answer."""
MAX_TESTS = 200
_CLOSE = 1e-9
_BUILDERS: dict[str, Callable[..., Any]] = {
    "set": set,
    "tuple": tuple,
    "list": list,
    "frozenset": frozenset,
    "sorted": sorted,
    "dict": dict,
}


MIN_MEMORY_MB = 64
"""Less than this leaves a program little beside Python itself."""


@dataclass(frozen=True)
class _Calls:
    """Expressions to evaluate in the program's names, and the values that they must have."""

    expressions: tuple[str, ...]
    expected: tuple[Any, ...]


@dataclass(frozen=True)
class _Dialogue:
    """What the program reads, and what it must write."""

    given: str
    expected: str


@register_reward(
    "code",
    isolated=True,
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
) -> dict[str, Any] | float:
    """1 when the program passes every test, else 0 (or the share that it passes); run in the sandbox without network.

    Tests are pairs ``{"input": …, "output": …}`` of standard input and output, calls ``{"call": "f(1)", "expected": 2}``, or
    lines ``assert f(1) == 2``; one, a list of them, or the JSON of either. Expected values stay outside the sandbox, so that a
    program can't read or fake them.

    Args:
        partial: pay the share of tests that pass.
        seconds: wall-clock time for all tests together; a program that needs more fails the rest.
        memory_mb: memory of the program.

    Raises ``RewardError`` when there is no test, or one is none of these, or where there can be no sandbox.
    """
    tests = list(read_tests(answer))
    if not tests:
        raise RewardError("the record's gold answer holds no test; a program without tests can't be scored.")
    program = find_code(answer_text, unmarked_text, ("python", "py", "python3"))
    if not program or len(program) > MAX_CHARS:
        return 0.0
    passed = _passed(program, tests, seconds, memory_mb)
    share = sum(passed) / len(passed)
    return {"score": share if partial else float(all(passed)), "detail": {"passed": sum(passed), "tests": len(passed)}}


def _passed(program: str, tests: Sequence[_Calls | _Dialogue], seconds: float, memory_mb: int) -> list[bool]:
    end = time.monotonic() + seconds
    passed: list[bool] = []
    for test in tests:
        count = len(test.expected) if isinstance(test, _Calls) else 1
        left = end - time.monotonic()
        if left <= 0:
            passed.extend([False] * count)
            continue
        limits = Limits(seconds=left, memory_mb=memory_mb)
        if isinstance(test, _Calls):
            run = run_python(program, calls=test.expressions, limits=limits)
            passed.extend(_fits(run, row, expected) for row, expected in enumerate(test.expected))
        else:
            run = run_python(program, stdin=test.given, limits=limits)
            passed.append(run.exit_code == 0 and not run.timed_out and _lines(run.stdout) == _lines(test.expected))
    return passed


def _fits(run: Run, row: int, expected: Any) -> bool:
    """Whether the value of a call, as the sandbox wrote it, is the expected one."""
    text = run.results[row].get("value") if row < len(run.results) else None
    if not isinstance(text, str) or len(text) > MAX_CHARS:
        return False
    try:
        return same_value(ast.literal_eval(text), expected)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # not the spelling of a plain value
        return text == repr(expected)


def same_value(value: Any, expected: Any) -> bool:
    """Equality of plain values: floats nearly, and lists and tuples alike, since JSON knows only lists."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, float) or isinstance(expected, float):
        numbers = isinstance(value, (int, float)) and isinstance(expected, (int, float))
        return numbers and math.isclose(value, expected, rel_tol=_CLOSE, abs_tol=_CLOSE)
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(value, (list, tuple)) and len(value) == len(expected) and all(map(same_value, value, expected))
        )
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and value.keys() == expected.keys()
            and all(same_value(value[k], v) for k, v in expected.items())
        )
    return type(value) is type(expected) and bool(value == expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def read_tests(answer: Any) -> Iterable[_Calls | _Dialogue]:
    """The tests of a record; calls are put together, since one run of the program serves them all."""
    calls: list[tuple[str, Any]] = []
    for count, test in enumerate(_items(answer)):
        if count >= MAX_TESTS:
            raise RewardError(f"the record has more than {MAX_TESTS} tests; keep the telling ones.")
        if isinstance(test, Mapping) and {"input", "output"} <= test.keys():
            yield _Dialogue(_text(test["input"]), _text(test["output"]))
        elif isinstance(test, Mapping) and {"call", "expected"} <= test.keys():
            calls.append((str(test["call"]), test["expected"]))
        elif isinstance(test, str):
            calls.extend(_asserted(test))
        else:
            raise RewardError(
                f"a test is {{'input', 'output'}}, {{'call', 'expected'}} or 'assert f(1) == 2', got {str(test)[:80]!r}."
            )
    if calls:
        expressions, expected = zip(*calls, strict=True)
        yield _Calls(expressions, expected)


def _items(answer: Any) -> list[Any]:
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError:  # not JSON: lines of asserts
            return [answer] if answer.strip() else []
    if (
        isinstance(answer, Mapping)
        and isinstance(answer.get("inputs"), Sequence)
        and isinstance(answer.get("outputs"), Sequence)
    ):
        return [
            {"input": given, "output": wanted}
            for given, wanted in zip(answer["inputs"], answer["outputs"], strict=False)
        ]
    if isinstance(answer, Mapping):
        return [answer]
    return list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else [answer]


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _asserted(source: str) -> list[tuple[str, Any]]:
    """``assert f(1) == 2`` as the call and the value it must have; ``assert f(1)`` must be true, ``assert not f(1)`` false."""
    try:
        statements = ast.parse(source.strip()).body
    except (SyntaxError, ValueError) as error:
        raise RewardError(f"the test {source[:80]!r} is no Python ({error}); mend the record.") from error
    pairs = []
    for statement in statements:
        if not isinstance(statement, ast.Assert):
            raise RewardError(
                f"the test {ast.unparse(statement)[:80]!r} is no assert; give 'assert f(1) == 2' or {{'call', 'expected'}}."
            )
        pairs.append(_pair(statement.test))
    return pairs


def _pair(test: ast.expr) -> tuple[str, Any]:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.Is)):
        for call, value in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            try:
                return ast.unparse(call), _plain(value)
            except ValueError:
                continue
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"bool({ast.unparse(test.operand)})", False
    if isinstance(test, (ast.Call, ast.Name)):
        return f"bool({ast.unparse(test)})", True
    raise RewardError(
        f"the test 'assert {ast.unparse(test)[:80]}' compares with no plain value, which could be faked; write it as 'assert f(1) == 2'."
    )


def _plain(node: ast.expr) -> Any:
    """The value of a literal, or of set(), tuple(), sorted() and their like around one; else ``ValueError``."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _BUILDERS
        and not node.keywords
    ):
        return _BUILDERS[node.func.id](*map(_plain, node.args))
    return ast.literal_eval(node)
