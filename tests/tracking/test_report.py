"""The report is one page that loads nothing, shows what the run directory holds, and trusts no text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from rlvlm.tracking import Answer, Recorder, RunDir, SampleBook, Summary, write_report
from rlvlm.tracking.report import series_of
from rlvlm.tracking.samples import TrainingBook, drop_training_samples, load_samples, load_training_samples

HOSTILE = "</span><script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture
def run(tmp_path):
    run = RunDir.create(tmp_path / "run")
    with Recorder(run, show=False) as recorder:
        for stage in ("warmup", "rlvr"):
            recorder.begin(stage, total=3)
            for step in (1, 2, 3):
                with recorder.phase("update"):
                    pass
                recorder.log(
                    step,
                    {
                        "mean/reward": step / 3,
                        "mean/accuracy": step / 3,
                        "max/odd metric": float("nan") if step == 2 else 1.0,
                    },
                )
    book = SampleBook(run)
    picture = Image.new("RGBA", (42, 42), (255, 0, 0, 128))
    book.add("before", "u1", HOSTILE, HOSTILE, [picture], [Answer((("<answer>", 0.5), (HOSTILE, 0.25)), 0.0, False)])
    book.add("after", "u1", HOSTILE, HOSTILE, [picture], [Answer((("3", 0.99),), 1.0, True), Answer(())])
    book.write()
    run.config.write_text(f"actor:\n  note: {HOSTILE}\n")
    Summary(HOSTILE, "finished", 0.31, 0.93, 0.66, 0.97, 97.3, {"update": 50.1}, 3).write(run)
    return run


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_shows_numbers_curves_pictures_and_answers(run):
    page = Page(write_report(run).read_text())
    text = " ".join(page.text)
    assert "31.0% → 93.0%" in text
    assert "66.0% → 97.0%" in text
    assert "Curves: rlvr" in text
    assert text.index("Curves: rlvr") < text.index("sampled answers") < text.index("Curves: warmup")
    assert sum(tag == "polyline" for tag, _ in page.tags) >= 4
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 1
    assert images[0]["src"].startswith("data:image/png;base64,")
    shaded = [attrs["style"] for tag, attrs in page.tags if tag == "span" and "--p" in attrs.get("style", "")]
    assert shaded == ["--p:0.500", "--p:0.250", "--p:0.990"]


def test_no_text_becomes_markup_and_nothing_is_loaded_from_outside(run):
    text = write_report(run).read_text()
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object", "base")]
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    for _, attrs in page.tags:
        for name in ("src", "href"):
            assert attrs.get(name, "data:").startswith("data:")
    assert not re.search(r"url\(|@import|https?://", text)


def test_samples_survive_a_restart_and_pictures_are_kept_once(run):
    (sample,) = load_samples(run)
    assert sample.answers["before"][0].text == "<answer>" + HOSTILE
    assert len(list((run.path / "samples").iterdir())) == 1
    book = SampleBook(run)  # as after a resume
    book.add("later", "u1", "", "", [], [Answer((("4", 0.5),))])
    book.write()
    assert list(load_samples(run)[0].answers) == ["before", "after", "later"]


def test_a_report_of_an_empty_run_directory_is_a_page(tmp_path):
    page = write_report(RunDir.create(tmp_path / "run-7")).read_text()
    assert "<h1>run-7</h1>" in page


def test_a_missing_picture_is_said(run):
    for path in (run.path / "samples").iterdir():
        path.unlink()
    assert "picture missing" in write_report(run).read_text()


def test_series_keep_the_order_of_steps_and_gaps():
    series = series_of([{"stage": "a", "step": 1, "x": 1.0}, {"stage": "a", "step": 3, "x": None}])
    assert series["x"][0] == (1.0, 1.0)
    assert series["x"][1][1] != series["x"][1][1]


def test_training_answers_are_shown_escaped_with_every_score_and_the_last_line_of_a_step_counts(run):
    book = TrainingBook(run)
    for text in ("first", HOSTILE):  # as after a resume
        answer = Answer(((text, 0.5),), 0.0, False, {"number": 0.25, "format": 1.0})
        book.add("rlvr", 1, "u9", HOSTILE, "3", [Image.new("RGB", (42, 42))], [answer])
    (sample,) = load_training_samples(run)
    assert sample.answers["rlvr, step 1"][0].text == HOSTILE
    page = Page(write_report(run).read_text())
    text = " ".join(page.text)
    assert "Answers while training" in text
    assert "number 0.25 · format 1" in text
    assert not [tag for tag, _ in page.tags if tag == "script"]


def test_training_answers_behind_the_step_that_a_stage_goes_on_from_are_dropped_and_a_cut_line_with_them(run):
    book = TrainingBook(run)
    for stage, step in (("a", 1), ("a", 21), ("b", 1), ("b", 21)):
        book.add(stage, step, "train.0:7@0", "?", "3", [], [Answer((("4", 0.5),), 0.0, False)])
    whole = run.training_samples.read_text()
    with run.training_samples.open("a") as file:
        file.write('{"uid": "b/41/tr')
    drop_training_samples(run, "b", after=21)
    assert run.training_samples.read_text() == whole
    drop_training_samples(run, "b", after=20)
    assert [sample.uid for sample in load_training_samples(run)] == [
        f"{at}/train.0:7@0" for at in ("a/1", "a/21", "b/1")
    ]
    drop_training_samples(run, "a", after=0)
    assert [sample.uid for sample in load_training_samples(run)] == ["b/1/train.0:7@0"]


def test_the_title_says_name_date_command_and_model(run):
    run.config.write_text("# rlvlm train quickstart actor.epochs=2   (rlvlm 0.1.0)\nactor: {}\n")
    Summary("quickstart", started="2026-12-01 01:00", model="toy_llava").write(run)
    text = " ".join(Page(write_report(run).read_text()).text)
    for piece in (
        run.path.name,
        "quickstart",
        "2026-12-01 01:00",
        "toy_llava",
        "rlvlm train quickstart actor.epochs=2",
    ):
        assert piece in text


def test_a_long_stretch_without_spread_is_said(tmp_path):
    run = RunDir.create(tmp_path / "flat")
    with Recorder(run, show=False) as recorder:
        recorder.begin("rlvr", total=30)
        for step in range(1, 31):
            recorder.log(step, {"groups/no_spread": 1.0 if step > 5 else 0.5})
    assert "No spread in the rewards (rlvr, steps 6 to 30)" in " ".join(
        "".join(Page(write_report(run).read_text()).text).split()
    )
