"""``rlvlm data check``: counts, lengths, faults by row, exit codes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from rlvlm.cli.main import main
from rlvlm.data.check import as_text, check_source, histogram, quantiles
from rlvlm.data.config import DataConfig
from rlvlm.data.loader import Loader
from rlvlm.data.sources import open_sources
from tests import tiny
from tests.data.helpers import counting_rows, family, png, write_jsonl
from tests.data.test_loader import truncated


def test_a_good_file_is_described_and_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", counting_rows(tmp_path, 5))
    assert main(["data", "check", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["usable"], found["pictures"], found["formats"], found["faults"]) == (
        5,
        5,
        5,
        {"flat": 5},
        0,
    )
    assert main(["data", "check", file]) == 0
    shown = capsys.readouterr().out
    for text in ("flat (5)", "5 usable, 0 faults", "1 in 5 rows", "56x56 (5)", "characters min"):
        assert text in shown


def test_the_first_ten_faults_are_named_by_row_and_exit_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut.jpg").write_bytes(truncated())
    rows = [
        *counting_rows(tmp_path, 3),
        *({"problem": "<image>", "answer": "x"} for _ in range(12)),
        {"problem": "q", "image": "cut.jpg"},
    ]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    assert main(["data", "check", file]) == 1
    shown = capsys.readouterr().out
    assert "the first 10 of 12" in shown
    for row in range(3, 13):
        assert f"a.jsonl, row {row}: the text has 1 <image> marks for 0 pictures" in shown
    assert "row 13" not in shown
    assert main(["data", "check", file, "--decode", "--where", '{"image": "cut.jpg"}']) == 1, (
        "rows without that column are faults of their own"
    )
    assert main(["data", "check", file, "--limit", "3"]) == 0


def test_token_lengths_are_those_that_a_policy_is_prompted_with(tmp_path: Path) -> None:
    config = DataConfig(train=write_jsonl(tmp_path / "a.jsonl", counting_rows(tmp_path, 12)), template="boxed")
    (source,) = open_sources(config)
    report = check_source(source, config, family(), progress=False)
    batches = Loader(dataclasses.replace(config, eval=config.train), family(), split="eval")
    expected = Counter(len(prompt.ids) for batch in batches for prompt in batch.prompts)
    batches.close()
    assert report.unit == "tokens"
    assert report.lengths == expected
    supervised = check_source(source, config, family(), dialogues=True, progress=False)
    assert min(supervised.lengths) > min(report.lengths), "the answer is counted too"


def test_the_model_s_folder_gives_the_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer, processor = tiny.parts("llava")
    folder = tmp_path / "model"
    for part in (model.config, tokenizer, processor):
        part.save_pretrained(folder)
    file = write_jsonl(tmp_path / "a.jsonl", [{"problem": "abc", "images": [], "answer": "1"}])
    assert main(["data", "check", file, "--model", str(folder), "--json", "--template", "as_is"]) == 0
    tokens = json.loads(capsys.readouterr().out)["tokens"]
    assert tokens["max"] == len(tokenizer("<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n")["input_ids"])
    assert main(["data", "check", file, "--model", str(folder), "--max-prompt-tokens", "3"]) == 1


def test_what_is_asked_wrongly_is_said_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{"problem": "q"}])
    assert main(["data", "check", str(tmp_path / "none.jsonl")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert main(["data", "check", file, "--where", "{broken"]) == 2
    assert "--where is no valid JSON" in capsys.readouterr().err
    assert main(["data", "check", file, "--template", "bxoed"]) == 2
    assert "did you mean 'boxed'" in capsys.readouterr().err
    empty = write_jsonl(tmp_path / "empty.jsonl", [])
    assert main(["data", "check", empty]) == 1
    assert "there is nothing to train on" in capsys.readouterr().out
    assert main(["data", "check", file, "--columns", '{"problem": "qq"}']) == 1
    assert "no column 'qq'" in capsys.readouterr().out


def test_pictures_outside_the_folder_are_faults_unless_allowed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out.png").write_bytes(png())
    file = write_jsonl(tmp_path / "in" / "a.jsonl", [{"problem": "q", "images": ["../out.png"]}])
    assert main(["data", "check", file]) == 1
    assert main(["data", "check", file, "--allow-outside"]) == 0
    assert main(["data", "check", file, "--image-folder", str(tmp_path)]) == 1, "the path starts from that folder"


def test_quantiles_and_histograms_of_counts() -> None:
    counts = {1: 50, 2: 45, 100: 5}
    assert quantiles(counts) == [1, 1, 2, 100]
    assert quantiles({}) == [0, 0, 0, 0]
    assert sum(count for _, _, count in histogram(counts)) == 100
    assert histogram({7: 3}) == [(7, 7, 3)]
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(histogram(counts)))


def test_a_check_without_a_model_says_what_it_did_not_check(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", counting_rows(tmp_path, 2))
    (source,) = open_sources(DataConfig(train=path))
    assert "without --model neither tokens nor" in as_text(check_source(source, DataConfig(), progress=False))
    assert "without --model" not in as_text(check_source(source, DataConfig(), family(), progress=False))
