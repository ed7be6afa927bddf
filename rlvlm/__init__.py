"""rlvlm: composable parts for reinforcement learning on vision-language models.

Names are loaded when they are first used, so that ``import rlvlm`` loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Batch": "rlvlm.batch",
    "register_field": "rlvlm.fields",
    "load_plugins": "rlvlm.registry",
    "Algorithm": "rlvlm.algorithm",
    "AlgorithmConfig": "rlvlm.algorithm_config",
    "register_advantage": "rlvlm.algos",
    "register_policy_loss": "rlvlm.algos",
    "register_value_loss": "rlvlm.algos",
    "register_kl": "rlvlm.algos",
    "register_regularizer": "rlvlm.algos",
    "register_aggregation": "rlvlm.algos",
    "register_correction": "rlvlm.algos",
    "register_filter": "rlvlm.algos",
    "TokenLoss": "rlvlm.algos",
    "register_reward": "rlvlm.rewards",
    "check_reward": "rlvlm.rewards",
    "Actor": "rlvlm.roles",
    "Reference": "rlvlm.roles",
    "Reward": "rlvlm.roles",
    "Rollout": "rlvlm.roles",
    "load_policy": "rlvlm.models",
    "Policy": "rlvlm.models",
    "load_recipe": "rlvlm.conf",
    "train": "rlvlm.pipelines",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from rlvlm.errors import nearest

        raise AttributeError(f"module 'rlvlm' has no attribute '{name}'{nearest(name, _HOME)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
