"""Settings of the rewards; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvlm.errors import ConfigError
from rlvlm.ranges import above, at_least, between, check_ranges, finite, one_of

UNMARKED = ("none", "bare", "text")


@dataclass
class RewardConfig:
    """Which rules score a completion, how their scores are put together, and what happens when one fails.

    Attributes:
        rules: each rule's name and its weight, or a mapping with ``weight`` and the rule's options. Beside those a
            mapping may hold ``name`` (the rule, where the key is only a label), ``gate`` (another rule that must hold),
            ``timeout``, ``by`` with ``table`` and ``default`` (a record column that picks the rule), and
            ``style``, ``path``, ``function``, ``build`` (a reward function of another library).
        scale, bias: the reward of a row is ``(score + bias) * scale``.
        max_error_rate: share of the last rows whose reward may fail before the run stops.
        timeout: seconds that one completion may take in one rule, and a batched rule for each of its completions; a rule's
            own ``timeout`` comes first.
        workers: processes of the pool; ``None`` takes the cores of this process, at most 8.
        memory_mb: memory of one worker process, in MiB.
        unmarked: what counts as the answer when nothing is marked by ``<answer>`` or ``\\boxed{}``: ``none``; ``bare``, a
            completion that is one line with at most one word; ``text``, all text outside ``<think>``.
        think_prefilled: whether the prompt ends with an opened ``<think>``.
    """

    rules: dict[str, Any] = field(default_factory=dict)
    scale: float = 1.0
    bias: float = 0.0
    max_error_rate: float = 0.02
    timeout: float = 8.0
    workers: int | None = None
    memory_mb: int = 1024
    unmarked: str = "bare"
    think_prefilled: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.rules, Mapping):
            raise ConfigError(
                f"reward.rules is a mapping of rule names to weights, such as {{math: 0.9, format: 0.1}}, got {self.rules!r}."
            )
        check_ranges(
            "reward",
            self,
            finite("scale", "bias"),
            between(0, 1, "max_error_rate"),
            above(0, "timeout"),
            at_least(1, "workers"),
            at_least(256, "memory_mb"),  # Python and sympy take about 120
            one_of(UNMARKED, "unmarked"),
        )
