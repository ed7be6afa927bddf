"""Progress: plain lines in a pipe, a panel on a terminal."""

from __future__ import annotations

import io
import math

import pytest

from rlvlm.tracking.progress import StageProgress, clock, sparkline

METRICS = {
    "mean/reward": 0.5,
    "accuracy": 0.25,
    "loss": 0.125,
    "mean/entropy": 1.5,
    "grad_norm": 2.0,
    "time/generate": 0.1,
    "time/update": 0.2,
}


def test_a_plain_line_has_step_values_phases_and_eta():
    file = io.StringIO()
    progress = StageProgress("rlvr", 4, file=file)
    for step in (1, 2, 3, 4):
        progress.update(step, METRICS)
    progress.close()
    lines = file.getvalue().splitlines()
    assert len(lines) == 2  # the first and the last; those between came too soon
    for piece in ("rlvr 1/4", "reward 0.500", "accuracy 25.0%", "loss 0.1250", "entropy 1.500", "grad norm 2.000"):
        assert piece in lines[0]
    assert "generate 0.10s update 0.20s" in lines[0]
    assert "ETA 0:0" in lines[0]
    assert "\x1b" not in file.getvalue()


def test_every_line_is_shown_when_asked_and_long_ones_are_not_wrapped():
    file = io.StringIO()
    progress = StageProgress("sft", 3, every=0.0, file=file)
    for step in (1, 2, 3):
        progress.update(step, {f"time/a_rather_long_phase_{index}": 1.0 for index in range(20)})
    assert len(file.getvalue().splitlines()) == 3


def test_a_note_is_printed_as_it_is():
    file = io.StringIO()
    StageProgress("rlvr", 1, file=file).note("[bold]not markup[/bold]")
    assert file.getvalue() == "[bold]not markup[/bold]\n"


def test_the_panel_is_drawn_and_the_terminal_given_back():
    file = io.StringIO()
    progress = StageProgress("rlvr", 2, file=file, live=True)
    progress.update(1, METRICS)
    progress.update(2, {**METRICS, "loss": math.nan})
    progress.note("planner: shared prompt")
    progress.close()
    progress.close()
    text = file.getvalue()
    assert "entropy" in text
    assert "planner: shared prompt" in text


@pytest.mark.parametrize(
    ("values", "drawn"), [([0, 1], "▁█"), ([1, 1], "▁▁"), ([], ""), ([0, math.nan, 7], "▁ █"), ([math.inf], "")]
)
def test_sparkline(values, drawn):
    assert sparkline(values) == drawn


def test_clock_spells_minutes_and_hours():
    assert [clock(5.4), clock(65), clock(3600 + 120 + 3), clock(-1)] == ["0:05", "1:05", "1:02:03", "0:00"]
