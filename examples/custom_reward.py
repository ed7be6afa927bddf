"""A reward of your own, by decorator: ``rlvlm train quickstart plugins=[examples/custom_reward.py] reward.rules={close:1.0}``.

Parameters name what the rule reads: the parsed answer, the record's columns (``answer``, ``problem``, …); keyword-only ones
are its options, and so its YAML keys: ``reward.rules={close:{weight:1.0,slack:2}}``.
"""

from rlvlm import register_reward


@register_reward("close")
def close(answer_text: str, answer: str, *, slack: int = 1) -> float:
    """1 for the right count, half of it for one that is off by at most ``slack``."""
    if not answer_text.strip().isdigit():
        return 0.0
    off = abs(int(answer_text) - int(answer))
    return 1.0 if off == 0 else 0.5 if off <= slack else 0.0
