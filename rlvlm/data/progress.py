"""Progress of long work over data: how much, how fast, how long still."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_REDRAW, _LINE = 0.2, 15.0  # seconds between updates on a terminal, and in a log


class Progress:
    """A counter with rate and ETA: one line redrawn on a terminal, a line every 15 s elsewhere.

    Args:
        label: what is being done.
        total: units of work; ``done`` of them were done by an earlier run.
        unit: their name.
        quiet: counts, and writes nothing.
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        done: int = 0,
        unit: str = "rows",
        quiet: bool = False,
        file: TextIO | None = None,
    ) -> None:
        self.label, self.total, self.done, self.unit = label, total, done, unit
        self._before, self._file = done, file or sys.stderr
        self._began = self._shown = time.monotonic()
        self._live, self._quiet = self._file.isatty(), quiet
        if done and done < total and not quiet:
            self._file.write(f"{label}: going on behind {done:,} of {total:,} {unit}\n")

    def add(self, count: int = 1) -> None:
        """Counts work as done."""
        self.done += count
        now = time.monotonic()
        if now - self._shown >= (_REDRAW if self._live else _LINE):
            self._shown = now
            self._write(end="\r" if self._live else "\n")

    def close(self) -> None:
        """Writes the last line, once."""
        if self._began >= 0:
            self._write(end="\n")
            self._began = -1.0

    def _write(self, end: str) -> None:
        if self._quiet:
            return
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = (self.done - self._before) / seconds
        left = (self.total - self.done) / rate if rate > 0 else float("inf")
        tail = f"ETA {clock(left)}" if self.done < self.total else f"{clock(seconds)}"
        share = self.done / self.total if self.total else 1.0
        self._file.write(
            f"{self.label}: {self.done:,}/{self.total:,} {self.unit} ({share:.0%}), {rate:,.0f}/s, {tail}    {end}"
        )
        self._file.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def clock(seconds: float) -> str:
    """Seconds as ``12 s``, ``3:05`` or ``2:03:05``; infinity as ``?``."""
    if seconds == float("inf"):
        return "?"
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
