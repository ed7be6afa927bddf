"""Training loops: reinforcement learning, supervised stages, and whole recipes."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "GatesConfig": "rlvlm.pipelines.config",
        "RLVR": "rlvlm.pipelines.rlvr",
        "RunConfig": "rlvlm.pipelines.config",
        "Stage": "rlvlm.pipelines.config",
        "plan_passes": "rlvlm.pipelines.planner",
        "register_pipeline": "rlvlm.pipelines.stages",
        "train": "rlvlm.pipelines.run",
    },
)
