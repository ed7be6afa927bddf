"""Control characters of models' text do not reach a terminal or a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvlm.rewards import Runner
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.printing import escaped

SOURCE = """
import sys

def loud(completion):
    print(completion)
    sys.stderr.write(completion)
    raise ValueError(completion)
"""
HOSTILE = "\x1b[2J\x07\x9b31m\u202e\r\x00 ü\nlast"


def test_control_characters_become_escapes() -> None:
    assert escaped(HOSTILE) == r"\x1b[2J\x07\x9b31m\u202e\r\x00 ü\nlast"
    assert escaped("a\tb\nc\x1b", keep_lines=True) == "a\tb\nc\\x1b"


def test_what_a_rule_prints_and_raises_is_escaped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loud.py"
    path.write_text(SOURCE, encoding="utf-8")
    node = {"style": "verl", "path": f"{path}:loud"}
    runner = Runner(RewardConfig(rules={"loud": node}, workers=1, max_error_rate=1.0))
    try:
        found = runner.score(runner.samples([HOSTILE], [{"answer": "1"}]))
    finally:
        runner.close()
    printed = capfd.readouterr().err
    assert r"\x1b[2J" in found.failures[0].message
    for text in (printed, found.failures[0].message):
        assert not set("\x1b\x07\x9b\u202e\r\x00") & set(text)
    assert printed.count(r"\x1b[2J\x07\x9b31m\u202e\r\x00 ü") == 2
