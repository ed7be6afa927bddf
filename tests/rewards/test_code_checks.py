"""Tests of programs: decided outside the program, on plain values."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards.code_checks import Check
from rlvlm.rewards.code_values import Iterated, NoValueError, Opaque, same_value, value_of


def holds(source: str, *values: Any) -> bool:
    return Check(source).passes(values)


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("f(1) == 2", ["f(1)"]),
        ("2 == f(1)", ["f(1)"]),
        ("abs(f(2) - 1.5) < 1e-6", ["f(2)"]),
        ("math.isclose(f(2), g(3))", ["f(2)", "g(3)"]),
        ("all(f(x) == y for x, y in [(1, 2), (3, 4)])", ["f(1)", "f(3)"]),
        ("all([f(x)[0] > 0 for x in range(3) if x])", ["f(1)[0]", "f(2)[0]"]),
        ("Solution().twoSum([1, 2], 3) == [0, 1]", ["Solution().twoSum([1, 2], 3)"]),
        ("not f(1) and (f(2) or f(3))", ["f(1)", "f(2)", "f(3)"]),
        ("f(lambda x: x == 2)", ["f(lambda x: x == 2)"]),
        ("sorted(f([3, 1]), reverse=True) == [3, 1]", ["f([3, 1])"]),
        ("sum([1, 2]) == 3", ["sum([1, 2])"]),  # the task was to write ``sum``
        ("list(map(f, [1])) == [2]", ["map(f, [1])"]),
        ("total == 4", ["total"]),
    ],
)
def test_only_the_programs_part_is_asked(source: str, calls: list[str]) -> None:
    assert list(Check(source).calls) == calls


@pytest.mark.parametrize(
    ("source", "values", "right"),
    [
        ("f(1) == 2", [2], True),
        ("f(1) == 2", [3], False),
        ("f(1) != 2", [3], True),
        ("not f(2) != 4", [4], True),
        ("not f(2) != 4", [5], False),
        ("bool(f(2) == 4)", [5], False),
        ("all([f(2) == 4, f(3) == 6])", [4, 6], True),
        ("all(f(x) == 2 * x for x in (2, 3))", [4, 7], False),
        ("math.isclose(f(1), 0.1 + 0.2)", [0.3], True),
        ("math.isclose(f(1), 1.0)", [10**400], False),
        ("f(1) == 1.5", [10**400], False),
        ("abs(f(1) - 1.5) < 1e-3", [math.nan], False),
        ("abs(f(1) - 1.5) < 1e-3", ["a"], False),
        ("1 <= f(1) < 3", [2], True),
        ("1 <= f(1) < 3", [3], False),
        ("f(1) is None", [None], True),
        ("f(1) is not None", [None], False),
        ("f(1) in (2, 3)", [3], True),
        ("f(1) in (2, 3)", [True], False),
        ("'a' in f(1)", ["bar"], True),
        ("f(1) not in [1]", [2], True),
        ("isinstance(f(1), int) and f(1) > 0", [2, 2], True),
        ("isinstance(f(1), (int, str))", [1.5], False),
        ("type(f(1)) == list", [[]], True),
        ("list(f(3)) == [0, 1]", [Iterated((0, 1))], True),
        ("f(3) == [0, 1]", [Iterated((0, 1))], False),
        ("f(1)", [1], True),
        ("f(1)", [[]], False),
        ("f(1)", [Opaque("E")], False),
        ("not f(1)", [Opaque("E")], False),
        ("f(1) == 2", [Opaque("E")], False),
        ("f(1) == g(1)", [[1, 2], (1, 2)], True),
        ("set(f(1)) == {1, 2}", [[2, 1, 1]], True),
        ("len(f(1)) == 2 and f(1)[0] == 'a'", [["a", "b"], "a"], True),
        ("f(1)[:2] == 'ab'", ["ab"], True),
        ("(1 if f(1) else 2) == 2", [0], True),
        ("[0] * f(1) == [0]", [10**9], False),
        ("f(1) ** f(2) == 1", [10**9, 10**9], False),
        ("len(range(f(1))) == 1", [10**12], False),
        ("''.join(f(1)) == 'ab'", [["a", "b"]], True),
        ("{'a': 1} == f(1)", [{"a": 1}], True),
        ("sum(x for x in f(1)) == 3", [[1, 2]], True),
        ("f(1) == 2", [], False),
    ],
)
def test_a_test_is_decided_on_plain_values(source: str, values: list[Any], right: bool) -> None:
    assert holds(source, *values) is right


@pytest.mark.parametrize(
    "source",
    [
        "True",
        "1 == 1",
        "f(1",
        "f(1).__eq__(2)",
        "g(f(1) == 2)",
        "all(map(lambda x: x == 2, f(1)))",
        "eval('f(1) == 2')",
        "(lambda x: x == 2)(f(1))",
        "isinstance(f(1), Foo)",
        "'a,b'.split(',') == f(1)",
        "all(g(x) for x in f(1))",
        "1 / 0 == f(1)",
        "f'{f(1)}' == '2'",
    ],
)
def test_what_only_the_program_could_judge_is_refused(source: str) -> None:
    with pytest.raises(RewardError, match="the test"):
        Check(source)


@pytest.mark.parametrize(
    "described",
    [
        {"error": "ValueError"},
        {"int": "zz"},
        {"int": 5},
        {"dict": [[{"list": []}, None]]},
        {"set": [{"list": []}]},
        {"list": 5},
        {"float": "0x1p99999"},
        {"unknown": 1},
        {},
        {"int": "1", "list": []},
        [1],
        1.5,
    ],
)
def test_what_a_program_wrote_in_place_of_a_value_is_no_value(described: Any) -> None:
    with pytest.raises(NoValueError):
        value_of(described)


def test_equality_is_of_types_too() -> None:
    assert same_value((1, [2.0000000001]), [1, [2.0]])
    assert not same_value(True, 1)
    assert not same_value("1", 1)
    assert not same_value({"a": 1}, {"a": 1, "b": 2})
    assert not same_value(10**400, 0.5)
