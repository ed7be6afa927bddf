"""``rlvlm score`` and ``rlvlm rewards``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvlm.cli.main import main
from rlvlm.cli.score import parse_rule

ROWS = [
    {"completion": "<think>One, two and three, counted twice to be sure of it.</think> \\boxed{3}", "answer": "3"},
    {"completion": "<answer>4</answer>", "answer": 3},
    {"completion": "<answer>4</answer>", "answer": "four", "response_length": 5},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "completions.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n", encoding="utf-8")
    return path


def test_scores_parts_errors_and_a_table_are_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = file.with_name("scores.jsonl")
    given = [
        "--reward",
        "number=0.9",
        "--reward",
        "format=0.1,style=boxed",
        "--output",
        str(out),
        "--max-error-rate",
        "0.5",
    ]
    assert main(["score", str(file), *given]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["0", "1.0000", "1.0000", "1.0000"] in lines
    assert ["2", "error", "error", "0.0000"] in lines
    assert "row 2: the record's gold answer 'four' is not one number" in shown
    assert ["number", "0.9", "0.5000", "0.5000", "0.0000", "1.0000", "2", "1"] in lines
    assert ["score", "0.5000", "0.5000", "0.0000", "1.0000", "2", "1"] in lines
    written = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["score"] for row in written] == [1.0, 0.0, None]
    assert written[0]["parts"] == {"number": 1.0, "format": 1.0}
    assert written[1]["details"]["format"]["fault"] == "0 think blocks, expected 1"
    assert written[2]["error"]["rule"] == "number"


def test_the_exit_code_is_one_when_errors_pass_the_limit(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(file), "--reward", "number=1.0"]) == 1
    assert "1 of 3 rewards failed, above --max-error-rate 0.02" in capsys.readouterr().err


MINE = """
from rlvlm import register_reward

@register_reward("cli_words")
def words(completion: str, factor: float, *, plus: int = 0) -> float:
    return len(completion.split()) * factor + plus
"""
THEIRS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str.startswith(ground_truth))
"""


def test_columns_scale_plugins_and_peers_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "theirs.py").write_text(THEIRS, encoding="utf-8")
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a b c", "factor": 2, "gold": "a b"}), encoding="utf-8")
    given = [
        "--completion-column",
        "text",
        "--answer-column",
        "gold",
        "--plugins",
        str(tmp_path / "mine.py"),
        "--scale",
        "10",
        "--bias",
        "-1",
    ]
    rules = ["--reward", "cli_words=1,plus=4", "--reward", f"theirs=0.5,style=verl,path={tmp_path / 'theirs.py'}"]
    out = tmp_path / "o.jsonl"
    assert main(["score", str(path), *given, *rules, "--output", str(out)]) == 0
    row = json.loads(out.read_text(encoding="utf-8"))
    assert row["parts"] == {"cli_words": 10.0, "theirs": 1.0}
    assert row["score"] == 10.5
    assert row["reward"] == 95.0


