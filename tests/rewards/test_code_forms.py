"""Tests of programs in the forms of public data sets: right programs are paid, wrong and faked ones are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards.code import code, read_tests

HUMANEVAL = '''

METADATA = {"author": "jt"}


def check(candidate):
    """Tests of the function."""
    limit = 3
    assert candidate(limit) == 6, "message"
    assert not candidate(0)
    assert True, "This prints if this assert fails"
'''
DOUBLE = "def double(x):\n    return 2 * x\n"
METHOD = "class Solution:\n    def add(self, numbers: List[int], more: int) -> List[int]:\n        return [n + more for n in numbers]\n"
FUNCTION = "def add(numbers, more):\n    return [n + more for n in numbers]\n"
FUNCTIONAL = [
    {"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"},
    {"input": "[]\n1", "output": "[]", "testtype": "functional"},
]
PAIRS = {"fn_name": "add", "inputs": [[[1, 2], 3], [[7], 1]], "outputs": [[4, 5], [8]]}
WRAPPED = {**PAIRS, "outputs": [[[4, 5]], [[8]]]}


def _score(program: str, tests: Any) -> float:
    found = code(program, "", tests, without_landlock=True)
    return found["score"] if isinstance(found, dict) else found


@pytest.mark.parametrize(
    "tests",
    [
        HUMANEVAL + "\n\ncheck(double)\n",
        {"test": HUMANEVAL, "entry_point": "double"},
        json.dumps({"test": HUMANEVAL, "entry_point": "double"}),
        {
            "test_list": ["assert double(3) == 6", "import math\nassert math.isclose(double(0.1), 0.2)"],
            "test_setup_code": "",
        },
    ],
)
def test_humaneval_and_mbpp(tests: Any) -> None:
    assert _score(DOUBLE, tests) == 1.0
    assert _score("def double(x):\n    return 6", tests) == 0.0
    assert _score("class E:\n    def __eq__(self, o): return True\ndef double(x): return E()", tests) == 0.0


@pytest.mark.parametrize(
    "tests",
    [
        PAIRS,
        WRAPPED,
        {"input_output": json.dumps(WRAPPED)},
        {"public_test_cases": json.dumps(FUNCTIONAL), "metadata": json.dumps({"func_name": "add"})},
        {"tests": [{**test, "metadata": {"func_name": "add"}} for test in FUNCTIONAL]},
    ],
)
def test_functions_by_name_may_be_methods_of_solution(tests: Any) -> None:
    assert [_score(program, tests) for program in (METHOD, FUNCTION)] == [1.0, 1.0]
    assert [
        _score(program, tests) for program in ("class Solution:\n    def add(self, a, b): return [4, 5]", "x = 1")
    ] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (HUMANEVAL, "does not call it"),
        (FUNCTIONAL, "needs the name of its function"),
        ({"fn_name": "f(1) or g", "inputs": [[1]], "outputs": [1]}, "no name of a function"),
        ([{"input": "[1", "output": "1", "testtype": "functional", "fn_name": "f"}], "JSON values"),
        ({"test_list": ["assert f(1) == 1"], "test_setup_code": "class Node: pass"}, "test_setup_code"),
        ("def check(f):\n    check(f)\n    assert f(1) == 1\ncheck(double)", "no assert"),
        ("from random import randint\nassert f(1) == 1", "no assert"),
    ],
)
def test_forms_that_can_not_be_read_are_told(tests: Any, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        read_tests(tests)


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("print(3)\nexit()", [{"input": "", "output": "3"}]),
        ("def main():\n    print(3)\n    quit()\nmain()", [{"input": "", "output": "3"}]),
        ("n = int(input())\nprint('x' * n)", [{"input": "2000000", "output": "x" * 2_000_000}]),
        (
            "import itertools\ndef f(a): return itertools.permutations(a)",
            ["assert list(f([1, 2])) == [(1, 2), (2, 1)]"],
        ),
        (
            "from collections import OrderedDict\ndef f(): return OrderedDict(a=1).items()",
            ["assert list(f()) == [('a', 1)]"],
        ),
        ("class L:\n    def __iter__(self): return iter((1, 2))", ["assert list(L()) == [1, 2]"]),
        ("def f(): return {'a': 1}", ["assert f() == dict(a=1)"]),
        ("def f(a): return Counter(a)", ["assert f('aab') == {'a': 2, 'b': 1}"]),
        ("def f(a): return math.gcd(*a) + bisect_left(a, 2)", ["assert f([2, 4]) == 2"]),
        ("def gcd(a, b): return 'own'\ndef f(): return gcd(2, 4)", ["assert f() == 'own'"]),
    ],
)
def test_honest_programs_of_any_kind_are_paid(program: str, tests: Any) -> None:
    assert _score(program, tests) == 1.0


@pytest.mark.parametrize(
    "program",
    [
        "class L:\n    def __iter__(self): return iter((1, 2))\n    def __eq__(self, other): return True\ndef f(): return L()",
        "class L:\n    def __iter__(self):\n        while True: yield 1\ndef f(): return L()",
        "class L:\n    __iter__ = None\ndef f(): return L()",
        "def f(): return 1 << 3_900_000",
    ],
)
def test_objects_that_can_be_gone_through_equal_nothing(program: str) -> None:
    assert _score(program, ["assert f() == [1, 2]", "assert list(f()) == [1, 2]"]) == 0.0
    assert _score(program, ["assert math.isqrt(f()) == 2"]) == 0.0
