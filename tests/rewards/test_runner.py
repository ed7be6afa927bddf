"""The runner: processes that are killed and replaced, deadlines, failures that are never a zero, order, threads."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import pytest

from rlvlm.errors import ConfigError, RewardError, TrainingStopped
from rlvlm.rewards import Runner
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.execute import Scores, read_score
from rlvlm.rewards.pool import Pool
from rlvlm.rewards.runner import place_of
from tests.rewards import rules_of_tests  # noqa: F401 (registers the rules)


@pytest.fixture(scope="module")
def pool() -> Any:
    shared = Pool(2, 512)
    yield shared
    shared.close()


def _run(
    rules: dict[str, Any], completions: list[str], pool: Pool | None = None, records: Any = None, **config: Any
) -> Any:
    runner = Runner(RewardConfig(rules=rules, **{"timeout": 30.0, **config}), pool)
    try:
        return runner.score(runner.samples(completions, records or [{"answer": "a"}] * len(completions)))
    finally:
        runner.close()


def test_the_pool_keeps_the_order_and_uses_its_workers(pool: Pool) -> None:
    found = _run({"test_length": {"times": 2.0}}, ["x" * n for n in range(200)], pool)
    assert found.scores == [2.0 * n for n in range(200)]
    pids = {detail["pid"] for detail in found.details["test_length"].values()}
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids


@pytest.mark.parametrize(
    ("completion", "kind", "message"),
    [
        ("hang", "timeout", "took longer than 2 s"),
        ("spin", "timeout", "took longer than 2 s"),
        ("die", "crash", "exit code 7"),
        ("exit", "exception", "SystemExit"),
        ("raise", "exception", "ValueError: as asked"),
        ("eat", "memory", "out of memory"),
        ("nan", "value", "nan"),
        ("inf", "value", "inf"),
        ("none", "value", "None"),
        ("text", "value", "'0.5'"),
        ("huge", "value", "int"),
    ],
)
def test_a_failing_row_has_no_score_and_the_others_have_theirs(
    pool: Pool, completion: str, kind: str, message: str
) -> None:
    start = time.monotonic()
    limit = 2.0 if kind == "timeout" else 30.0
    found = _run({"test_trouble": 1.0}, ["good", completion, "good", "good"], pool, timeout=limit)
    assert found.scores == [1.0, None, 1.0, 1.0]
    assert list(found.failures) == [1]
    assert found.failures[1].rule == "test_trouble"
    assert message in found.failures[1].message
    assert found.failures[1].kind in (kind, "error" if kind == "value" else kind)
    assert time.monotonic() - start < 25.0


def test_a_worker_that_hoards_memory_is_replaced_before_it_fails(pool: Pool) -> None:
    assert _run({"test_trouble": 1.0}, ["hoard"] * 8, pool).scores == [1.0] * 8


def test_failures_of_any_rule_take_the_whole_score(pool: Pool) -> None:
    found = _run({"number": 0.5, "test_trouble": 0.5}, ["<answer>3</answer>", "raise"], pool, [{"answer": "3"}] * 2)
    assert found.scores == [1.0, None]
    assert found.parts["number"] == [1.0, 0.0]


def test_it_works_from_many_threads_at_once(pool: Pool) -> None:
    runner = Runner(RewardConfig(rules={"test_length": 1.0, "format": 0.0}), pool)
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        texts = ["x" * (number + n) for n in range(20)]
        found[number] = runner.score(runner.samples(texts, [{}] * 20)).scores

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [float(number + n) for n in range(20)] for number in range(6)}


def test_columns_are_read_by_name_and_a_missing_one_fails_its_row(pool: Pool) -> None:
    records = [{"colour": "red", "size": 3}, {"colour": "red"}, {"color": "red"}]
    found = _run({"test_column": 1.0}, ["red"] * 3, pool, records)
    assert found.scores == [3.0, 1.0, None]
    assert "reads 'colour'" in found.failures[2].message
    assert "did you mean 'color'" in found.failures[2].message


@pytest.mark.parametrize("name", ["answer_text", "completion", "record", "max_length"])
def test_a_column_that_shadows_a_filled_in_name_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'"):
        _run({"number": 1.0}, ["1"], None, [{name: "x", "answer": "1"}])


def test_async_rules_wait_at_the_same_time_with_a_limit_each() -> None:
    start = time.monotonic()
    found = _run({"test_async": 1.0}, ["0.4"] * 20 + ["9"], timeout=1.0)
    assert found.scores == [1.0] * 20 + [None]
    assert found.failures[20].kind == "timeout"
    assert time.monotonic() - start < 4.0


def test_batched_rules_get_columns_and_must_give_one_score_each() -> None:
    assert _run({"test_batched": 1.0}, ["a", "b"]).scores == [1.0, 0.0]
    found = _run({"test_batched": 1.0}, ["a", "b", "c"])
    assert found.scores == [None] * 3
    assert "gave 2 scores for 3 completions" in found.failures[0].message


def test_a_class_keeps_its_state_until_a_row_hangs_which_fails_alone() -> None:
    runner = Runner(RewardConfig(rules={"test_stateful": {"start": 10}}, timeout=1.0))
    assert runner.score(runner.samples(["a", "b"], [{}] * 2)).scores == [11.0, 12.0]
    assert runner.score(runner.samples(["c", "hang", "d"], [{}] * 3)).scores == [13.0, None, 11.0]
    assert runner.score(runner.samples(["e"], [{}])).scores == [12.0]
    runner.close()


def test_a_class_that_only_hangs_is_not_tried_for_ever() -> None:
    start = time.monotonic()
    found = _run({"test_stateful": 1.0}, ["hang"] * 30, timeout=0.2)
    assert found.scores == [None] * 30
    assert sum("not tried again" in failure.message for failure in found.failures.values()) == 27
    assert time.monotonic() - start < 20.0  # three processes are started; a row sleeps for 30 s


def test_a_local_function_runs_in_a_fork_that_has_what_it_refers_to() -> None:
    from rlvlm.rewards import register_reward

    seen: list[str] = ["before"]

    @register_reward("test_local", override=True)
    def local(completion: str) -> dict[str, Any]:
        seen.append(completion)
        return {"score": float(len(seen)), "detail": {"pid": os.getpid()}}

    found = _run({"test_local": 1.0}, ["a", "b"])
    assert found.scores == [2.0, 3.0]
    assert seen == ["before"]
    assert os.getpid() not in {detail["pid"] for detail in found.details["test_local"].values()}


def test_rules_run_where_they_belong() -> None:
    rules = {
        "number": 1.0,
        "math": 1.0,
        "test_column": 1.0,
        "test_async": 1.0,
        "test_stateful": 1.0,
        "test_batched": 1.0,
    }
    places = {rule.label: place_of(rule) for rule in Runner(RewardConfig(rules=rules)).rules}
    assert places == {
        "number": "inline",
        "math": "pool",
        "test_column": "pool",
        "test_async": "process",
        "test_stateful": "process",
        "test_batched": "process",
    }


@pytest.mark.parametrize(("name", "place"), [("test_model", "thread"), ("test_server", "loop")])
def test_rules_that_declare_it_stay_in_the_trainer(name: str, place: str) -> None:
    (rule,) = Runner(RewardConfig(rules={name: 1.0})).rules
    assert place_of(rule) == place
    found = _run({name: 1.0}, ["a", "b"])
    assert found.scores == [1.0, 1.0]
    assert {detail["pid"] for detail in found.details[name].values()} == {os.getpid()}


def test_the_run_stops_past_the_error_rate_and_not_before(pool: Pool) -> None:
    runner = Runner(RewardConfig(rules={"test_trouble": 1.0}, max_error_rate=0.25), pool)

    def check(completions: list[str]) -> None:
        runner.check_error_rate(runner.score(runner.samples(completions, [{}] * len(completions))))

    check(["good"] * 6 + ["raise"] * 2)
    check(["good"] * 4)
    with pytest.raises(TrainingStopped, match=r"5 of the last 15 rewards failed.*max_error_rate = 0.25.*as asked"):
        check(["raise"] * 3)


def test_a_column_that_can_not_be_sent_fails_its_rows(pool: Pool) -> None:
    found = _run({"test_column": 1.0}, ["red"], pool, [{"colour": threading.Lock()}])
    assert found.scores == [None]
    assert "pickle" in found.failures[0].message


def test_a_closed_pool_says_so_and_a_forgotten_one_ends() -> None:
    own = Pool(1, 512)
    runner = Runner(RewardConfig(rules={"test_length": 1.0}), own)
    assert runner.score(runner.samples(["abc"], [{}])).scores == [3.0]
    (worker,) = own._state.workers
    own.close()
    with pytest.raises(RewardError, match="closed"):
        runner.score(runner.samples(["abc"], [{}]))
    assert worker.process.wait(5) != 0
    forgotten = Pool(1, 512)
    Runner(RewardConfig(rules={"test_length": 1.0}), forgotten).score(runner.samples(["abc"], [{}]))
    (worker,) = forgotten._state.workers
    del forgotten, runner
    gc.collect()
    assert worker.process.wait(5) != 0


def test_workers_hold_neither_torch_nor_anything_of_the_caller() -> None:
    import torch  # noqa: F401 (the caller has it)

    own = Pool(1, 512)
    runner = Runner(RewardConfig(rules={"test_length": 1.0}), own)
    runner.score(runner.samples(["abc"], [{}]))
    (worker,) = own._state.workers
    with open(f"/proc/{worker.process.pid}/maps", encoding="utf-8") as file:
        assert "torch" not in file.read()
    own.close()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"scor": 1.0}, "without 'score'"),
        ("1", "expected a float"),
        (None, "expected a float"),
        ([1.0], "list"),
        (float("nan"), "finite"),
        (10**400, "int"),
    ],
)
def test_what_is_no_score_is_refused(value: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        read_score(value)


def test_numbers_of_any_kind_are_scores() -> None:
    import numpy as np
    import torch

    for value in (1, True, np.float32(1), torch.tensor(1.0), {"score": np.int64(1)}):
        assert read_score(value)[0] == 1.0
    kept = Scores([None])
    kept.put(0, "x", {"score": 1, "detail": {"a": 2}})
    assert (kept.values, kept.details) == ([1.0], {0: {"a": 2}})
