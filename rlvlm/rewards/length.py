"""``length`` and ``overlong``: how long an answer may be."""

from __future__ import annotations

from typing import Any, Literal

from rlvlm import ranges
from rlvlm.errors import RewardError
from rlvlm.rewards.rule import register_reward


@register_reward(
    "length",
    isolated=False,
    ranges=(ranges.at_least(0, "at_least"), ranges.at_least(1, "at_most")),
    ordered=(("at_least", "at_most"),),
    example={"completion": "a short answer", "options": {"at_most": 20, "unit": "words"}},
)
def length(
    completion: str,
    response_length: Any = None,
    *,
    at_least: int = 0,
    at_most: int | None = None,
    unit: Literal["tokens", "words", "characters"] = "tokens",
) -> float:
    """1 within the bounds; below them length / at_least, above them at_most / length.

    Args:
        at_least, at_most: bounds, in ``unit``; ``None`` sets no upper bound.
        unit: ``tokens`` (of the policy), ``words`` or ``characters``.

    Raises ``RewardError`` for tokens where their number is unknown.
    """
    if unit == "tokens":
        size = _known("length", response_length)
    else:
        size = len(completion.split()) if unit == "words" else len(completion)
    if size < at_least:
        return size / at_least
    return 1.0 if at_most is None or size <= at_most else at_most / size


@register_reward(
    "overlong",
    isolated=False,
    ranges=(ranges.at_least(1, "buffer", "limit"),),
    range=(-1.0, 0.0),
    example={"completion": "…", "record": {"response_length": 950, "max_length": 1000}, "options": {"buffer": 100}},
)
def overlong(response_length: Any = None, max_length: Any = None, *, buffer: int, limit: int | None = None) -> float:
    """0 up to ``limit`` − ``buffer`` tokens, then down to −1 at the limit and beyond.

    Args:
        buffer: tokens before the limit in which the penalty grows.
        limit: token limit; ``None`` takes the rollout's own.

    Raises ``RewardError`` where the number of tokens or the limit is unknown. Source: DAPO's soft overlong punishment (2503.14476).
    """
    size = _known("overlong", response_length)
    most = limit if limit is not None else max_length
    if most is None:
        raise RewardError("reward 'overlong' knows no token limit; set its option 'limit'.")
    return -min(1.0, max(0.0, (size - (most - buffer)) / buffer))


def _known(rule: str, tokens: Any) -> int:
    if tokens is None:
        raise RewardError(
            f"reward '{rule}' needs the number of tokens, which is unknown here; give 'response_length' or another unit."
        )
    return int(tokens)
