"""Plain report pages: one self-contained HTML file with tables and SVG charts, no scripts, no network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; } figcaption { color: #5a6776; font-size: .9rem; }
svg text { font: 11px system-ui, sans-serif; fill: #5a6776; }
pre { white-space: pre-wrap; background: #f4f6f8; padding: .5rem; margin: .2rem 0; }
"""
_WIDTH, _HEIGHT, _MARGIN = 560, 240, 44
_BLUE, _ORANGE = "#2f6fb0", "#d9822b"


def page(title: str, *sections: str) -> str:
    """A whole document."""
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title><style>{_STYLE}</style></head>'
    return f"{head}<body><h1>{_text(title)}</h1>{''.join(sections)}</body></html>\n"


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it."""
    return f"<h2>{_text(title)}</h2>{''.join(parts)}"


def paragraph(text: str) -> str:
    """Plain text."""
    return f"<p>{_text(text)}</p>"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys; numbers are set to the right."""
    if not rows:
        return ""
    head = "".join(f"<th>{_text(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(_cell(value) for value in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"<td>{_text(str(value))}</td>"
    return f'<td class="number">{value:,}</td>' if isinstance(value, int) else f'<td class="number">{value:.4f}</td>'


def histogram(
    values: Sequence[float],
    caption: str,
    *,
    low: float,
    high: float,
    bins: int = 20,
    kept: Sequence[bool] | None = None,
) -> str:
    """Bars of how many values lie in each of ``bins`` equal steps; with ``kept`` the kept ones stand out."""
    edges = np.linspace(low, high, bins + 1)
    everything = np.histogram(values, edges)[0]
    chosen = everything if kept is None else np.histogram(np.asarray(values)[np.asarray(kept, bool)], edges)[0]
    top = max(int(everything.max(initial=0)), 1)
    wide = (_WIDTH - 2 * _MARGIN) / bins
    bars = []
    for place, (all_of_it, kept_of_it) in enumerate(zip(everything.tolist(), chosen.tolist(), strict=True)):
        for count, colour in ((all_of_it, "#c9d6e4" if kept is not None else _BLUE), (kept_of_it, _BLUE)):
            tall = (_HEIGHT - 2 * _MARGIN) * count / top
            corner = f'x="{_MARGIN + place * wide:.1f}" y="{_HEIGHT - _MARGIN - tall:.1f}"'
            bars.append(f'<rect {corner} width="{wide - 1:.1f}" height="{tall:.1f}" fill="{colour}"/>')
    marks = _axis_marks(f"{low:g}", f"{high:g}", f"{top:,}")
    return _figure("".join(bars) + marks, caption)


def plane(points: Mapping[tuple[float, float], tuple[int, int]], caption: str, across: str, up: str) -> str:
    """Dots in the unit square, as large as the number of prompts there, darker by the share that was kept."""
    most = max((total for total, _ in points.values()), default=1)
    side = _HEIGHT * 1.4
    dots = []
    for (x, y), (total, kept) in sorted(points.items()):
        radius = 2 + 10 * (total / most) ** 0.5
        shade = _BLUE if 2 * kept >= total else "#c9d6e4"
        place = f'cx="{_MARGIN + x * side:.1f}" cy="{_MARGIN / 2 + (1 - y) * side:.1f}"'
        dots.append(
            f'<circle {place} r="{radius:.1f}" fill="{shade}" fill-opacity=".8"><title>{total} prompts, {kept} kept</title></circle>'
        )
    left, bottom = _MARGIN, _MARGIN / 2 + side
    frame = f'<rect x="{left}" y="{_MARGIN / 2}" width="{side}" height="{side}" fill="none" stroke="#c9d6e4"/>'
    names = f'<text x="{left + side / 2}" y="{bottom + 16}" text-anchor="middle">{_text(across)}</text>'
    names += f'<text x="{left - 8}" y="{_MARGIN / 2 + side / 2}" text-anchor="end">{_text(up)}</text>'
    return _figure(frame + "".join(dots) + names, caption, width=side + 2 * _MARGIN, height=side + _MARGIN)


def long_tail(before: Sequence[int], after: Sequence[int], caption: str) -> str:
    """Counts from the most frequent to the rarest, both axes logarithmic."""
    lines = []
    top = np.log10(max(max(before, default=1), max(after, default=1), 2))
    for counts, colour in ((before, "#8a97a6"), (after, _ORANGE)):
        ordered = np.sort(np.asarray(counts))[::-1]
        picked = (
            np.unique(np.geomspace(1, max(len(ordered), 1), 200).astype(int)) - 1 if len(ordered) else np.zeros(0, int)
        )
        across = np.log10(picked + 1) / max(np.log10(max(len(ordered), 2)), 1e-9)
        up = np.log10(np.maximum(ordered[picked], 0.5)) / top
        spots = " ".join(
            f"{_MARGIN + x * (_WIDTH - 2 * _MARGIN):.1f},{_HEIGHT - _MARGIN - max(y, 0) * (_HEIGHT - 2 * _MARGIN):.1f}"
            for x, y in zip(across, up, strict=True)
        )
        lines.append(f'<polyline points="{spots}" fill="none" stroke="{colour}" stroke-width="2"/>')
    marks = _axis_marks("1st concept", f"{len(before):,}th", f"{max(max(before, default=0), max(after, default=0)):,}")
    key = f'<text x="{_WIDTH - 150}" y="20">grey before, <tspan fill="{_ORANGE}">orange after</tspan></text>'
    return _figure("".join(lines) + marks + key, caption)


def _axis_marks(left: str, right: str, top: str) -> str:
    base = _HEIGHT - _MARGIN
    return (
        f'<line x1="{_MARGIN}" y1="{base}" x2="{_WIDTH - _MARGIN}" y2="{base}" stroke="#8a97a6"/>'
        f'<text x="{_MARGIN}" y="{base + 16}">{_text(left)}</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{base + 16}" text-anchor="end">{_text(right)}</text>'
        f'<text x="{_MARGIN - 6}" y="{_MARGIN}" text-anchor="end">{_text(top)}</text>'
    )


def _figure(drawing: str, caption: str, width: float = _WIDTH, height: float = _HEIGHT) -> str:
    picture = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" aria-label="{_text(caption)}">{drawing}</svg>'
    return f"<figure>{picture}<figcaption>{_text(caption)}</figcaption></figure>"


def _text(value: str) -> str:
    return html.escape(value, quote=True)
