"""Hostile completions through ``score``: answered within 10 s and 1 GiB, with nothing opened, and the next one scored."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from rlvlm.rewards import REWARDS, score
from rlvlm.rewards.execute import Scores, run_rows
from rlvlm.rewards.samples import Samples
from tests.rewards.test_fuzz import OPTIONS, RULES

GOLDS: dict[str, Any] = {
    "bbox": [10, 20, 110, 220],
    "point": [10, 20],
    "bool": "yes",
    "multiple_choice": "B",
    "svg": '<svg viewBox="0 0 9 9"><rect width="5" height="5" fill="red"/></svg>',
    "html": "<p>Soup</p>",
    "code": ["assert f(1) == 2"],
}
RIGHT = {
    "bbox": "[10, 20, 110, 220]",
    "point": "[10, 20]",
    "bool": "yes",
    "multiple_choice": "B",
    "svg": GOLDS["svg"],
    "html": "<p>Soup</p>",
    "code": "def f(x):\n    return 2",
}
MEGABYTES_10 = 10_000_000
HOSTILE = {
    "10 MB of words": "<answer>" + "word " * (MEGABYTES_10 // 5) + "</answer>",
    "10 MB of digits": "<answer>" + "9" * MEGABYTES_10 + "</answer>",
    "10 MB of tags": "<answer>" + "<g><p>" * (MEGABYTES_10 // 6) + "</answer>",
    "10 MB without an end": "<think>" + "\\boxed{" * (MEGABYTES_10 // 7),
    "10 MB of fences": "```\n" * (MEGABYTES_10 // 4),
    "null bytes and surrogates": "<answer>\x00\ud800\udfff B 12 <p>\x00</p></answer>",
    "backtracking": "<answer>" + "a" * 60_000 + "!" + "(" * 60_000 + " \t" * 60_000 + "</answer>",
    "many brackets": "<answer>" + "[1,2,3,4]," * 9_000 + "</answer>",
    "commas and signs": "<answer>" + "1,2,-3e5/4" * 90 + "</answer>",
}


PROGRAM = """
import glob, json, os, resource, time
from rlvlm.errors import RewardError
from rlvlm.rewards import REWARDS, api, score
from tests.rewards.test_hostile import GOLDS, HOSTILE
from tests.rewards.test_fuzz import OPTIONS, RULES

