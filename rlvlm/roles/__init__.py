"""The roles of a training loop; each owns one responsibility and talks only through ``Batch``."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Actor": "rlvlm.roles.actor",
        "ActorConfig": "rlvlm.roles.config",
        "Reference": "rlvlm.roles.reference",
        "Reward": "rlvlm.roles.reward",
        "Rollout": "rlvlm.roles.rollout",
        "RolloutConfig": "rlvlm.roles.config",
    },
)
