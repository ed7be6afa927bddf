"""Programs by their tests, and what the sandbox keeps them from."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from rlvlm.errors import RewardError
from rlvlm.rewards import sandbox
from rlvlm.rewards.code import code, read_tests, same_value
from rlvlm.rewards.sandbox import Limits, run_python

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


@pytest.mark.parametrize("tests", [[], "", None, ["assert d(1) > 0"], ["print(1)"], [{"in": 1}], ["assert ("]])
def test_without_tests_that_count_there_is_an_error_and_no_score(tests: Any) -> None:
    with pytest.raises(RewardError):
        code(DOUBLE, "", tests)


def test_values_are_compared_as_json_and_floats_allow() -> None:
    assert same_value((1, [2.0000000001]), [1, [2.0]])
    assert not same_value(True, 1)
    assert not same_value("1", 1)
    assert not same_value({"a": 1}, {"a": 1, "b": 2})
    assert len(list(read_tests(["assert f(1) == 2", "assert f(2) == 3"]))) == 1  # one run serves both


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['ls'])",
        "import os; os.execv('/bin/ls', ['ls'])",
        "import os; os.kill(os.getppid(), 0)",
        "import signal, os; os.kill(1, 0)",
        "open('/etc/passwd')",
        "import os; os.listdir('/')",
        "open('/tmp/left-behind', 'w')",
        "open('../left-behind', 'w')",
        "import os; os.setuid(0)",
        "x = 'a' * 10**9",
        "open('big', 'w').write('x' * 10**7)",
        "import numpy",
    ],
)
@pytest.mark.parametrize("own_user", [True, False])
def test_the_sandbox_refuses(program: str, own_user: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not own_user:  # as for a caller who is not root: Landlock alone guards the files
        if program.endswith("setuid(0)"):
            pytest.skip("staying the same user is no harm")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    run = run_python(program)
    assert run.exit_code == 1, run
    assert "Error" in run.stderr.splitlines()[-1]


def test_the_sandbox_gives_an_empty_folder_libraries_and_threads() -> None:
    program = (
        "import collections.abc, json, re, threading, os, datetime, heapq, random, decimal\n"
        "open('a', 'w').write('hi')\nprint(open('a').read(), os.listdir('.'), sorted(os.environ))\n"
        "t = threading.Thread(target=print, args=(input(),)); t.start(); t.join()"
    )
    run = run_python(program, stdin="asked")
    assert run.stdout == "hi ['a'] ['LANG', 'PYTHONHASHSEED', 'PYTHONIOENCODING']\nasked\n", run


def test_nothing_is_left_behind_and_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start = time.monotonic()
    run = run_python("open('a', 'w')\nwhile True: pass", limits=Limits(seconds=1.0))
    assert run.timed_out
    assert time.monotonic() - start < 4.0
    assert list(tmp_path.iterdir()) == []


def test_output_is_bounded() -> None:
    run = run_python("print('x' * 10**7)")
    assert len(run.stdout) <= Limits().output_bytes


def test_without_any_guard_of_files_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    unguarded = sandbox._launcher().replace("if abi < 1:", "if True:")
    monkeypatch.setattr(sandbox, "_launcher", lambda: unguarded)
    assert "1" in run_python("print(1)").stdout or os.geteuid() != 0  # a user of its own is guard enough
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RewardError, match="no Landlock"):
        run_python("print(1)")


def test_without_a_list_of_calls_for_the_machine_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = sandbox._launcher().replace("os.uname().machine", "'pdp11'")
    monkeypatch.setattr(sandbox, "_launcher", lambda: strange)
    with pytest.raises(RewardError, match="pdp11"):
        run_python("print(1)")