def peak_mb(pid):
    with open(f"/proc/{pid}/status") as status:
        return max([int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")], default=0.0)

def standing_in_line():
    # Seconds that each of our threads, and of the workers, was ready to run and had no core.
    waited = {}
    for pid in [os.getpid(), *(worker.process.pid for pool in api._POOLS for worker in list(pool._state.workers))]:
        for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
            try:
                with open(path) as stat:
                    waited[pid, path] = int(stat.read().split()[1]) / 1e9
            except OSError:
                pass  # the thread has just ended
    return waited

def longest_wait(before, after):
    # Of each process its longest-waiting thread; a process that is gone counts nothing.
    longest = {}
    for (pid, path), waited in after.items():
        longest[pid] = max(longest.get(pid, 0.0), waited - before.get((pid, path), 0.0))
    return sum(longest.values())

for name in RULES:
    low, high = REWARDS.get(name).traits["range"]
    for hostile, text in HOSTILE.items():
        given = {"response_length": 10, "max_length": 64} if name in ("length", "overlong") else {}
        in_line, start = standing_in_line(), time.monotonic()
        try:
            found = score(name, text, GOLDS.get(name, "12"), **OPTIONS.get(name, {}), **given)
            outcome = "scored" if low <= found <= high else f"scored {found}"
        except RewardError as error:
            outcome = f"refused: {error}"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start - longest_wait(in_line, standing_in_line())
        workers = [worker.process.pid for pool in api._POOLS for worker in list(pool._state.workers)]
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([name, hostile, outcome, seconds, own, max(map(peak_mb, workers), default=0.0)]), flush=True)
"""


@pytest.fixture(scope="module")
def answered() -> dict[tuple[str, str], list[Any]]:
    """Outcome, seconds, peak memory of the process and of its worker, for every rule and text, in a process of its own.

    Seconds are those on the wall less those spent waiting for a core, so that other work on the machine does not count.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {(line[0], line[1]): line[2:] for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", RULES)
def test_hostile_text_is_answered_in_time_and_memory(
    name: str, hostile: str, answered: dict[tuple[str, str], list[Any]]
) -> None:
    outcome, seconds, own_mb, worker_mb = answered[name, hostile]
    assert outcome == "scored" or outcome.startswith("refused"), outcome
    assert seconds < 10.0
    assert own_mb < 1024
    assert worker_mb < 1024


STARTS = ("", "[1", "A", "yes ", "the answer is ", '{"bbox_2d": [1', "\\text{", "1,", "$")
RUNS = (
    " ",
    "\n",
    ",",
    "-",
    "0",
    "a",
    "A",
    "(",
    "{",
    "\\",
    "*",
    "'",
    "1 ",
    "1,",
    "A ",
    "or ",
    "\\text{",
    "(1,2)",
    "not ",
    "```\n",
    "1/1",
)


@pytest.mark.parametrize("name", [name for name in RULES if REWARDS.get(name).traits["isolated"] is False])
def test_no_pattern_backtracks_in_rules_that_run_in_the_trainer(name: str) -> None:
    """Runs of one piece after each start: 20,000 characters take at most linear time."""
    part = REWARDS.build({"name": name, **OPTIONS.get(name, {})})
    texts = [f"<answer>{start}{run * (20_000 // len(run))}!</answer>" for start in STARTS for run in RUNS]
    given = {"response_length": [5] * len(texts), "max_length": [9] * len(texts)}
    samples = Samples(texts, [{"answer": GOLDS.get(name, "12")}] * len(texts), columns=given)
    scores = Scores([None] * len(texts))
    start = time.process_time()
    run_rows(part, name, samples, range(len(texts)), scores)
    assert time.process_time() - start < 0.1 * len(texts)
    assert all(failure.kind == "error" for failure in scores.failures.values())


@pytest.mark.parametrize("name", GOLDS)
def test_the_pool_goes_on(name: str) -> None:
    assert score(name, f"<answer>{RIGHT[name]}</answer>", GOLDS[name], **OPTIONS.get(name, {})) == pytest.approx(1.0)


class _Listener:
    """Counts connections to a port of this machine."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.count += 1
            connection.close()


def test_no_connection_is_made() -> None:
    listener = _Listener()
    url = f"http://127.0.0.1:{listener.port}/a"
    references = (
        f'<image href="{url}"/><use href="{url}#b"/><style>@import url({url});</style><rect fill="url({url})"/>'
    )
    drawing = f'<svg viewBox="0 0 9 9">{references}</svg>'
    entity = f'<!DOCTYPE svg [<!ENTITY x SYSTEM "{url}">]><svg viewBox="0 0 9 9"><text>&x;</text></svg>'
    page = f'<link rel="stylesheet" href="{url}"><img src="{url}"><iframe src="{url}"></iframe><p>Soup</p>'
    program = f"import urllib.request\nurllib.request.urlopen('{url}')\ndef f(x): return 2"
    for name, text in (("svg", drawing), ("svg", entity), ("html", page), ("code", program)):
        score(name, f"<answer>{text}</answer>", GOLDS[name], **OPTIONS.get(name, {}))
    assert listener.count == 0
    listener.socket.close()


def test_no_file_is_opened(tmp_path: Any) -> None:
    """A fifo blocks who opens it for reading, so a reader would run into the time limit."""
    fifo = tmp_path / "fifo.svg"
    os.mkfifo(fifo)
    for reference in (f"file://{fifo}", str(fifo)):
        drawing = (
            f'<svg viewBox="0 0 9 9"><image href="{reference}"/><use href="{reference}#a"/><rect width="5"/></svg>'
        )
        entity = f'<!DOCTYPE svg [<!ENTITY x SYSTEM "{reference}">]><svg viewBox="0 0 9 9"><text>&x;</text></svg>'
        for text in (drawing, entity):
            start = time.monotonic()
            score("svg", f"<answer>{text}</answer>", GOLDS["svg"])
            assert time.monotonic() - start < 5.0
