"""Line charts as inline SVG: text in, text out, no script and nothing loaded from outside."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

Point = tuple[float, float]
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette: told apart with any colour vision."""

_WIDTH, _HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 8, 22
_MAX_POINTS = 240
_HUGE, _TINY = 1e30, 1e-30  # beyond these, differences and their powers of ten leave the range of floats


def line_chart(title: str, series: Mapping[str, Sequence[Point]], *, percent: bool = False) -> str:
    """A ``<figure>`` with one line per series, its ticks and a legend; empty text when no series has a finite point.

    Args:
        series: points ``(step, value)`` by name; values that are not finite leave a gap in the line.
        percent: writes the value axis in per cent and fixes it to 0..100 %.
    """
    drawn = {name: thin(points) for name, points in series.items()}
    finite = [point for points in drawn.values() for point in points if _drawable(point[1])]
    if not finite:
        return ""
    left, right = min(x for x, _ in finite), max(x for x, _ in finite)
    low, high = (0.0, 1.0) if percent else _padded(min(y for _, y in finite), max(y for _, y in finite))
    x_of = _Scale(left, right if right > left else left + 1, _LEFT, _WIDTH - _RIGHT)
    y_of = _Scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    body = [_grid(low, high, y_of, percent), _steps(left, right, x_of)]
    for (_, points), color in zip(drawn.items(), _colors(len(drawn)), strict=True):
        body.append(_line(points, x_of, y_of, color))
    legend = "".join(
        f'<span class="key"><i style="background:{color}"></i>{html.escape(name)} '
        f"<b>{spell(last_value(points), percent)}</b></span>"
        for (name, points), color in zip(series.items(), _colors(len(drawn)), strict=True)
    )
    label = html.escape(title, quote=True)
    return (
        f'<figure class="chart"><figcaption>{html.escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(body)}</svg>'
        f'<div class="legend">{legend}</div></figure>'
    )


def thin(points: Sequence[Point], most: int = _MAX_POINTS) -> list[Point]:
    """At most ``most`` points: means of neighbours, so that a long run's noise is averaged and not picked from."""
    stride = math.ceil(len(points) / most) if points else 1
    if stride == 1:
        return list(points)
    chunks = (points[start : start + stride] for start in range(0, len(points), stride))
    return [(sum(x for x, _ in chunk) / len(chunk), _mean_finite([y for _, y in chunk])) for chunk in chunks]


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About ``count`` round numbers (1, 2 or 5 times a power of ten apart) within ``low..high``."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def spell(value: float, percent: bool = False) -> str:
    """A number in few characters: per cent, thousands as ``12k``, small ones in scientific form."""
    if not math.isfinite(value):
        return "–"
    if percent:
        return f"{value:.0%}" if value in (0.0, 1.0) else f"{value:.1%}"
    if value == 0:
        return "0"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g}k" if abs(value) < 1e6 else f"{value:.2e}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def last_value(points: Sequence[Point]) -> float:
    """The last finite value; NaN when there is none."""
    return next((y for _, y in reversed(points) if math.isfinite(y)), math.nan)


def _grid(low: float, high: float, y_of: _Scale, percent: bool) -> str:
    marks = []
    for tick in ticks(low, high):
        y = y_of(tick)
        text = f"{tick:.0%}" if percent else spell(0.0 if abs(tick) < (high - low) * 1e-9 else tick)
        marks.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text x="{_LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>')
    return "".join(marks)


def _steps(left: float, right: float, x_of: _Scale) -> str:
    shown = (
        [left] if right == left else [tick for tick in ticks(left, right, 5) if tick == round(tick)] or [left, right]
    )
    return "".join(
        f'<text x="{x_of(step):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{step:g}</text>' for step in shown
    )


def _line(points: Sequence[Point], x_of: _Scale, y_of: _Scale, color: str) -> str:
    runs: list[list[str]] = [[]]
    for x, y in points:
        if _drawable(y):
            runs[-1].append(f"{x_of(x):.1f},{y_of(y):.1f}")
        elif runs[-1]:
            runs.append([])
    lines = [f'<polyline points="{" ".join(run)}" stroke="{color}"/>' for run in runs if len(run) > 1]
    dots = [
        f'<circle cx="{run[0].split(",")[0]}" cy="{run[0].split(",")[1]}" r="2.5" fill="{color}"/>'
        for run in runs
        if len(run) == 1
    ]
    return "".join(lines + dots)


class _Scale:
    """A linear map from a range of values to a range of pixels, held to the pixels' range."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._span, self._start, self._end = low, high - low, start, end

    def __call__(self, value: float) -> float:
        share = min(max((value - self._low) / self._span, 0.0), 1.0)
        return self._start + share * (self._end - self._start)


def _padded(low: float, high: float) -> tuple[float, float]:
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _TINY):  # a constant gets a band around it
        margin = abs(high) * 0.1 if abs(high) > _TINY else 1.0
        return low - margin, high + margin
    margin = (high - low) * 0.05
    return (0.0 if 0 <= low < (high - low) else low - margin), high + margin


def _drawable(value: float) -> bool:
    return abs(value) < _HUGE  # false for NaN too


def _mean_finite(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _colors(count: int) -> list[str]:
    return [COLORS[index % len(COLORS)] for index in range(count)]
