"""Selection: the estimator against enumeration, rules, kills, shards, the report, the command."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlvlm.cli.main import main
from rlvlm.data import selection
from rlvlm.data.config import DataConfig
from rlvlm.data.selection import (
    Answered,
    AnswerTask,
    SelectionRules,
    collect_answers,
    judge,
    pass_at_k,
    read_answers,
    read_scores,
    select,
)
from rlvlm.data.sources import open_sources
from rlvlm.errors import ConfigError, DataError
from tests.data.helpers import write_jsonl
from tests.data.offline_packing.test_shards import run_in_child


@pytest.mark.parametrize("answers", [1, 4, 7])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_answer(answers: int) -> None:
    for right in range(answers + 1):
        outcomes = [place < right for place in range(answers)]
        for k in range(1, answers + 1):
            draws = list(itertools.combinations(outcomes, k))
            assert pass_at_k(answers, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_at_k(10_000, 1, 5000) == pytest.approx(0.5), "large counts do not overflow"
    with pytest.raises(ConfigError, match="at least 9 answers"):
        pass_at_k(8, 1, 9)


def answered(right: int, count: int = 8, row: int = 0, reward: float | None = None, **columns: Any) -> Answered:
    rewards = tuple(float(place < right) for place in range(count)) if reward is None else (reward,) * count
    return Answered(row, rewards, tuple(place < right for place in range(count)), ("text",) * count, columns)


@pytest.mark.parametrize(
    ("right", "reason"), [(0, "hopeless"), (1, "kept"), (6, "kept"), (7, "pass@1 above"), (8, "solved")]
)
def test_latent_ability_is_kept_and_solved_and_hopeless_are_not(right: int, reason: str) -> None:
    verdict = judge(answered(right), SelectionRules())
    assert verdict.reason == reason
    assert verdict.kept == (reason == "kept")
    assert (verdict.pass_1, verdict.pass_k) == (right / 8, float(right > 0))
    assert verdict.gap == verdict.pass_k - verdict.pass_1


def test_pass_k_of_fewer_than_all_answers_is_estimated() -> None:
    verdict = judge(answered(1), SelectionRules(k=2, min_pass_k=0.3))
    assert verdict.pass_k == pytest.approx(0.25)
    assert verdict.reason == "pass@k below"
    assert judge(answered(1, count=2), SelectionRules(k=4)).reason == "fewer than 4 answers", "never pass@2 as pass@4"


def test_windows_on_the_mean_reward_by_a_column() -> None:
    open_rules = {"min_pass_k": 0.0, "max_pass_1": 1.0, "drop_solved": False, "drop_hopeless": False}
    rules = SelectionRules(**open_rules, window=(0.0, 0.6), window_by="answer_type", windows={"bbox": (0.2, 0.9)})
    for kind, reward, kept in (
        ("number", 0.0, False),
        ("number", 0.5, True),
        ("number", 0.6, False),
        ("bbox", 0.15, False),
        ("bbox", 0.8, True),
    ):
        verdict = judge(answered(0, reward=reward, answer_type=kind), rules)
        assert (verdict.kept, verdict.group) == (kept, kind)
    assert judge(answered(0, reward=0.7), rules).reason == "mean reward outside"


def test_a_prompt_without_scored_answers_is_not_kept() -> None:
    verdict = judge(answered(0, count=0), SelectionRules())
    assert (verdict.kept, verdict.reason) == (False, "no scored answer")


def test_wrong_rules_say_so() -> None:
    for wrong, message in (
        ({"min_pass_k": 1.5}, "between 0 and 1"),
        ({"k": 0}, "at least 1"),
        ({"window": (0.5, 0.5)}, "low to high"),
        ({"windows": {"a": (0, 1)}}, "window_by"),
    ):
        with pytest.raises(ConfigError, match=message):
            SelectionRules(**wrong)


def task(total: int = 30, calls: Path | None = None, die_at: int = 0) -> AnswerTask:
    """Prompts whose number of right answers is their row modulo 9."""

    def answer(start: int, end: int) -> Iterator[Answered]:
        for row in range(start, end):
            if calls is not None:
                with calls.open("a") as file:
                    file.write(f"{row}\n")
                if die_at and len(calls.read_text().splitlines()) == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield answered(row % 9, row=row, problem=f"question {row}")

    return AnswerTask(total, answer)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "CHUNK", 4)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("die_at", [1, 6, 30])
def test_a_killed_run_goes_on_and_selects_the_same(tmp_path: Path, die_at: int) -> None:
    calls = tmp_path / "calls"
    work = functools.partial(collect_answers, task(calls=calls, die_at=die_at), tmp_path / "killed", {}, quiet=True)
    assert run_in_child(work) == -signal.SIGKILL
    assert run_in_child(work) == 0
    assert len(calls.read_text().splitlines()) <= 30 + 4, "finished parts were not answered again"
    collect_answers(task(), tmp_path / "whole", {}, quiet=True)
    for name in ("killed", "whole"):
        select(read_answers(tmp_path / name), SelectionRules(), tmp_path / f"{name}_out")
    for file in sorted((tmp_path / "whole_out").iterdir()):
        assert file.read_bytes() == (tmp_path / "killed_out" / file.name).read_bytes()


@pytest.mark.usefixtures("small_chunks")
def test_shards_share_the_work_and_the_last_one_finishes(tmp_path: Path) -> None:
    assert [collect_answers(task(), tmp_path / "a", {}, shard=(n, 3), quiet=True) for n in (2, 0, 1)] == [
        False,
        False,
        True,
    ]
    assert collect_answers(task(), tmp_path / "b", {}, quiet=True)
    assert list(read_answers(tmp_path / "a")) == list(read_answers(tmp_path / "b"))
    with pytest.raises(DataError, match="other settings"):
        collect_answers(task(), tmp_path / "a", {"seed": 1}, quiet=True)
    with pytest.raises(ConfigError, match="one of 0 to 2"):
        collect_answers(task(), tmp_path / "a", {}, shard=(3, 3))


def test_what_was_kept_and_why_is_written_down(tmp_path: Path) -> None:
    report = select(
        (answered(row % 9, row=row, problem=f"<b>{row}</b>", kind="ab"[row % 2]) for row in range(90)),
        SelectionRules(window_by="kind"),
        tmp_path,
    )
    assert (report["prompts"], report["kept"]) == (90, 60)
    assert report["reasons"] == {"kept": 60, "hopeless": 10, "pass@1 above": 10, "solved": 10}
    scores = pq.read_table(tmp_path / "scores.parquet").to_pydict()
    assert len(scores["row"]) == 90
    assert sum(scores["kept"]) == 60
    assert scores["right"] == [row % 9 for row in range(90)]
    page = (tmp_path / "report.html").read_text()
    for text in ("60 of 90", "pass@1 against pass@k", "<circle", "hopeless", "By group", "&lt;b&gt;"):
        assert text in page
    assert "<b>" not in page
    file = write_jsonl(tmp_path / "data.jsonl", [{"problem": f"q{row}", "answer": "1"} for row in range(90)])
    (source,) = open_sources(DataConfig(train={"path": file, "rows": str(tmp_path / "picked.parquet")}))
    assert [source.row(index) for index in range(len(source))] == [row for row in range(90) if 1 <= row % 9 <= 6]


def test_a_row_that_is_scored_twice_and_a_column_that_no_prompt_has_are_refused(tmp_path: Path) -> None:
    twice = write_jsonl(tmp_path / "twice.jsonl", [{"scores": [1.0], "row": 5}, {"scores": [0.0], "row": 5}])
    with pytest.raises(DataError, match=r"twice.jsonl, row 1: row 5 has scores already"):
        list(read_scores(twice))
    with pytest.raises(ConfigError, match="window_by is 'kin', a column that none of the 3 prompts has"):
        select((answered(1, row=row, kind="a") for row in range(3)), SelectionRules(window_by="kin"), tmp_path)


def test_nothing_to_select_from_is_no_crash(tmp_path: Path) -> None:
    assert select([], SelectionRules(), tmp_path)["kept"] == 0
    assert pq.read_table(tmp_path / "picked.parquet").num_rows == 0


def test_scores_made_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"scores": [1.0, 0.0], "source": "a"}, {"scores": [0.4, 0.3], "source": "b", "row": 7}]
    path = write_jsonl(tmp_path / "scores.jsonl", rows)
    pq.write_table(
        pa.Table.from_pylist([{**row, "row": row.get("row", n)} for n, row in enumerate(rows)]),
        tmp_path / "scores.parquet",
    )
    for name in (path, str(tmp_path / "scores.parquet")):
        first, second = read_scores(name)
        assert (first.row, first.correct, first.columns["source"]) == (0, (True, False), "a")
        assert (second.row, second.correct) == (7, (False, False))
    assert main(["data", "select", "--scores", path, "--out", str(tmp_path / "out"), "--success", "0.4"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == 2
    assert main(["data", "select", "quickstart", "--scores", path, "--out", str(tmp_path / "both")]) == 2
    assert "a recipe to answer with ('quickstart') or --scores, not both" in capsys.readouterr().err
    for bad in ({"scores": "high"}, {"scores": [float("nan")]}, {}):
        with pytest.raises(DataError, match="row 0: 'scores' is a list of finite numbers"):
            list(read_scores(write_jsonl(tmp_path / "bad.jsonl", [bad])))
    for wrong in ("one", -1, 1.5):
        with pytest.raises(DataError, match="row 0: 'row' is the number of a row"):
            list(read_scores(write_jsonl(tmp_path / "bad.jsonl", [{"scores": [1], "row": wrong}])))
    for name, content, message in (
        ("cut.jsonl", b'{"scores": [1', "row 0: no valid JSON"),
        ("list.jsonl", b"[1]", "row 0: a row is a JSON object"),
        ("none.jsonl", None, "does not exist"),
        ("x.parquet", b"PAR1", "no parquet file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert main(["data", "select", "--scores", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 1
        assert message in capsys.readouterr().err
    windows = ["--window-by", "source", "--windows", '{"a": 3}']
    assert main(["data", "select", "--scores", path, "--out", str(tmp_path / "out"), *windows]) == 2
    assert "two numbers for a value" in capsys.readouterr().err
    assert main(["data", "select", "--out", str(tmp_path / "out")]) == 2
    assert "--scores" in capsys.readouterr().err


def test_the_command_answers_scores_and_selects_alike_in_any_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "CHUNK", 10)
    base = [
        "data",
        "select",
        "quickstart",
        "rollout.n=4",
        "reward.rules={format: 1.0}",
        "--limit",
        "25",
        "--min-pass-k",
        "0",
        "--keep-hopeless",
    ]
    assert main([*base, "--out", str(tmp_path / "one")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["prompts"] == 25
    for shard, batch in (("1/2", 7), ("0/2", 3)):
        call = [*base, "--out", str(tmp_path / "two"), "--shard", shard, f"data.prompts_per_step={batch}"]
        assert main(call) == 0
    for name in ("scores.parquet", "picked.parquet", "report.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    kept_answers = list(read_answers(tmp_path / "one" / "answers"))
    assert [one.row for one in kept_answers] == list(range(25))
    assert all(len(one.completions) == 4 and one.columns["problem"] for one in kept_answers)
    assert main([*base, "--out", str(tmp_path / "two"), "run.seed=4"]) == 1, "an override may stand behind a flag"
    assert "other settings (model.seed: 0, now 4)" in capsys.readouterr().err
    for wrong in (["--no-such-flag"], ["--x=3"], ["more"]):
        with pytest.raises(SystemExit):
            main([*base, "--out", str(tmp_path / "two"), *wrong])
    assert main([*base, "--out", str(tmp_path / "two"), "--stage", "wramup"]) == 2
    assert "did you mean 'warmup'" in capsys.readouterr().err


def test_prompts_with_fewer_answers_than_k_are_counted_and_k_above_all_is_refused(tmp_path: Path) -> None:
    some = [Answered(row, (1.0,) + (0.0,) * more, (True,) + (False,) * more) for row, more in enumerate((3, 7, 0))]
    report = select(some, SelectionRules(k=8), tmp_path)
    assert report["reasons"] == {"fewer than 8 answers": 2, "kept": 1}
    assert report["prompts_by_answers"] == {1: 1, 4: 1, 8: 1}
    with pytest.raises(ConfigError, match=r"pass@64 takes 64 answers .* more than 8; lower --k"):
        select(some, SelectionRules(k=64), tmp_path)


def test_the_widest_gaps_are_kept_and_ties_go_by_row(tmp_path: Path) -> None:
    some = [answered(right, row=row) for row, right in ((9, 2), (4, 1), (7, 1), (1, 5), (2, 1))]
    report = select(some, SelectionRules(widest=2), tmp_path)
    assert pq.read_table(tmp_path / "picked.parquet")["row"].to_pylist() == [4, 2]
    assert report["reasons"] == {"gap narrower": 3, "kept": 2}
    assert select(some, SelectionRules(widest=50), tmp_path)["kept"] == 5
    assert main(["data", "select", "--scores", "x", "--widest", "--out", str(tmp_path)]) == 2


@pytest.mark.parametrize("score", ["NaN", "1" + "0" * 400, '"x"', "null"])
def test_a_score_that_can_not_be_read_is_named(score: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"scores": [1, 0]}}\n{{"scores": [1, {score}]}}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, row 1: 'scores' is a list of finite numbers"):
        list(read_scores(str(tmp_path / "a.jsonl")))


def test_half_of_a_surrogate_pair_in_scores_is_written_as_an_escape(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(r'{"scores": [1, 0], "id": "\ud800", "problem": "\udfff"}')
    answers = list(read_scores(str(tmp_path / "a.jsonl")))
    assert select(answers, SelectionRules(window_by="id"), tmp_path)["prompts"] == 1
    assert pq.read_table(tmp_path / "scores.parquet")["group"].to_pylist() == ["\\ud800"]


def test_a_line_of_answers_that_is_broken_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "000000.jsonl").write_text('{"row": 0, "rew')
    with pytest.raises(DataError, match=r"000000\.jsonl, row 0: no answers that can be read .* remove that file"):
        list(selection.read_answers(tmp_path))
