"""Every collected case of a grader fault, by its kind: the score must be the expected one, within its limits."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rlvlm.rewards import score

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "cases" / "rewards.jsonl").read_text(encoding="utf-8").splitlines()
]


def _score(given: dict[str, Any], completion: str, answer: Any) -> float:
    for mark, spec in given.get("expand", {}).items():
        completion = completion.replace(mark, spec["unit"] * spec["count"])
    seconds = given.get("limits", {}).get("max_seconds", 30)  # not the default: the machine may be busy
    return score(given["reward"], completion, answer, timeout=float(seconds), **given["kwargs"])


def _in_thread(call: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


def _got(given: dict[str, Any]) -> Any:
    if "sequence" in given:
        return [_score(given, one["completion"], one["answer"]) for one in given["sequence"]]
    if "completions" in given:
        return [_score(given, completion, given["answer"]) for completion in given["completions"]]
    if given.get("context", {}).get("thread") == "non_main":
        return _in_thread(lambda: _score(given, given["completion"], given["answer"]))
    return _score(given, given["completion"], given["answer"])


def _check(expected: Any, got: Any, tolerance: float | None) -> None:
    if not isinstance(expected, dict):
        assert got == pytest.approx(expected, abs=tolerance or 0.0)
    elif expected["property"] == "strictly_decreasing":
        assert all(a > b for a, b in itertools.pairwise(got)), got
    else:
        low, high = expected["min"], expected["max"]
        assert low - (tolerance or 0.0) <= got <= high + (tolerance or 0.0)
        assert not expected.get("min_strict") or got > low
        assert not expected.get("max_strict") or got < high


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case_scores_as_expected(case: dict[str, Any]) -> None:
    context = case["input"].get("context", {})
    created = Path(context.get("must_not_create", "/nonexistent"))
    created.unlink(missing_ok=True)
    start = time.monotonic()
    got = _got(case["input"])
    assert time.monotonic() - start < case["input"].get("limits", {}).get("max_seconds", 30)
    _check(case["expected"], got, case["tolerance"])
    assert not created.exists()
