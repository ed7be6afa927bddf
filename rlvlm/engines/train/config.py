"""Settings of the optimiser; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlvlm.ranges import Range, above, at_least, between, check_ranges, one_of

LOW_PRECISION = ("master_weights", "stochastic_rounding")


@dataclass
class OptimizerGroup:
    """What a group of parameters has of its own; ``None`` means as the optimiser's.

    Attributes:
        lr: learning rate; scheduled like the optimiser's.
        weight_decay: decoupled weight decay.
        max_grad_norm: clips this group's gradient by its own norm, apart from the other groups.
    """

    lr: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None


@dataclass
class OptimizerConfig:
    """AdamW, its schedule and clipping.

    Attributes:
        lr: peak learning rate.
        betas: decay rates of the two moments.
        eps: added to the denominator.
        weight_decay: decoupled weight decay, of matrices only (vectors such as norms and biases have none).
        schedule: ``constant``, ``linear`` or ``cosine``, from the end of the warm-up to the last step.
        warmup_steps: optimiser steps of linear warm-up.
        min_lr_ratio: the schedule ends at this share of ``lr``.
        max_grad_norm: clips the gradient norm of all parameters without a clip of their own; null switches it off.
        groups: by part (``vision``, ``connector``, ``language``) or by a regular expression that is searched in the
            parameter's name; the first that matches counts, and one that matches nothing is an error.
        low_precision: how parameters in bf16 or fp16 are stepped: ``master_weights`` keeps an fp32 copy of each, steps that
            and gives the model its rounded values; ``stochastic_rounding`` (bf16, the extra ``torchao``) steps them in
            place with random rounding, in 10 bytes a parameter instead of 18. Parameters in fp32, adapters among them, need neither.
    """

    lr: float = 1e-6
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    weight_decay: float = 0.01
    schedule: str = "constant"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0
    max_grad_norm: float | None = 1.0
    groups: dict[str, Any] = field(default_factory=dict)
    low_precision: str = "master_weights"

    def __post_init__(self) -> None:
        check_ranges(
            "actor.optimizer",
            self,
            at_least(0, "lr", "weight_decay", "warmup_steps"),
            above(0, "eps", "max_grad_norm"),
            between(0, 1, "min_lr_ratio"),
            one_of(LOW_PRECISION, "low_precision"),
            Range(("betas",), _are_decay_rates, "two numbers from 0 to below 1"),
        )


def _are_decay_rates(values: Any) -> bool:
    return len(values) == 2 and all(isinstance(value, (int, float)) and 0 <= value < 1 for value in values)
