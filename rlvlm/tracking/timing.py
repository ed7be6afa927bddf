"""Wall-clock seconds and peak memory of each phase of a step: ``time/<phase>`` and ``memory/<phase>``."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MIB = 1024**2
_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class PhaseTimer:
    """Times named phases; a phase may be entered several times in a step, and phases may nest.

    A nested phase's seconds count in the outer phase too. Memory is the peak while the phase ran, in MiB: of the CUDA
    device once CUDA is in use, else of the process (resident set).
    """

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._open: list[str] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time and the peak memory of the ``with`` block towards ``name``."""
        _synchronize()
        self._fold_peak()
        self._open.append(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            _synchronize()
            elapsed = time.perf_counter() - start
            self._fold_peak()
            self._open.pop()
            self._seconds[name] = self._seconds.get(name, 0.0) + elapsed
            self.totals[name] = self.totals.get(name, 0.0) + elapsed

    def collect(self) -> dict[str, float]:
        """The metrics of the step so far (``time/…`` in seconds, ``memory/…`` in MiB); the next step starts from nothing."""
        metrics = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        metrics.update({f"memory/{name}": peak for name, peak in self._peaks.items() if name in self._seconds})
        self._seconds = {}
        self._peaks = {name: peak for name, peak in self._peaks.items() if name in self._open}
        return metrics

    def _fold_peak(self) -> None:
        """Credits the peak since the last boundary to every open phase, then starts a new peak."""
        if self._open:
            peak = peak_memory()
            for name in self._open:
                self._peaks[name] = max(self._peaks.get(name, 0.0), peak)
        reset_peak_memory()


def peak_memory() -> float:
    """Peak memory in MiB since :func:`reset_peak_memory`: of the CUDA device when in use, else of this process."""
    cuda = _cuda()
    if cuda is not None:
        return cuda.max_memory_allocated() / MIB
    for line in _lines(_STATUS):
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) / 1024
    import resource  # no /proc: the peak since the process began is the best there is

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024


def reset_peak_memory() -> None:
    """Starts a new peak; where the system can't (no ``/proc``), peaks go on from the start of the process."""
    cuda = _cuda()
    if cuda is not None:
        cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text("5")  # resets VmHWM and nothing else


def _synchronize() -> None:
    cuda = _cuda()
    if cuda is not None:
        cuda.synchronize()  # kernels run behind the host; without this a phase's time lands in the next one


def _cuda() -> Any | None:
    torch = sys.modules.get("torch")  # never the reason that torch is imported
    return torch.cuda if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
