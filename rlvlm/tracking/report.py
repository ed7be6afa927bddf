"""``report.html``: one page that holds everything it shows — numbers, curves, pictures — and loads nothing.

It is made from the run directory alone. All text that comes from a model, a record or a config is escaped: answers are
hostile input.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlvlm.tracking.metrics import split_key
from rlvlm.tracking.rundir import RunDir, read_metrics, read_summary, write_atomically
from rlvlm.tracking.samples import Answer, Sample, load_samples, load_training_samples
from rlvlm.tracking.svg import COLORS, Point, last_value, line_chart, spell

CHARTS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("Accuracy", ("accuracy", "eval/accuracy", "eval/greedy_accuracy"), True),
    ("Reward", ("reward", "rewards"), False),
    ("Spread of the rewards (standard deviation)", ("reward/std",), False),
    ("Loss", ("loss", "eval/loss"), False),
    ("Entropy of the policy (nats)", ("entropy",), False),
    ("Gradient norm", ("grad_norm",), False),
    ("Answer length (tokens)", ("response_length",), False),
)
"""The charts that come first: title, the metrics in it (without reduction prefix), and whether its axis is per cent."""

_FAMILIES = (
    ("reward/", "Reward by rule"),
    ("time/", "Seconds per phase"),
    ("memory/", "Peak memory per phase (MiB)"),
)
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(run: RunDir) -> Path:
    """Makes ``report.html`` from what the run directory holds; returns its path."""
    summary, records = read_summary(run), list(read_metrics(run.metrics))
    page = render(summary, records, load_samples(run), _read(run.config), run, load_training_samples(run))
    write_atomically(run.report, page)
    return run.report


def render(
    summary: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    samples: Sequence[Sample],
    config: str,
    run: RunDir,
    training: Sequence[Sample] = (),
) -> str:
    """The page as text.

    Args:
        records: lines of ``metrics.jsonl``.
        config: the text of ``config.yaml``.
        run: where the samples' pictures lie.
        training: groups of training answers.
    """
    name = html.escape(run.path.name)
    style = files("rlvlm.tracking").joinpath("report.css").read_text(encoding="utf-8")
    curves = _stages(records)
    sections = [
        f"<h1>{name}</h1>{_subtitle(summary)}{_command(config)}",
        _no_spread(records),
        _tiles(summary),
        *curves[:1],
        _samples(samples, run),
        _training(training, run),
        *curves[1:],
        _tables(summary),
        f"<details><summary>Config</summary><pre>{html.escape(config)}</pre></details>" if config else "",
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<style>{style}</style></head><body>{''.join(sections)}</body></html>\n"
    )


def _subtitle(summary: Mapping[str, Any]) -> str:
    parts = [str(summary.get(key) or "") for key in ("recipe", "model", "started", "status")]
    parts += [f"seed {summary['seed']}" if "seed" in summary else ""]
    parts += [
        f"{key.replace('_', ' ')} {_number(value)}"
        for key, value in dict(summary.get("details") or {}).items()
        if _plain(value)
    ]
    return f'<p class="sub">{html.escape(" · ".join(part for part in parts if part))}</p>'


def _command(config: str) -> str:
    """The command that the run was started with, which the config's first line holds."""
    first = config.partition("\n")[0]
    return f'<pre class="command">{html.escape(first.removeprefix("# "))}</pre>' if first.startswith("# rlvlm ") else ""


def _no_spread(records: Sequence[Mapping[str, Any]], least: int = 20) -> str:
    """A notice of the longest stretch of steps in which no group's rewards differed."""
    longest: tuple[int, int, str] = (0, 0, "")
    count = 0
    for record in records:
        flat = record.get("groups/no_spread") == 1.0 or record.get("reward/std") == 0.0
        count = count + 1 if flat else 0
        longest = max(longest, (count, int(record.get("step", 0)), str(record.get("stage", ""))))
    count, step, stage = longest
    if count < least:
        return ""
    where = f"{stage}, steps {step - count + 1} to {step}"
    return f"<p><b>No spread in the rewards</b> ({html.escape(where)}): answers to a prompt scored the same, so nothing was learned.</p>"


def _training(samples: Sequence[Sample], run: RunDir, most: int = 8) -> str:
    """Some groups of training answers, evenly from the first kept step to the last."""
    if not samples:
        return ""
    places = (
        range(len(samples))
        if len(samples) <= most
        else [round(i * (len(samples) - 1) / (most - 1)) for i in range(most)]
    )
    cards = "".join(_card(samples[place], run) for place in places)
    kept = f"{len(samples)} groups are kept in training_samples.jsonl."
    return f'<h2>Answers while training</h2><p class="sub">{kept}</p><div class="samples">{cards}</div>'


def _tiles(summary: Mapping[str, Any]) -> str:
    tiles = [
        _change("Sampled accuracy", summary.get("accuracy_before"), summary.get("accuracy_after")),
        _change("Greedy accuracy", summary.get("greedy_before"), summary.get("greedy_after")),
    ]
    if summary.get("train_seconds"):
        tiles.append(_tile("Training time", _duration(summary["train_seconds"]), "all stages, without evaluation"))
    if summary.get("steps"):
        tiles.append(_tile("Steps", f"{summary['steps']}", "of all stages together"))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _change(title: str, before: float | None, after: float | None) -> str:
    if before is None and after is None:
        return ""
    spelled = [f"{value:.1%}" if value is not None else "–" for value in (before, after)]
    return _tile(title, f"{spelled[0]} → {spelled[1]}", "before → after training")


