"""Live progress of a stage: a panel that redraws itself on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from rlvlm.tracking.metrics import find_metric

_SHOWN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("reward", ("reward", "rewards"), "{:.3f}"),
    ("accuracy", ("accuracy", "eval/accuracy"), "{:.1%}"),
    ("loss", ("loss",), "{:.4f}"),
    ("entropy", ("entropy",), "{:.3f}"),
    ("grad norm", ("grad_norm",), "{:.3f}"),
    ("lr", ("lr",), "{:.2e}"),
    ("epoch", ("epoch",), "{:.2f}"),
)
_NOTICED = 0.005  # seconds from which a phase is worth its place in the line
_SPARKS = "▁▂▃▄▅▆▇█"
_WIDTH = 40  # values in a sparkline


class StageProgress:
    """Shows step, reward, accuracy, loss, entropy, gradient norm, learning rate, epoch, time per phase and time to go.

    On a terminal one panel is redrawn in place; elsewhere (a pipe, a log file) a plain line is written at most every
    ``every`` seconds, and always for the first and the last step.

    Args:
        total: steps of the stage.
        every: seconds between plain lines.
        file: where to write; standard error, so that standard output stays free for results.
    """

    def __init__(
        self,
        stage: str,
        total: int,
        *,
        start: int = 0,
        every: float = 2.0,
        file: TextIO | None = None,
        live: bool | None = None,
    ) -> None:
        self.stage, self.total, self._start, self._every = stage, total, start, every
        self._console = Console(file=file or sys.stderr)
        self._began = time.monotonic()
        self._last_line = float("-inf")
        self._history: dict[str, list[float]] = {}
        self._bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[eta]}")
        )
        self._task = self._bar.add_task(stage, total=max(total, 1), completed=start, eta="")
        on_terminal = self._console.is_terminal if live is None else live
        self._live = Live(self._bar, console=self._console, refresh_per_second=8) if on_terminal else None
        if self._live is not None:
            self._live.start()

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows ``metrics`` as those of ``step`` (counted from 1)."""
        for label, names, _ in _SHOWN:
            value = find_metric(metrics, *names)
            if value is not None:
                self._history.setdefault(label, []).append(value)
        values = {
            label: history[-1] for label, history in self._history.items()
        }  # an evaluation's result stays in sight
        phases = {key.removeprefix("time/"): value for key, value in metrics.items() if key.startswith("time/")}
        phases = {name: seconds for name, seconds in phases.items() if seconds >= _NOTICED}
        if self._live is not None:
            self._bar.update(self._task, completed=step, eta=f"ETA {clock(self._remaining(step))}")
            self._live.update(Group(self._bar, self._panel(values, phases)))
            return
        now = time.monotonic()
        if now - self._last_line >= self._every or step in (self._start + 1, self.total):
            self._last_line = now
            self._console.print(self._line(step, values, phases), markup=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Writes one line that stays: what the planner decided, an evaluation's result."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stops redrawing; the last panel stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _remaining(self, step: int) -> float:
        done = step - self._start
        return (time.monotonic() - self._began) / done * (self.total - step) if done > 0 else 0.0

    def _line(self, step: int, values: Mapping[str, float], phases: Mapping[str, float]) -> str:
        parts = [f"{self.stage} {step}/{self.total}"]
        parts += [f"{label} {form.format(values[label])}" for label, _, form in _SHOWN if label in values]
        if phases:
            parts.append(" ".join(f"{name} {seconds:.2f}s" for name, seconds in phases.items()))
        return "  ".join([*parts, f"ETA {clock(self._remaining(step))}"])

    def _panel(self, values: Mapping[str, float], phases: Mapping[str, float]) -> Table:
        table = Table.grid(padding=(0, 2))
        for label, _, form in _SHOWN:
            if label in values:
                table.add_row(
                    Text(label, style="dim"),
                    form.format(values[label]),
                    Text(sparkline(self._history[label]), style="cyan"),
                )
        if phases:
            total = sum(phases.values())
            spelled = "  ".join(f"{name} {seconds:.2f}s" for name, seconds in phases.items())
            table.add_row(Text("time", style="dim"), f"{total:.2f}s", Text(spelled, style="dim"))
        return table


def sparkline(values: list[float], width: int = _WIDTH) -> str:
    """The last ``width`` values as a row of bars between their own minimum and maximum; values that are not finite are gaps."""
    shown = values[-width:]
    finite = [value for value in shown if value - value == 0.0]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] if value - value == 0.0 else " " for value in shown)


def clock(seconds: float) -> str:
    """Seconds as ``m:ss``, or ``h:mm:ss`` from an hour on."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
