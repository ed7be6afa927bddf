"""Which settings a stage does not read: they decide nothing of its result, and setting one is a mistake."""

from __future__ import annotations

from collections.abc import Iterable

from rlvlm.pipelines.config import Stage

ALWAYS = (
    "algorithm",
    "actor.epochs",
    "actor.mini_batches",
    "actor.shuffle",
    "rollout.n",
    "reward.scale",
    "reward.bias",
    "run.gates",
    "run.sample_rows",
    "run.sample_every",
    "run.sample_groups",
)
"""What no supervised stage reads."""
SAMPLING = ("rollout", "reward", "inference_engine", "run.accuracy_rule")
"""What decides sampled accuracy: in a supervised stage it decides when the stage ends, and no weight before."""


def unread(stage: Stage, *, supervised: bool) -> tuple[str, ...]:
    """Dotted keys, groups among them, that the stage does not read.

    Args:
        supervised: the stage learns from given answers; it samples only in evaluations on the way (``run.eval_every``).
    """
    if not supervised:
        return ()
    return ALWAYS if samples(stage) else (*ALWAYS, *SAMPLING)


def samples(stage: Stage) -> bool:
    """Whether a supervised stage samples answers: it evaluates on the way, or would if its settings were complete."""
    return bool(stage.run.eval_every) or stage.run.stop_at is not None


def is_below(key: str, groups: Iterable[str]) -> bool:
    """Whether a dotted key is one of the keys, or lies in one of the groups."""
    return any(key == group or key.startswith(f"{group}.") for group in groups)
