"""Concept balance as a whole: nearest concepts, weights, a balanced choice, and what that changed."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rlvlm.data import html
from rlvlm.data.concept_balance.resample import concept_counts, coverage, gini, inverse_weights, resample
from rlvlm.data.concept_balance.vocabulary import Vocabulary
from rlvlm.data.jobs import write_atomic
from rlvlm.errors import ConfigError

_SHOWN = 15
_ROWS = 1 << 20  # of a parquet row group


@dataclass(frozen=True)
class BalanceSettings:
    """How to draw.

    Attributes:
        count: rows to draw.
        replace: whether a row may be drawn several times.
        power: weights are concept counts to the minus this: 1 balances, 0 leaves the data as it is.
        seed: of the draws.
    """

    count: int
    replace: bool = False
    power: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"at least 1 row is drawn, got {self.count}.")
        if not 0 <= self.power <= 2:
            raise ConfigError(f"power is between 0 (as it is) and 2, got {self.power}.")

    def check_rows(self, rows: int) -> None:
        """Raises ``ConfigError`` where so many rows are too few to draw from; asked before the search, which takes long."""
        if not self.replace and self.count > rows:
            raise ConfigError(
                f"{self.count} rows can't be drawn without replacement from {rows}; draw fewer, or with replacement."
            )


def balance(
    nearest: NDArray[np.int32], vocabulary: Vocabulary, settings: BalanceSettings, folder: str | Path
) -> dict[str, Any]:
    """Draws a balanced choice and writes what it is and what it did.

    ``picked.parquet``: ``row`` and ``weight`` of each row drawn (a source's ``rows``). ``weights.parquet``: the weight of every
    row. ``concepts.parquet``: each concept's pictures before and after. ``long_tail.png`` and ``report.html`` show them.

    Returns the report: Gini coefficient and coverage of all rows (before), of a random draw of the same size (random), and of
    the balanced one (after). Equal input gives equal files.
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    before = concept_counts(nearest, len(vocabulary.concepts))
    weights = inverse_weights(nearest, before, settings.power)
    rows = resample(weights, settings.count, replace=settings.replace, seed=settings.seed)
    after = concept_counts(nearest, len(vocabulary.concepts), rows)
    able = (weights > 0).astype(np.float64)
    unweighted = resample(able / able.sum(), settings.count, replace=settings.replace, seed=settings.seed)
    plain = concept_counts(nearest, len(vocabulary.concepts), unweighted)
    _write_table(out / "picked.parquet", {"row": rows, "weight": weights[rows]})
    _write_table(out / "weights.parquet", {"row": np.arange(len(weights)), "weight": weights})
    _write_table(out / "concepts.parquet", {"concept": vocabulary.concepts, "before": before, "after": after})
    report = {
        "rows": len(nearest),
        "without_concepts": int((nearest[:, 0] < 0).sum()),
        "picked": len(rows),
        "different_rows_picked": len(np.unique(rows)),
        "concepts": len(vocabulary.concepts),
        "top_k": nearest.shape[1],
        "gini_before": gini(before),
        "gini_random": gini(plain),
        "gini_after": gini(after),
        "coverage_before": coverage(before),
        "coverage_random": coverage(plain),
        "coverage_after": coverage(after),
        **asdict(settings),
    }
    write_atomic(out / "long_tail.png", lambda path: _draw_long_tail(before, after, path))
    write_atomic(out / "report.html", _page(report, vocabulary, before, after).encode())
    write_atomic(out / "report.json", json.dumps(report, indent=1).encode())
    return report


def _write_table(path: Path, columns: dict[str, Any]) -> None:
    write_atomic(path, lambda partial: pq.write_table(pa.table(columns), partial, row_group_size=_ROWS))


def _draw_long_tail(before: NDArray[np.int64], after: NDArray[np.int64], path: Path) -> None:
    """Both curves of counts from the most frequent concept to the rarest."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        raise ConfigError("the long-tail picture takes matplotlib: pip install 'rlvlm[data]'.") from error
    matplotlib.use("Agg")
    figures = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for counts, label in ((before, f"before (Gini {gini(before):.3f})"), (after, f"after (Gini {gini(after):.3f})")):
        axes.plot(np.arange(1, len(counts) + 1), np.sort(counts)[::-1], label=label)
    axes.set(xscale="log", yscale="symlog", xlabel="concept, most frequent first", ylabel="pictures")
    axes.set_ylim(0, 1.5 * max(before.max(initial=1), after.max(initial=1)))
    axes.legend(frameon=False)
    figure.savefig(path, format="png", metadata={"Software": None})


def _page(report: dict[str, Any], vocabulary: Vocabulary, before: NDArray[np.int64], after: NDArray[np.int64]) -> str:
    order = np.argsort(-before, kind="stable")
    return html.page(
        "Concept balance",
        html.table([{"what": name.replace("_", " "), "value": value} for name, value in report.items()]),
        html.section(
            "The long tail",
            html.long_tail(before.tolist(), after.tolist(), "Pictures of each concept, both axes logarithmic."),
        ),
        html.section("The most frequent concepts", html.table(_rows(order[:_SHOWN], vocabulary, before, after))),
        html.section("The rarest concepts", html.table(_rows(order[::-1][:_SHOWN], vocabulary, before, after))),
    )


def _rows(
    order: NDArray[np.int64], vocabulary: Vocabulary, before: NDArray[np.int64], after: NDArray[np.int64]
) -> list[dict[str, Any]]:
    return [
        {"concept": vocabulary.concepts[c], "before": int(before[c]), "after": int(after[c])} for c in order.tolist()
    ]
