"""A smooth gate in place of a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvlm.algos.checks import check_positive, check_token_fields
from rlvlm.algos.numerics import exp_clamped, widen_float16
from rlvlm.algos.registries import register_policy_loss
from rlvlm.algos.results import TokenLoss


@register_policy_loss("sapo")
def sapo(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    *,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> TokenLoss:
    """``-A σ(τ (ρ - 1)) 4/τ`` with a temperature τ for each sign of the advantage; [B, L].

    Paper: SAPO, arXiv 2511.20347.
    Elsewhere: ``sapo`` (verl, EasyR1, TRL, AReaL).
    """
    check_token_fields(logp=logp, prox_logp=prox_logp, advantages=advantages)
    check_positive("sapo", temperature_positive=temperature_positive, temperature_negative=temperature_negative)
    logp, prox_logp, advantages = widen_float16(logp, prox_logp, advantages)
    log_ratio = logp - prox_logp
    ratio = exp_clamped(log_ratio)
    temperature = torch.where(
        advantages > 0, ratio.new_tensor(temperature_positive), ratio.new_tensor(temperature_negative)
    )
    gate = torch.sigmoid(temperature * (ratio - 1)) * (4 / temperature)
    metrics = {
        "mean/ratio": ratio.detach(),
        "max/ratio": ratio.detach(),
        "mean/approx_kl": -log_ratio.detach(),
        "mean/gate": gate.detach(),
    }
    return TokenLoss(-gate * advantages, metrics)
