"""``math``: numbers, fractions, percent, units, intervals, sets, matrices, equations and formulas that mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.math_compare import same_answer
from rlvlm.rewards.math_shapes import read_shape
from rlvlm.rewards.math_text import canonical
from rlvlm.rewards.rule import register_reward
from rlvlm.rewards.text import golds_of


@register_reward(
    "math",
    isolated=True,
    imports=("math_verify", "sympy"),
    example={"completion": r"<think>Half of it.</think> \boxed{\frac{2}{4}}", "answer": "0.5"},
)
def math(answer_text: str, candidates: Any, answer: Any) -> float:
    """1 when the answer means the same as the gold (or any of several), else 0; of several candidates all must.

    What an answer is called does not matter where the gold does not name it: ``|AB| = 1`` and ``(p, q) = (3, 2)`` are 1 and
    (3, 2). Units that one side leaves out do not matter either.

    Exact: 0.001 is not 0.004, 50 % is 0.5 and not 50, a list needs all its values, an interval its brackets. A decimal
    of six or more significant digits stands for the irrational number that rounds to it. What can't be read as
    mathematics is compared as text, and what could take long to evaluate is not evaluated.

    Raises ``RewardError`` when the gold is blank, or nothing but TeX that shows nothing.

    Built on math-verify and sympy.
    """
    golds = golds_of(answer, short=True)
    if not all(map(canonical, golds)):
        raise RewardError(
            f"the record's gold answer {str(answer)[:80]!r} holds no mathematics and no word; mend the record."
        )
    texts = [answer_text] if answer_text else list(candidates)
    if not texts:
        return 0.0
    if any(all(same_answer(gold, text) for text in texts) for gold in golds):
        return 1.0
    return float(len(texts) > 1 and any(_is_list_of(gold, texts) for gold in golds))


def _is_list_of(gold: str, texts: Sequence[str]) -> bool:
    """Whether a gold of several values is given one value a box: ``\\boxed{6}`` and ``\\boxed{8}`` for "6 and 8"."""
    shape = read_shape(canonical(gold))
    return shape.kind in ("list", "set") and len(shape.parts) == len(texts) and same_answer(gold, ", ".join(texts))