def _tile(title: str, value: str, note: str) -> str:
    return f'<div class="tile"><span>{title}</span><b>{html.escape(value)}</b><small>{note}</small></div>'


def _stages(records: Sequence[Mapping[str, Any]]) -> list[str]:
    stages = list(dict.fromkeys(str(record.get("stage", "")) for record in records))
    sections = []
    for stage in reversed(stages):  # the last stage is what a reader came for
        own = [record for record in records if str(record.get("stage", "")) == stage]
        sections.append(f"<h2>Curves: {html.escape(stage)}</h2>{_charts(series_of(own))}")
    return sections


def series_of(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """Points ``(step, value)`` by metric key, in order; a value that was not finite (null) stays as a gap."""
    series: dict[str, list[Point]] = {}
    for record in records:
        for key, value in record.items():
            if key not in ("stage", "step"):
                series.setdefault(key, []).append((float(record["step"]), math.nan if value is None else float(value)))
    return series


def _charts(series: Mapping[str, Sequence[Point]]) -> str:
    bare = {split_key(key)[1]: key for key in series}
    first: list[str] = []
    used: set[str] = set()
    for title, names, percent in CHARTS:
        shown = {name: series[bare[name]] for name in names if name in bare}
        used.update(bare[name] for name in shown)
        first.append(line_chart(title, shown, percent=percent))
    for prefix, title in _FAMILIES:
        shown = {
            key.removeprefix(prefix): points
            for key, points in series.items()
            if key.startswith(prefix) and key != "reward/std"
        }
        largest = sorted(shown, key=lambda name: -last_value(shown[name]))[: len(COLORS)]
        shown = {name: points for name, points in shown.items() if name in largest}  # the others stand below
        used.update(prefix + name for name in shown)
        first.append(line_chart(title, shown))
    rest = "".join(line_chart(key, {key: series[key]}) for key in sorted(series) if key not in used)
    more = f'<details><summary>All other metrics</summary><div class="charts">{rest}</div></details>' if rest else ""
    return f'<div class="charts">{"".join(first)}</div>{more}'


def _samples(samples: Sequence[Sample], run: RunDir) -> str:
    if not samples:
        return ""
    scale = "".join(f'<i style="--p:{share}"></i> {share:.0%} ' for share in (0.1, 0.5, 1.0))
    cards = "".join(_card(sample, run) for sample in samples)
    return (
        "<h2>The same pictures, sampled answers</h2>"
        f'<p class="scale">Each token is shaded by the probability it was drawn with: {scale}</p>'
        f'<div class="samples">{cards}</div>'
    )


def _card(sample: Sample, run: RunDir) -> str:
    pictures = "".join(_picture(run.path / path) for path in sample.pictures)
    moments = "".join(
        f'<div class="moment"><h3>{html.escape(moment)}</h3>{"".join(map(_answer, answers))}</div>'
        for moment, answers in sample.answers.items()
    )
    return (
        f'<div class="sample"><div class="pictures">{pictures}</div>'
        f'<div class="question">{html.escape(sample.question)}</div>'
        f'<div><span class="expected">expected {html.escape(sample.expected)}</span>{moments}</div></div>'
    )


def _picture(path: Path) -> str:
    if not path.is_file():
        return "<small>picture missing</small>"
    from PIL import Image  # not at the top: a run without samples needs no imaging

    raw = path.read_bytes()
    with Image.open(io.BytesIO(raw)) as image:
        kind = ' class="small"' if max(image.size) <= 116 else ""  # tiny pictures are blown up: keep their pixels crisp
    return f'<img{kind} alt="" src="data:image/png;base64,{base64.b64encode(raw).decode()}">'


def _answer(answer: Answer) -> str:
    mark = {True: " right", False: " wrong", None: ""}[answer.correct]
    tokens = "".join(
        f'<span style="--p:{min(max(prob, 0.0), 1.0):.3f}" title="{prob:.3f}">{html.escape(text)}</span>'
        for text, prob in answer.tokens
    )
    scores = " · ".join(f"{name} {value:g}" for name, value in answer.scores.items())
    told = f'<small class="scores">{html.escape(scores)}</small>' if scores else ""
    score = f' title="score {answer.score:g}"' if answer.score is not None else ""
    return f'<div class="answer{mark}"{score}>{tokens or "<em>empty</em>"}{told}</div>'


def _tables(summary: Mapping[str, Any]) -> str:
    stages = {name: entry for name, entry in dict(summary.get("details") or {}).items() if isinstance(entry, Mapping)}
    seconds = dict(summary.get("seconds") or {})
    versions = dict(summary.get("versions") or {})
    told = {
        f"{stage}: {key.replace('_', ' ')}": _told(value)
        for stage, entry in stages.items()
        for key, value in entry.items()
    }
    parts = [
        f"<h2>Stages</h2>{_table(told)}" if told else "",
        f"<h2>Seconds per phase</h2>{_table({name: f'{value:.2f}' for name, value in seconds.items()})}"
        if seconds
        else "",
        f"<details><summary>Versions</summary>{_table(versions)}</details>" if versions else "",
    ]
    return "".join(parts)


def _table(rows: Mapping[str, Any]) -> str:
    cells = (
        f"<tr><td>{html.escape(str(name))}</td><td>{html.escape(str(value))}</td></tr>" for name, value in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_told(entry)}" for key, entry in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _number(value: Any) -> str:
    return spell(float(value)) if isinstance(value, (int, float)) else str(value)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
