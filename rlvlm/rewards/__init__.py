"""Rewards: rules that score a completion, their composition, and the runner that keeps them in bounds."""

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "REWARDS": "rlvlm.rewards.rule",
        "register_reward": "rlvlm.rewards.rule",
        "RewardConfig": "rlvlm.rewards.config",
        "Runner": "rlvlm.rewards.runner",
        "CheckReport": "rlvlm.rewards.check",
        "check_reward": "rlvlm.rewards.check",
        "score": "rlvlm.rewards.api",
        "score_detail": "rlvlm.rewards.api",
    },
)
