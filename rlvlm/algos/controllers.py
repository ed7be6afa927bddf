"""Controllers: from the weight of a KL and what was measured to the next weight."""

from __future__ import annotations

import math

from rlvlm.algos.checks import check_positive
from rlvlm.algos.registries import register_controller


@register_controller("fixed")
def fixed(weight: float) -> float:
    """The weight as it is.

    Elsewhere: ``kl_ctrl.type=fixed`` (verl, RLLaVA); ``kl_type=fixed`` (EasyR1).
    """
    return weight


@register_controller("adaptive")
def adaptive(
    weight: float, measured: float, num_samples: int, *, target: float = 0.1, horizon: float = 10_000
) -> float:
    """``weight · (1 + clip(measured / target - 1, ± 0.2) · num_samples / horizon)``; the weight as it is where NaN was measured.

    Paper: Ziegler and others, arXiv 1909.08593.
    Elsewhere: ``kl_ctrl.type=adaptive`` (verl, RLLaVA); ``kl_type=adaptive`` (EasyR1).

    Args:
        target: KL per token to be held.
        horizon: number of samples over which an error of 20 % or more moves the weight by 20 %.
    """
    check_positive("adaptive", target=target, horizon=horizon)
    if math.isnan(measured):
        return weight
    error = min(max(measured / target - 1, -0.2), 0.2)
    return weight * (1 + error * num_samples / horizon)
