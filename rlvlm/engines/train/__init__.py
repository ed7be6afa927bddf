"""Train engines: ``local``; others join by name."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "LocalEngine": "rlvlm.engines.train.local",
        "OptimizerConfig": "rlvlm.engines.train.config",
        "TrainEngine": "rlvlm.engines.train.base",
        "register_train_engine": "rlvlm.engines.train.base",
    },
)
