"""Progress, trackers, the run directory and the report."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
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
    },
)
