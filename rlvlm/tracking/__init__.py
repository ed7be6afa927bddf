"""Progress, trackers, the run directory and the report. Names are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Answer": "rlvlm.tracking.samples",
    "PhaseTimer": "rlvlm.tracking.timing",
    "Recorder": "rlvlm.tracking.recorder",
    "RunDir": "rlvlm.tracking.rundir",
    "SampleBook": "rlvlm.tracking.samples",
    "StageProgress": "rlvlm.tracking.progress",
    "Summary": "rlvlm.tracking.rundir",
    "find_metric": "rlvlm.tracking.metrics",
    "reduce_metrics": "rlvlm.tracking.metrics",
    "register_tracker": "rlvlm.tracking.trackers",
    "write_report": "rlvlm.tracking.report",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rlvlm.tracking' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
