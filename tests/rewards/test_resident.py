"""Rules with a process of their own: what holds the interpreter is killed, signals work, whole batches keep their other rows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlvlm.rewards import Runner, register_reward
from rlvlm.rewards.config import RewardConfig
from tests.rewards.rules_of_tests import alarmed, backtracks

BAD = "a" * 60 + "b"


def _run(rules: dict[str, Any], completions: list[str], **config: Any) -> Any:
    runner = Runner(RewardConfig(rules=rules, workers=1, **{"timeout": 1.0, **config}))
    try:
        return runner.score(runner.samples(completions, [{"answer": "a"}] * len(completions)))
    finally:
        runner.close()


@pytest.mark.parametrize(
    "name", ["test_regex_class", "test_regex_batched", "test_regex_async", "test_regex_batched_async"]
)
def test_a_row_that_holds_the_interpreter_fails_and_the_others_are_scored(name: str) -> None:
    start = time.monotonic()
    found = _run({name: 1.0}, ["aaa", BAD])
    assert found.scores == [1.0, None]
    assert [(row, failure.kind) for row, failure in found.failures.items()] == [(1, "timeout")]
    assert time.monotonic() - start < 60.0


def test_a_local_class_and_a_local_function_are_killed_too() -> None:
    @register_reward("test_local_class", override=True)
    class Local:
        def __call__(self, completion: str) -> float:
            return backtracks(completion)

    @register_reward("test_local_batched", override=True, batched=True)
    def local(completion: list[str]) -> list[float]:
        return [backtracks(text) for text in completion]

    for name in ("test_local_class", "test_local_batched"):
        assert _run({name: 1.0}, ["aaa", BAD]).scores == [1.0, None]


def test_a_rule_of_the_main_script_is_killed_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import re\n"
        "from rlvlm.rewards import Runner, register_reward\n"
        "from rlvlm.rewards.config import RewardConfig\n"
        "@register_reward('mine')\n"
        "class Mine:\n"
        "    def __call__(self, completion: str) -> float:\n"
        "        return 1.0 if re.match(r'(a+)+$', completion) else 0.0\n"
        "runner = Runner(RewardConfig(rules={'mine': 1.0}, timeout=1.0))\n"  # no guard: a fresh process could not import it
        f"print(runner.score(runner.samples(['aa', {BAD!r}, 'b'], [{{}}] * 3)).scores)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.stdout.strip() == "[1.0, None, 0.0]", done.stderr


@pytest.mark.parametrize("name", ["test_alarm_class", "test_alarm_batched", "test_alarm_async"])
def test_rules_run_in_a_main_thread_where_signals_work(name: str) -> None:
    assert _run({name: 1.0}, ["a", "b"], timeout=30.0).scores == [1.0, 1.0]


def test_signals_work_in_a_fork() -> None:
    @register_reward("test_local_alarm", override=True, batched=True)
    def local(completion: list[str]) -> list[float]:
        return [alarmed(text) for text in completion]

    assert _run({"test_local_alarm": 1.0}, ["a", "b"], timeout=30.0).scores == [1.0, 1.0]


@pytest.mark.parametrize(("bad", "kind"), [(BAD, "timeout"), ("die", "crash"), ("raise", "exception")])
def test_the_rows_beside_a_failing_one_are_scored_together_again(bad: str, kind: str) -> None:
    found = _run({"test_share": 1.0}, ["x", bad, "y"])
    assert found.scores == [1 / 2, None, 1 / 2]
    assert found.failures[1].kind == kind


def test_a_batch_that_fails_in_every_row_is_given_up_after_a_few() -> None:
    start = time.monotonic()
    found = _run({"test_share": 1.0}, [BAD] * 6, timeout=0.2)
    assert found.scores == [None] * 6
    assert "not tried again" in found.failures[5].message
    assert time.monotonic() - start < 60.0


def test_a_process_ends_with_its_runner() -> None:
    runner = Runner(RewardConfig(rules={"test_stateful": 1.0}))
    runner.score(runner.samples(["a"], [{}]))
    (resident,) = runner._residents.values()
    process = resident._state.process
    assert process is not None
    runner.close()
    assert process.process.wait() != 0
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_forgotten_runner_ends_its_process() -> None:
    runner = Runner(RewardConfig(rules={"test_stateful": 1.0}))
    runner.score(runner.samples(["a"], [{}]))
    (resident,) = runner._residents.values()
    process = resident._state.process
    assert process is not None
    del runner, resident
    assert process.process.wait() != 0


def test_a_closed_runner_says_so() -> None:
    runner = Runner(RewardConfig(rules={"test_stateful": 1.0}))
    assert runner.score(runner.samples(["a"], [{}])).scores == [1.0]
    runner.close()
    found = runner.score(runner.samples(["a"], [{}]))
    assert found.scores == [None]
    assert "closed" in found.failures[0].message