@pytest.mark.parametrize(
    ("lines", "given", "code", "message"),
    [
        ('{"completion": "a"}', ["--reward", "mth=1"], 2, "did you mean 'math'"),
        ('{"completion": "a"}', ["--reward", "number=1,tolernce=2"], 2, "did you mean 'tolerance'"),
        ('{"completion": "a"}', ["--reward", "number=1,tolerance"], 2, "option=value"),
        ('{"completion": "a"}', ["--reward", "number={"], 2, "no YAML"),
        ('{"completon": "a"}', ["--reward", "number=1"], 1, "did you mean 'completon'"),
        ("{", ["--reward", "number=1"], 1, "line 1 is no JSON"),
        (None, ["--reward", "number=1"], 1, "there is no file"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(
    lines: str | None, given: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    if lines is not None:
        path.write_text(lines, encoding="utf-8")
    assert main(["score", str(path), *given]) == code
    assert message in capsys.readouterr().err


GOOD = b'{"completion": "<answer>3</answer>", "answer": "3"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + b'{"completion": "caf\xe9"}\n', "a.jsonl, line 2 is not UTF-8"),
        (GOOD.decode().encode("utf-16"), "a.jsonl, line 1 is not UTF-8"),
        (b"", "a.jsonl holds no rows"),
        (b"\n \n", "a.jsonl holds no rows"),
        (b"[" * 100_000, "a.jsonl, line 1 is no JSON"),
    ],
)
def test_a_file_that_can_not_be_read_is_one_sentence(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    assert main(["score", str(tmp_path / "a.jsonl"), "--reward", "number=1"]) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.strip().splitlines()) == 1


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD)
    assert main(["score", str(tmp_path / "a.jsonl"), "--reward", "number=1"]) == 0


@pytest.mark.parametrize(
    ("output", "message"), [("", "is a folder"), ("no/such/o.jsonl", "a folder that is not there")]
)
def test_the_output_is_checked_before_anything_is_scored(
    output: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvlm.cli.score.score_rows", lambda *_: pytest.fail("scored"))
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    given = ["score", str(tmp_path / "a.jsonl"), "--reward", "number=1", "--output", str(tmp_path / output)]
    assert main(given) == 2
    assert message in capsys.readouterr().err


def test_scores_are_shown_even_where_they_can_not_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlvlm.cli.score._write_scores", full)
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    given = ["score", str(tmp_path / "a.jsonl"), "--reward", "number=1", "--output", str(tmp_path / "o.jsonl")]
    assert main(given) == 1
    shown = capsys.readouterr()
    assert "1.0000" in shown.out
    assert "can't be written" in shown.err


def test_the_same_rule_twice_asks_for_a_label(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(file), "--reward", "number=1", "--reward", "number=0.5,tolerance=1"]) == 2
    assert "--reward gives 'number' twice" in capsys.readouterr().err
    given = ["--reward", "number=1", "--reward", "number_2=0.5,name=number,tolerance=1", "--max-error-rate", "1"]
    assert main(["score", str(file), *given]) == 0


def test_a_message_that_the_output_can_not_show_is_escaped(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    (tmp_path / "mine.py").write_text(
        "from rlvlm import register_reward\n\n@register_reward('cli_says')\ndef says(completion: str) -> float:\n"
        "    raise ValueError(completion)\n",
        encoding="utf-8",
    )
    (tmp_path / "a.jsonl").write_text('{"completion": "\\ud800 \\u5bf9"}\n', encoding="utf-8")
    given = [str(tmp_path / "a.jsonl"), "--reward", "cli_says=1", "--plugins", str(tmp_path / "mine.py")]
    for encoding in ("utf-8", "ascii"):
        done = subprocess.run(
            [sys.executable, "-m", "rlvlm.cli.main", "score", *given, "--max-error-rate", "1"],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert done.returncode == 0, done.stderr
        assert b"\\ud800" in done.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("math=0.9", ("math", {"weight": 0.9})),
        ("math", ("math", {"weight": 1.0})),
        ("bbox=1,iou_threshold=0.5,multi=true", ("bbox", {"weight": 1, "iou_threshold": 0.5, "multi": True})),
        ("critic=1,verdicts=[a, b]", ("critic", {"weight": 1, "verdicts": ["a", "b"]})),
    ],
)
def test_a_rule_is_written_in_one_word(text: str, expected: Any) -> None:
    assert parse_rule(text) == expected


def test_rewards_lists_names_options_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewards"]) == 0
    shown = capsys.readouterr().out
    for name in ("math", "bbox", "svg", "llm_judge", "clip_retrieval", "overlong"):
        assert f"\n{name}: " in f"\n{shown}"
    assert "tolerance=0.0, relative=0.0" in shown
    assert "example: score('number', '<answer>1,234 apples</answer>', '1234', tolerance=0.5)" in shown
    assert main(["rewards", "bbox"]) == 0
    assert "iou_threshold: float | None, default None" in capsys.readouterr().out
    assert main(["rewards", "box"]) == 2
