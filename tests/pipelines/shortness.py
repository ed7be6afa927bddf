"""A reward that any random model can learn from, and a tracker that breaks a run off."""

from __future__ import annotations

import os

from rlvlm.rewards import register_reward
from rlvlm.tracking.trackers import register_tracker


@register_reward("shortness")
def shortness(completion: str) -> float:
    """1 for an empty completion, less for a longer one."""
    return 1.0 / (1.0 + len(completion))


@register_tracker("break_off")
def break_off(step: int) -> None:
    """Raises at the step that the environment names, as a killed process would end."""
    if os.environ.get("BREAK_AT") == str(step):
        raise KeyboardInterrupt
