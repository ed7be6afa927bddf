"""A reward function as EasyR1 has them: one completion in, a dict with ``overall`` out."""

from __future__ import annotations

from typing import Any

REWARD_TYPE = "sequential"


def graded(reward_input: dict[str, Any]) -> dict[str, float]:
    """Half right, whatever was said."""
    return {"overall": 1.0 / (1 + len(reward_input["response"])), "accuracy": 0.5, "format": 1.0}
