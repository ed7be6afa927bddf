"""The page that shows what a selection kept and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlvlm.data import html

if TYPE_CHECKING:
    from rlvlm.data.selection import Answered, Verdict

_SHOWN = 400  # characters of a completion
_ANSWERS = 4


def selection_page(
    report: Mapping[str, Any], verdicts: Sequence[Verdict], examples: Mapping[str, Sequence[Answered]]
) -> str:
    """Counts by reason and group, histograms, the plane of pass@1 and pass@k, and some prompts of each reason."""
    scored = [verdict for verdict in verdicts if not math.isnan(verdict.pass_k)]
    kept = [verdict.kept for verdict in scored]
    rewards = [verdict.mean_reward for verdict in scored]
    low, high = min(rewards, default=0.0), max(rewards, default=1.0)
    return html.page(
        "Selection of prompts",
        html.paragraph(f"{report['kept']:,} of {report['prompts']:,} prompts are kept. Blue stands for kept ones."),
        html.section(
            "Why", html.table([{"reason": reason, "prompts": count} for reason, count in report["reasons"].items()])
        ),
        html.section(
            "Rules", html.table([{"rule": name, "value": str(value)} for name, value in report["rules"].items()])
        ),
        html.section(
            "pass@1 against pass@k",
            html.plane(_points(scored), "Each dot: prompts with these two rates.", "pass@1", "pass@k"),
        ),
        html.section(
            "Histograms",
            html.histogram([v.pass_1 for v in scored], "pass@1", low=0, high=1, kept=kept),
            html.histogram([v.gap for v in scored], "pass@k minus pass@1", low=0, high=1, kept=kept),
            html.histogram(rewards, "mean reward", low=low, high=high if high > low else low + 1, kept=kept),
        ),
        _groups(verdicts),
        html.section("Examples", *(_example(reason, one) for reason, some in examples.items() for one in some)),
    )


def _points(verdicts: Sequence[Verdict]) -> dict[tuple[float, float], tuple[int, int]]:
    points: dict[tuple[float, float], tuple[int, int]] = {}
    for verdict in verdicts:
        place = (round(verdict.pass_1, 4), round(verdict.pass_k, 4))
        total, kept = points.get(place, (0, 0))
        points[place] = (total + 1, kept + verdict.kept)
    return points


def _groups(verdicts: Sequence[Verdict]) -> str:
    totals = Counter(verdict.group for verdict in verdicts)
    if set(totals) <= {""}:
        return ""
    kept = Counter(verdict.group for verdict in verdicts if verdict.kept)
    rows = [{"group": group, "prompts": count, "kept": kept[group]} for group, count in totals.most_common()]
    return html.section("By group", html.table(rows))


def _example(reason: str, answered: Answered) -> str:
    problem = str(answered.columns.get("problem", ""))[:_SHOWN]
    rows = [
        {"reward": reward, "right": "yes" if right else "no", "answer": text[:_SHOWN]}
        for reward, right, text in zip(answered.rewards, answered.correct, answered.completions, strict=False)
    ]
    head = html.paragraph(f"{reason}: row {answered.row}. {problem}")
    return head + html.table(rows[:_ANSWERS])
