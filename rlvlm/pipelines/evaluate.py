"""Held-out accuracy: one answer for each prompt, sampled as training samples, or greedy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from rlvlm.batch import Batch
from rlvlm.roles.reward import Reward
from rlvlm.roles.rollout import Rollout


@dataclass
class Evaluation:
    """What an evaluation found.

    Attributes:
        accuracy: mean score of the accuracy rule; ``None`` where no answer could be scored.
        by_rule: mean score of each rule.
        prompts: how many answers were scored.
        errors: answers whose reward failed; they count in no mean.
        length: mean length in tokens of the answers that were scored.
        rows: the first answers, for the report.
    """

    accuracy: float | None = None
    by_rule: dict[str, float] = field(default_factory=dict)
    prompts: int = 0
    errors: int = 0
    length: float = 0.0
    rows: list[Batch] = field(default_factory=list)

    def metrics(self, prefix: str) -> dict[str, float]:
        """As metrics, such as ``eval/accuracy`` and ``eval/rule/format``."""
        rules = {f"{prefix}rule/{name}": mean for name, mean in self.by_rule.items()}
        accuracy = math.nan if self.accuracy is None else self.accuracy  # written as null
        counts = {f"{prefix}prompts": float(self.prompts), f"{prefix}reward_errors": float(self.errors)}
        return {f"{prefix}accuracy": accuracy, f"{prefix}response_length": self.length, **counts, **rules}


def evaluate(
    rollout: Rollout, reward: Reward, prompts: Iterable[Batch], *, rule: str, greedy: bool, keep_rows: int = 0
) -> Evaluation:
    """Answers every prompt once and scores the answers.

    Args:
        rule: the reward rule whose mean is the accuracy.
        greedy: the likeliest answer, instead of a sampled one; the noise of sampled ones is the same every time.
        keep_rows: answers to keep for the report.
    """
    result = Evaluation()
    sums: dict[str, float] = {}
    tokens = 0
    for batch in prompts:
        answers = rollout.generate_once(batch, greedy=greedy)
        scored = reward.score(answers)
        result.errors += len(answers) - len(scored)
        result.prompts += len(scored)
        tokens += int(scored["loss_mask"].sum())
        for key in scored.keys():
            if isinstance(key, tuple) and key[0] == "scores_by_rule":
                sums[key[1]] = sums.get(key[1], 0.0) + float(scored[key].double().sum())
        missing = keep_rows - sum(map(len, result.rows))
        if missing > 0:
            result.rows.append(scored.index(torch.arange(min(missing, len(scored)))))
    if not result.prompts:
        return result
    count = result.prompts
    result.by_rule = {name: total / count for name, total in sums.items()}
    result.accuracy, result.length = result.by_rule.get(rule), tokens / count
    return result
