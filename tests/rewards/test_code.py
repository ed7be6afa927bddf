"""Programs by their tests: right ones are paid, faked ones are not, and none can fail its row."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rlvlm.errors import ConfigError, RewardError
from rlvlm.rewards.code import _try_sandbox, code, read_tests
from rlvlm.rewards.compose import build_rules
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.sandbox import run as runs

DOUBLE = "def d(x):\n    return 2 * x\n"


def _code(program: str, tests: Any, **options: Any) -> float:
    found = code(program, "", tests, **options)
    return found["score"] if isinstance(found, dict) else found


@pytest.mark.parametrize(
    ("program", "tests", "expected"),
    [
        (DOUBLE, ["assert d(2) == 4", "assert d(-1) == -2"], 1.0),
        (DOUBLE, "assert d(2) == 4\nassert 3 == d(1)", 0.0),
        (DOUBLE, [{"call": "d([1])", "expected": [1, 1]}], 1.0),
        ("def d(x):\n    return {x, 1}", "assert d(2) == set([2, 1])", 1.0),
        ("def d(x):\n    return x == 1", ["assert d(1)", "assert not d(2)"], 1.0),
        ("print(int(input()) * 2)", {"inputs": ["2", "5\n"], "outputs": ["4\n", "10"]}, 1.0),
        ("print(int(input()) * 2)", '[{"input": "2", "output": "5"}]', 0.0),
        ("def d(x: this is no Python", "assert d(1) == 1", 0.0),
        ("", "assert d(1) == 1", 0.0),
    ],
)
def test_a_program_scores_by_its_tests(program: str, tests: Any, expected: float) -> None:
    assert _code(program, tests) == expected


def test_the_share_can_be_paid() -> None:
    assert _code("def d(x):\n    return 4", ["assert d(2) == 4", "assert d(3) == 6"], partial=True) == 0.5


@pytest.mark.parametrize(
    "program",
    [
        "class E:\n    def __eq__(self, o): return True\ndef d(x): return E()",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        'import os\nfor fd in range(64):\n    try: os.write(fd, b\'{"value": "True"}\\n\' * 9)\n    except OSError: pass\nos._exit(0)',
        "raise AssertionError",
        "while True: pass",
        "def d(x): return '2 * x'",
    ],
)
def test_tests_can_not_be_faked_or_skipped(program: str) -> None:
    assert _code(program, ["assert d(2) == 4"], seconds=1.5) == 0.0


@pytest.mark.parametrize("tests", [[], "", None, ["print(1)"], [{"in": 1}], ["assert ("]])
def test_without_tests_that_count_there_is_an_error_and_no_score(tests: Any) -> None:
    with pytest.raises(RewardError):
        code(DOUBLE, "", tests)


EQUAL_TO_ALL = """
class E(int):
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __lt__(self, o): return True
    def __sub__(self, o): return 0
    def __rsub__(self, o): return 0
    def __bool__(self): return True
    def __float__(self): return 4.0
    def __repr__(self): return "4"
    __hash__ = int.__hash__
def d(x): return E(7)
def check(x): return x
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert d(2) == 4",
        "assert bool(d(2) == 4)",
        "assert math.isclose(d(2), 4)",
        "assert all([d(2) == 4])",
        "assert all(d(x) == 2 * x for x in [2])",
        "assert not d(2) != 4",
        "assert abs(d(2) - 4) < 1e-6",
        "assert d(2) in [4]",
        "assert d(2) < 5",
        "assert {d(2)} == {4}",
        {"call": "d(2) == 4", "expected": True},
        {"call": "d(2)", "expected": 4},
    ],
)
def test_objects_that_equal_everything_are_not_paid(test: Any) -> None:
    assert _code(EQUAL_TO_ALL, [test]) == 0.0
    assert _code(DOUBLE, [test]) == 1.0


@pytest.mark.parametrize(
    "program",
    [
        "class A:\n    def __repr__(self): return '\x1b[31m' * 9\ndef d(x): return A()",
        "class A:\n    def __repr__(self): raise KeyboardInterrupt\ndef d(x): return A()",
        "class A:\n    @property\n    def __class__(self): return list\ndef d(x): return A()",
        "def d(x): return {(): float('inf'), x: 10**400}",
        "def d(x): return 10**400",
        "def d(x): return -10.0**300 * 10**300 * 0",
        "def d(x):\n    a = []\n    a.append(a)\n    return a",
        "def d(x):\n    a = []\n    for i in range(9999): a = [a]\n    return a",
        "def d(x): return '\ud800'",
        "def d(x): return iter(int, 1)",
        "import itertools\ndef d(x): return (i for i in itertools.count())",
        "def d(x): return [0] * 10**7",
        "import builtins\nbuiltins.isinstance = builtins.issubclass = None\ndef d(x): return 5",
        "import json\njson.dumps = lambda x: 'no json'\ndef d(x): return 5",
        "import json\njson.dumps = lambda x: '[' * 100000\ndef d(x): return 5",
        "import sys\nsys.stdout.write('x' * 10**8)",
        "import os\nos.mkdir('a')\nos.mkdir('a/b', 0)\nos._exit(0)",
        "import os\nfor i in range(3000): os.mkdir(str(i))\ndef d(x): return 5",
        "import os\nfor i in range(900): os.mkdir('a'); os.chdir('a')\ndef d(x): return 5",
        "raise SystemExit('\x1b]0;x\x07')",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\n'); os.close(fd)\n    except OSError: pass\ndef d(x): return 5",
        "def d(x): raise RecursionError",
        "def d(x): raise MemoryError",
        "\0",
        "\ud800",
    ],
)
def test_whatever_a_program_does_is_its_0_and_no_failed_row(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert _code(program, ["assert d(2) == 4", "assert d(1) == 2.5"], seconds=2.0) == 0.0
    assert list(tmp_path.iterdir()) == []


def test_one_failed_call_does_not_shift_the_values_of_the_next_test() -> None:
    program = "def d(x): return 1 / x"
    assert _code(program, ["assert d(0) == d(0)", "assert d(2) == 0.5"], partial=True) == 0.5


def test_a_machine_without_a_sandbox_is_told_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.platform, "machine", lambda: "pdp11")
    _try_sandbox.cache_clear()
    try:
        with pytest.raises(ConfigError, match="'code' can't run on this machine: .*pdp11"):
            build_rules(RewardConfig(rules={"code": 1.0}))
    finally:
        _try_sandbox.cache_clear()


@pytest.mark.parametrize(
    "tests",
    [
        ["assert double(2) == 4"],
        "assert double(2) == 4",
        json.dumps(["assert double(2) == 4"]),
        [{"call": "double(2)", "expected": 4}],
        {"inputs": [[2], [3]], "outputs": [4, 6], "fn_name": "double"},
    ],
)
@pytest.mark.parametrize("key", ["tests", "test_cases", "unit_tests"])
def test_tests_may_stand_under_a_key_as_in_general_code_records(tests: object, key: str) -> None:
    def calls(answer: object) -> list[object]:
        return [check.calls for check in read_tests(answer)[0]]

    wanted = calls(tests)
    assert wanted
    for answer in ({key: tests}, json.dumps({key: tests}), [{key: tests}], {key: json.dumps(tests)}):
        assert calls(answer) == wanted
