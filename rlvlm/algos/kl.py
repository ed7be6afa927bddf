"""Estimators of KL(policy || reference) from the log-probs of the sampled tokens.

All take ``logp`` and ``ref_logp`` of equal shape and give one estimate for each token. J. Schulman, "Approximating KL
divergence", http://joschu.net/blog/kl-approx.html. A name with ``+`` is straight-through: the value of the estimator with
the gradient of ``k2``, whose expectation is the gradient of the KL.
"""

from __future__ import annotations

from torch import Tensor

from rlvlm.algos.checks import check_positive, check_same_shape
from rlvlm.algos.numerics import exp_clamped, widen_float16
from rlvlm.algos.registries import register_kl


@register_kl("k1")
def k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """``logp - ref_logp``: unbiased, may be negative, its gradient has mean zero.

    Elsewhere: ``kl`` (verl, EasyR1, RLLaVA).
    """
    check_same_shape(logp=logp, ref_logp=ref_logp)
    logp, ref_logp = widen_float16(logp, ref_logp)
    return logp - ref_logp


@register_kl("abs")
def absolute(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """``|logp - ref_logp|``.

    Elsewhere: ``abs`` (verl, EasyR1, RLLaVA).
    """
    return k1(logp, ref_logp).abs()


@register_kl("k2")
def k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """``(logp - ref_logp)² / 2``: biased, with the gradient of the KL.

    Elsewhere: ``mse`` (verl, EasyR1, RLLaVA).
    """
    return 0.5 * k1(logp, ref_logp).square()


@register_kl("k3")
def k3(logp: Tensor, ref_logp: Tensor, *, max_value: float | None = None) -> Tensor:
    """``exp(d) - d - 1`` with ``d = ref_logp - logp``: unbiased, never negative.

    Paper: Schulman, http://joschu.net/blog/kl-approx.html.
    Elsewhere: ``low_var_kl`` (verl, EasyR1, RLLaVA); the KL of GRPOTrainer (TRL).

    Args:
        max_value: clamp of the estimate, beyond which it has no gradient (10 in verl).
    """
    if max_value is not None:
        check_positive("k3", max_value=max_value)
    difference = -k1(logp, ref_logp)
    estimate = exp_clamped(difference) - difference - 1
    return estimate if max_value is None else estimate.clamp(max=max_value)


def straight_through(estimate: Tensor, logp: Tensor, ref_logp: Tensor) -> Tensor:
    """The value of ``estimate`` with the gradient of ``k2``."""
    gradient = k2(logp, ref_logp)
    return estimate.detach() + gradient - gradient.detach()


@register_kl("k1+")
def k1_straight_through(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Value of ``k1``, gradient of ``k2``."""
    return straight_through(k1(logp, ref_logp), logp, ref_logp)


@register_kl("abs+")
def absolute_straight_through(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Value of ``abs``, gradient of ``k2``."""
    return straight_through(absolute(logp, ref_logp), logp, ref_logp)


@register_kl("k2+")
def k2_straight_through(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """The same as ``k2``, which has the gradient already."""
    return k2(logp, ref_logp)


@register_kl("k3+")
def k3_straight_through(logp: Tensor, ref_logp: Tensor, *, max_value: float | None = None) -> Tensor:
    """Value of ``k3``, gradient of ``k2``."""
    return straight_through(k3(logp, ref_logp, max_value=max_value), logp, ref_logp)
