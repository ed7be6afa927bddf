"""Losses whose gradient is that of the log-prob itself, without a clip that cuts it off.

Arguments are [B, L]; so is the loss. What stands outside ``loss_mask`` is the caller's to ignore.
"""

from __future__ import annotations

from torch import Tensor

from rlvlm.algos.checks import check_clip, check_token_fields
from rlvlm.algos.numerics import exp_clamped, widen_float16
from rlvlm.algos.registries import register_policy_loss
from rlvlm.algos.results import TokenLoss


@register_policy_loss("reinforce")
def reinforce(logp: Tensor, advantages: Tensor) -> TokenLoss:
    """``-A logp``: the plain policy gradient; with a ``correction``, weighted REINFORCE.

    Paper: Williams, Machine Learning 8, 1992.
    Elsewhere: ``bypass_mode`` with ``reinforce`` (verl).
    """
    check_token_fields(logp=logp, advantages=advantages)
    logp, advantages = widen_float16(logp, advantages)
    return TokenLoss(-advantages * logp)


@register_policy_loss("gpg")
def gpg(logp: Tensor, advantages: Tensor) -> TokenLoss:
    """``-A logp``, to go with the advantage of the same name.

    Paper: GPG, arXiv 2504.02546.
    Elsewhere: ``gpg`` (verl, RLLaVA).
    """
    return reinforce(logp, advantages)


@register_policy_loss("cispo")
def cispo(
    logp: Tensor, prox_logp: Tensor, advantages: Tensor, *, clip_low: float = 0.2, clip_high: float = 0.2
) -> TokenLoss:
    """``-sg(clip(ρ, 1 - low, 1 + high)) A logp``: the weight is clipped, no token loses its gradient.

    ``clip_low`` 1 leaves the weight free from below.

    Paper: CISPO of MiniMax-M1, arXiv 2506.13585.
    Elsewhere: ``cispo`` (verl, EasyR1, TRL).
    """
    check_token_fields(logp=logp, prox_logp=prox_logp, advantages=advantages)
    check_clip(clip_low, clip_high)
    logp, prox_logp, advantages = widen_float16(logp, prox_logp, advantages)
    log_ratio = (logp - prox_logp).detach()
    ratio = exp_clamped(log_ratio)
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    metrics = {
        "mean/ratio": ratio,
        "max/ratio": ratio,
        "mean/approx_kl": -log_ratio,
        "mean/clip_fraction": weight != ratio,
    }
    return TokenLoss(-weight * advantages * logp, metrics)
