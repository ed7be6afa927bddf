"""The tests of a code record, in the forms that data sets have them in: MBPP, HumanEval, APPS and TACO, LiveCodeBench, our own."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.code_checks import Check

MAX_TESTS = 200
_HOLDERS = ("tests", "test_cases", "unit_tests", "test_list", "test", "input_output", "public_test_cases")
"""Keys of a reference answer under which its tests may stand."""
_NAMES = ("fn_name", "func_name", "entry_point")
"""Keys that name the function under test."""


@dataclass(frozen=True)
class Dialogue:
    """What the program reads, and what it must write."""

    given: str
    expected: str


def read_tests(answer: Any) -> tuple[list[Check], list[Dialogue]]:
    """The tests of a record: what is called, and what is read and written.

    Raises ``RewardError`` for a test of no known form.
    """
    checks: list[Check] = []
    dialogues: list[Dialogue] = []
    for count, test in enumerate(_items(answer, None)):
        if count >= MAX_TESTS:
            raise RewardError(f"the record has more than {MAX_TESTS} tests; keep the telling ones.")
        if isinstance(test, Check):
            checks.append(test)
        elif isinstance(test, Mapping) and {"input", "output"} <= test.keys():
            dialogues.append(Dialogue(_text(test["input"]), _text(test["output"])))
        elif isinstance(test, Mapping) and {"call", "expected"} <= test.keys():
            checks.append(Check(str(test["call"]), test["expected"]))
        elif isinstance(test, str):
            checks.extend(_asserted(test))
        else:
            raise RewardError(
                f"a test is {{'input', 'output'}}, {{'call', 'expected'}} or 'assert f(1) == 2', got {str(test)[:80]!r}."
            )
    return checks, dialogues


def _items(answer: Any, name: str | None) -> list[Any]:
    """The single tests; ``name`` is the function under test where the record names it."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError:  # not JSON: lines of asserts
            return [_called(answer, name)] if answer.strip() else []
        if isinstance(answer, str):  # JSON of JSON, or of a line of asserts
            return _items(answer, name)
    if isinstance(answer, Mapping):
        name = _function_of(answer) or name
        if str(answer.get("test_setup_code") or "").strip():
            raise RewardError("the record's 'test_setup_code' would run beside the program; leave such records out.")
        if all(isinstance(answer.get(key), Sequence) for key in ("inputs", "outputs")):
            return _paired(answer, name)
        held = next((answer[key] for key in _HOLDERS if key in answer), None)
        return [_functional(answer, name)] if held is None else _items(held, name)
    if isinstance(answer, Sequence):
        if (
            len(answer) == 1
            and isinstance(answer[0], Mapping)
            and any(key in answer[0] for key in (*_HOLDERS, "inputs"))
        ):
            return _items(answer[0], name)
        return [_functional(test, name) for test in answer]
    return [answer]


def _function_of(answer: Mapping[str, Any]) -> str | None:
    """The function that a record names, itself or in its ``metadata``."""
    held = answer.get("metadata")
    if isinstance(held, str):
        try:
            held = json.loads(held)
        except ValueError:
            held = None
    for place in (answer, held if isinstance(held, Mapping) else {}):
        found = next((place[key] for key in _NAMES if place.get(key)), None)
        if found:
            return str(found)
    return None


def _paired(answer: Mapping[str, Any], name: str | None) -> list[Any]:
    """Tests of ``inputs`` and ``outputs``: what is read and written, or, with a function's name, arguments and what they give.

    APPS and TACO put what a function gives into a list of one; they accept it with and without.
    """
    pairs = list(zip(answer["inputs"], answer["outputs"], strict=False))
    if not name:
        return [{"input": given, "output": wanted} for given, wanted in pairs]
    found = []
    for given, wanted in pairs:
        inner = wanted[:1] if isinstance(wanted, list) and len(wanted) == 1 else []
        found.append(Check.of_function(name, given if isinstance(given, (list, tuple)) else [given], wanted, *inner))
    return found


