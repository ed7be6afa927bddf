"""Every collected case of a grader fault, by its kind, as a run scores it: by the reward role, under the default limits.

Files, connections and memory are watched: a completion that has anything opened, or takes more memory than a worker may, fails.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvlm.rewards import REWARDS
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.rule import DERIVED, INJECTED
from tests.rewards.watch import HOOK, Watch

ROOT = Path(__file__).parent.parent.parent
CASES = [json.loads(line) for line in (ROOT / "tests/cases/rewards.jsonl").read_text(encoding="utf-8").splitlines()]
KINDS = {
    "math": 71,
    "multiple_choice": 31,
    "bbox": 28,
    "number": 26,
    "format": 18,
    "svg": 17,
    "ocr": 15,
    "html": 13,
    "bool": 7,
    "string": 5,
}

FILE, URL = "@@FILE@@", "@@URL@@"
"""Stand for the bait and for a port of this machine, both watched."""

TOUCHING: dict[str, list[str]] = {
    "svg": [
        f'<svg viewBox="0 0 9 9"><image href="file://{FILE}"/><rect width="5" height="5"/></svg>',
        f'<svg viewBox="0 0 9 9"><image href="{URL}/a.png" width="9" height="9"/><rect width="5" height="5"/></svg>',
        f'<svg viewBox="0 0 9 9"><style>@import url("{URL}/a.css"); @import url("file://{FILE}");</style><rect width="5"/></svg>',
        f'<svg viewBox="0 0 9 9"><use href="{FILE}#a"/><use href="{URL}#a"/><feImage href="file://{FILE}"/></svg>',
        f'<?xml-stylesheet href="{URL}/a.xsl" type="text/xsl"?><svg viewBox="0 0 9 9"><rect width="5" fill="url({URL}#a)"/></svg>',
        f'<!DOCTYPE svg SYSTEM "{URL}/a.dtd"><svg viewBox="0 0 9 9"><rect width="5" height="5"/></svg>',
        f'<!DOCTYPE svg [<!ENTITY x SYSTEM "file://{FILE}"><!ENTITY % y SYSTEM "{URL}"> %y;]><svg><text>&x;</text></svg>',
        f'<svg xmlns:xi="http://www.w3.org/2001/XInclude" viewBox="0 0 9 9"><xi:include href="file://{FILE}" parse="text"/></svg>',
        f'<svg viewBox="0 0 9 9"><script href="{URL}/a.js">fetch("{URL}")</script><rect width="5" height="5"/></svg>',
    ],
    "html": [
        f'<link rel="stylesheet" href="{URL}"><img src="{URL}/a.png"><iframe src="file://{FILE}"></iframe><p>Soup</p>',
        f'<meta http-equiv="refresh" content="0;url={URL}"><script src="{URL}"></script><object data="{FILE}"></object>',
        f'<!DOCTYPE html SYSTEM "{URL}"><base href="{URL}"><style>@import "{URL}";</style><p>Soup</p>',
    ],
    "math": [
        f"__import__('os').system('cat {FILE}')",
        f"open('{FILE}').read()",
        rf"\input{{{FILE}}}",
        rf"\text{{exec}}(__import__('urllib.request').request.urlopen('{URL}'))",
        f"lambda: open('{FILE}')",
        rf"\operatorname{{sympify}}(\"open('{FILE}')\")",
    ],
    "bbox": [f'{{"$ref": "file://{FILE}", "bbox_2d": "{URL}"}}', f"__import__('os').system('cat {FILE}')"],
    "number": [f"__import__('os').system('cat {FILE}')", f"{URL}"],
    "multiple_choice": [f"open('{FILE}')", f"B {URL}"],
    "bool": [f"open('{FILE}')"],
    "string": [f"file://{FILE}", f"{URL}"],
    "ocr": [f"file://{FILE}", f"{URL}"],
    "format": [f"<think>open('{FILE}')</think>"],
}
GOLDS = {
    "svg": '<svg viewBox="0 0 9 9"><rect width="5" height="5" fill="red"/></svg>',
    "html": "<p>Soup</p>",
    "bbox": [0, 0, 5, 5],
    "multiple_choice": "B",
    "bool": "yes",
}


def _columns_and_options(name: str, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    entry = REWARDS.get(name)
    reads = {*entry.needs, *entry.optional, *INJECTED, *DERIVED} - {*entry.options}
    given = {key: value for key, value in kwargs.items() if key != "think_prefilled"}  # a setting of all rules
    return {key: given[key] for key in reads & given.keys()}, {key: given[key] for key in given.keys() - reads}


def _asked(case: dict[str, Any], watch: Watch) -> dict[str, Any]:
    """A case as the watched program reads it, with the files and addresses in it turned to those that are watched."""
    given = case["input"]
    context = given.get("context", {})
    rows = given.get("sequence") or [
        {"completion": text, "answer": given.get("answer")}
        for text in given.get("completions", [given.get("completion")])
    ]
    turned = {
        context.get("must_not_open", FILE): str(watch.bait),
        context.get("must_not_connect", "@@PORT@@"): f"127.0.0.1:{watch.port}",
        context.get("must_not_create", "@@NEW@@"): str(watch.folder / "new.txt"),
        URL: f"http://127.0.0.1:{watch.port}",
        **{mark: spec["unit"] * spec["count"] for mark, spec in given.get("expand", {}).items()},
    }
    columns, options = _columns_and_options(given["reward"], given["kwargs"])
    read = []
    for row in rows:
        text = row["completion"]
        for mark, value in turned.items():
            text = text.replace(mark, value)
        read.append({"completion": text, "record": {**columns, "answer": row["answer"]}})
    rule = {"name": given["reward"], **options}
    return {
        "id": case["id"],
        "rule": rule,
        "think_prefilled": bool(given["kwargs"].get("think_prefilled")),
        "rows": read,
    }


def _hostile() -> list[dict[str, Any]]:
    cases = []
    for name, texts in TOUCHING.items():
        for number, text in enumerate(texts):
            given = {
                "reward": name,
                "completion": f"<answer>{text}</answer>",
                "answer": GOLDS.get(name, "12"),
                "kwargs": {},
            }
            cases.append({"id": f"{name} {number}", "input": given})
    return cases


HOSTILE = _hostile()
STARTING = [
    {"id": f"start {name}", "input": {"reward": name, "completion": "", "answer": GOLDS.get(name, "12"), "kwargs": {}}}
    for name in TOUCHING
]
"""Scored first, so that what imports open is not counted."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the watched program says of every case, what was touched while it scored each, and what Python audited."""
    folder, hooks = tmp_path_factory.mktemp("watched"), tmp_path_factory.mktemp("hooks")
    log = hooks / "audit.log"
    (hooks / "sitecustomize.py").write_text(HOOK.format(log=str(log)), encoding="utf-8")
    path = os.pathsep.join([str(hooks), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with Watch(folder) as watch:
        asked = [_asked(case, watch) for case in [*STARTING, *CASES, *HOSTILE]]
        rules = {json.dumps(case["rule"]): case["rule"] for case in asked}
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.rewards.watched"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert program.stdin is not None
        assert program.stdout is not None
        print(json.dumps(list(rules.values())), file=program.stdin, flush=True)
        results: dict[str, Any] = {}
        for case in asked:
            lines = len(_lines(log))
            print(json.dumps(case), file=program.stdin, flush=True)
            results[case["id"]] = json.loads(program.stdout.readline())
            results[case["id"]].update(
                touched=watch.events(), connections=watch.connections, audited=_lines(log)[lines:]
            )
        program.stdin.close()
        assert program.wait(60) == 0
    return results


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def _check(expected: Any, got: list[Any], tolerance: float | None) -> None:
    if not isinstance(expected, dict):
        assert got == pytest.approx(
            expected if isinstance(expected, list) else [expected], abs=max(tolerance or 0.0, 1e-7)
        )
    elif expected["property"] == "strictly_decreasing":
        assert all(a > b for a, b in itertools.pairwise(got)), got
    else:
        low, high = expected["min"], expected["max"]
        assert low - (tolerance or 0.0) <= got[0] <= high + (tolerance or 0.0)
        assert not expected.get("min_strict") or got[0] > low
        assert not expected.get("max_strict") or got[0] < high


def test_no_case_is_missing() -> None:
    """A file that is not there, or half of it, must not pass as nothing to test."""
    assert dict(Counter(case["kind"] for case in CASES)) == KINDS
    assert {case["input"]["reward"] for case in CASES} == TOUCHING.keys()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case_scores_as_expected(case: dict[str, Any], told: dict[str, Any]) -> None:
    got = told[case["id"]]
    assert not got["failures"]
    _check(case["expected"], got["scores"], case["tolerance"])
    assert got["seconds"] < case["input"].get("limits", {}).get("max_seconds", 30)


@pytest.mark.parametrize("name", [case["id"] for case in [*CASES, *HOSTILE]])
def test_nothing_is_opened_and_memory_is_kept(name: str, told: dict[str, Any]) -> None:
    got = told[name]
    assert got["touched"] == []
    assert got["connections"] == 0
    assert [line for line in got["audited"] if not _is_ours(line)] == []
    assert got["peak_mb"] < RewardConfig.memory_mb


def _is_ours(line: str) -> bool:
    """What the pool opens to start another worker."""
    return "rlvlm.rewards.worker" in line or "'/dev/null'" in line


def test_the_watch_sees_what_is_touched(tmp_path: Path) -> None:
    """Files opened or made, and connections, by a process that is not ours, below Python's own hooks."""
    with Watch(tmp_path) as watch:
        program = f"cat {watch.bait} > {tmp_path}/new.txt; exec 3<>/dev/tcp/127.0.0.1/{watch.port}"
        subprocess.run(["bash", "-c", program], check=True, capture_output=True)
        assert {"bait.txt", "new.txt"} <= set(watch.events())
        assert watch.connected.wait(30)
    assert watch.connections == 1
