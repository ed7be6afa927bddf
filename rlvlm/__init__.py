"""rlvlm: composable parts for reinforcement learning on vision-language models.

Names are loaded when they are first used, so that ``import rlvlm`` loads neither torch nor transformers.
"""

from __future__ import annotations

from rlvlm._lazy import attach

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Batch": "rlvlm.batch",
        "register_field": "rlvlm.fields",
        "load_plugins": "rlvlm.registry",
        "Algorithm": "rlvlm.algorithm",
        "Loader": "rlvlm.data",
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
    },
)
