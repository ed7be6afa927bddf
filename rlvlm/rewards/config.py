"""Settings of the rewards; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvlm.errors import ConfigError, nearest

UNMARKED = ("none", "bare", "text")


@dataclass
class RewardConfig:
    """Which rules score a completion, how their scores are put together, and what happens when one fails.

    Attributes:
        rules: each rule's name and its weight, or a mapping with ``weight`` and the rule's options. Beside those a
            mapping may hold ``name`` (the rule, where the key is only a label), ``gate`` (another rule that must hold),
            ``timeout``, ``by`` with ``table`` and ``default`` (a record column that picks the rule), and
            ``style``, ``path``, ``function`` (a peer's reward function).
        scale, bias: the reward of a row is ``(score + bias) * scale``.
        max_error_rate: share of the last rows whose reward may fail before the run stops.
        timeout: seconds that one completion may take in one rule; a rule's own ``timeout`` comes first.
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
        if self.unmarked not in UNMARKED:
            raise ConfigError(
                f"reward.unmarked is one of {', '.join(UNMARKED)}, got {self.unmarked!r}{nearest(str(self.unmarked), UNMARKED)}."
            )
        if not 0.0 <= self.max_error_rate <= 1.0:
            raise ConfigError(f"reward.max_error_rate is a share from 0 to 1, got {self.max_error_rate}.")
        if self.timeout <= 0:
            raise ConfigError(f"reward.timeout is a positive number of seconds, got {self.timeout}.")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"reward.workers is at least 1 or null, got {self.workers}.")
        if self.memory_mb < 256:
            raise ConfigError(
                f"reward.memory_mb is at least 256 (Python and sympy take about 120), got {self.memory_mb}."
            )
