"""Runs Python that a model wrote, in a process that has given up what it does not need."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Limits": "rlvlm.rewards.sandbox.run",
        "Run": "rlvlm.rewards.sandbox.run",
        "run_python": "rlvlm.rewards.sandbox.run",
    },
)