def _functional(test: Any, name: str | None) -> Any:
    """A test of LiveCodeBench whose input is the arguments, one JSON value a line; any other test as it is."""
    if not isinstance(test, Mapping) or test.get("testtype") != "functional":
        return test
    name = _function_of(test) or name
    if not name:
        raise RewardError("a functional test needs the name of its function; give 'fn_name' beside 'tests'.")
    try:
        given = [json.loads(line) for line in str(test["input"]).splitlines() if line.strip()]
        return Check.of_function(name, given, json.loads(str(test["output"])))
    except (KeyError, ValueError) as error:
        raise RewardError(
            f"a functional test has JSON values as 'input', one a line, and 'output': {error!r}."
        ) from error


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _called(source: str, name: str | None) -> str:
    """HumanEval's test, ``def check(candidate)``, with the call that its harness adds."""
    return (
        f"{source}\n\ncheck({name})\n" if name and "def check(" in source and f"check({name})" not in source else source
    )


def _asserted(source: str) -> list[Check]:
    """The tests in lines of ``assert``, also within a function that is called with the program's own: ``check(f)``."""
    try:
        statements = ast.parse(source.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RewardError(f"the test {source[:80]!r} is no Python ({error}); mend the record.") from error
    return [Check(ast.unparse(test)) for test in _Lines().conditions(statements)]


class _Lines:
    """Reads statements one after another: functions and plain values are put in where they are named."""

    def __init__(self) -> None:
        self._functions: dict[str, ast.FunctionDef] = {}
        self._called: set[str] = set()

    def conditions(self, statements: Sequence[ast.stmt]) -> list[ast.expr]:
        """What the statements assert."""
        found = list(self._of(statements, {}))
        left = self._functions.keys() - self._called
        if left:
            raise RewardError(
                f"the test defines {', '.join(sorted(left))!r} and does not call it; end it with 'check(f)', or give 'entry_point'."
            )
        return found

    def _of(self, statements: Sequence[ast.stmt], values: dict[str, ast.expr]) -> Iterator[ast.expr]:
        for statement in statements:
            if isinstance(statement, ast.Assert):
                test = _PutIn(values).visit(ast.parse(ast.unparse(statement.test), mode="eval")).body
                if not (isinstance(test, ast.Constant) and test.value is True):  # a form's place-holder
                    yield test
            elif isinstance(statement, ast.FunctionDef):
                self._functions[statement.name] = statement
            elif _is_call_of(statement, self._functions):
                yield from self._of(*self._entered(statement))
            elif _is_plain_value(statement):
                values[statement.targets[0].id] = statement.value  # type: ignore[attr-defined]
            elif not _says_nothing(statement):
                raise RewardError(
                    f"the test {ast.unparse(statement)[:80]!r} is no assert; give 'assert f(1) == 2' or {{'call', 'expected'}}."
                )

    def _entered(self, statement: Any) -> tuple[list[ast.stmt], dict[str, ast.expr]]:
        call = statement.value
        function = self._functions.pop(call.func.id)  # so that it can't call itself
        names = [argument.arg for argument in function.args.args]
        if call.keywords or len(names) != len(call.args):
            raise RewardError(
                f"the test {ast.unparse(call)[:80]!r} does not fit the function that it calls; mend the record."
            )
        return function.body, dict(zip(names, call.args, strict=True))


def _is_call_of(statement: ast.stmt, functions: Mapping[str, Any]) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in functions


def _is_plain_value(statement: ast.stmt) -> bool:
    if not (
        isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    ):
        return False
    try:
        ast.literal_eval(statement.value)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True


def _says_nothing(statement: ast.stmt) -> bool:
    """A doc-string, ``pass``, or an import of ``math``, which tests may use anyway."""
    if isinstance(statement, ast.Import):
        return all(alias.name == "math" and alias.asname is None for alias in statement.names)
    doc = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return doc or isinstance(statement, ast.Pass)


class _PutIn(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node
