"""Losses that hold the entropy up by restraining the tokens of highest covariance between log-prob and advantage.

Paper: The Entropy Mechanism of RL, arXiv 2505.22617. The covariance of a token is its share
``(A - mean A)(logp - mean logp)`` with means over the whole mini-batch, which is why their scope is ``minibatch``.
Arguments are [B, L]; so is the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvlm.algos.checks import check_not_negative, check_share, check_token_fields, check_window
from rlvlm.algos.numerics import ZeroOutside, as_mask, exp_clamped, fill_masked, masked_mean, wide, widen_float16
from rlvlm.algos.policy_losses.clipping import clipped_surrogate
from rlvlm.algos.registries import register_policy_loss
from rlvlm.algos.results import TokenLoss


@register_policy_loss("clip_cov", scope="minibatch")
def clip_cov(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    generator: torch.Generator,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    share: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> TokenLoss:
    """PPO's clipped loss, set to 0 on a few tokens, drawn at random, of high ``(A - mean A)(logp - mean logp)``.

    Paper: The Entropy Mechanism of RL, arXiv 2505.22617.
    Elsewhere: ``clip_cov`` (verl, RLLaVA).

    Args:
        generator: what draws them: the Algorithm's own, seeded by ``algorithm.seed``.
        share: share of all tokens that is drawn, at least one token.
        low, high: covariance between which a token may be drawn; one that is clipped already is not.
    """
    check_token_fields(logp=logp, prox_logp=prox_logp, advantages=advantages, loss_mask=loss_mask)
    check_share("clip_cov", share=share)
    check_window("clip_cov", low, high)
    mask = as_mask(loss_mask)
    logp, prox_logp, advantages = widen_float16(logp, prox_logp, advantages)
    logp, prox_logp, advantages = map(ZeroOutside(mask), (logp, prox_logp, advantages))
    log_ratio = logp - prox_logp
    surrogate = clipped_surrogate(exp_clamped(log_ratio), -log_ratio, advantages, clip_low, clip_high)
    clipped = surrogate.metrics["mean/clip_fraction"]
    covariance = token_covariance(logp, advantages, mask)
    candidates = mask & ~clipped & (covariance > low) & (covariance < high)
    drawn = _draw(candidates, mask, share, generator)
    loss = torch.where(drawn, torch.zeros_like(surrogate.loss), surrogate.loss)
    return TokenLoss(loss, {**surrogate.metrics, "mean/covariance_clip_fraction": drawn})


@register_policy_loss("kl_cov", scope="minibatch")
def kl_cov(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    share: float = 2e-4,
    coefficient: float = 1.0,
) -> TokenLoss:
    """``-A ρ``, plus ``coefficient · |logp - prox_logp|`` on the tokens of highest ``(A - mean A)(logp - mean logp)``.

    Paper: The Entropy Mechanism of RL, arXiv 2505.22617.
    Elsewhere: ``kl_cov`` (verl, RLLaVA); its ``ppo_kl_coef`` is ``coefficient``.

    Args:
        share: share of all tokens that is penalised, at least one token.
        coefficient: weight of the penalty.
    """
    check_token_fields(logp=logp, prox_logp=prox_logp, advantages=advantages, loss_mask=loss_mask)
    check_share("kl_cov", share=share)
    check_not_negative("kl_cov", coefficient=coefficient)
    mask = as_mask(loss_mask)
    logp, prox_logp, advantages = widen_float16(logp, prox_logp, advantages)
    logp, prox_logp, advantages = map(ZeroOutside(mask), (logp, prox_logp, advantages))
    log_ratio = logp - prox_logp
    ratio = exp_clamped(log_ratio)
    covariance = fill_masked(token_covariance(logp, advantages, mask), mask, -torch.inf)
    highest = _first(covariance.flatten().argsort(descending=True, stable=True), mask, share)
    loss = -advantages * ratio
    loss = torch.where(highest, loss + coefficient * log_ratio.abs(), loss)
    metrics = {
        "mean/ratio": ratio.detach(),
        "max/ratio": ratio.detach(),
        "mean/approx_kl": -log_ratio.detach(),
        "mean/covariance_clip_fraction": highest,
    }
    return TokenLoss(loss, metrics)


@torch.no_grad()
def token_covariance(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Each token's share [B, L] of the covariance between log-prob and advantage over the mask."""
    return (advantages - masked_mean(advantages, mask)) * (logp - masked_mean(logp, mask))


def _draw(candidates: Tensor, mask: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A random choice among the candidates, ``share`` of the mask's tokens; the same whatever the padding."""
    places = candidates.flatten().nonzero().squeeze(1)
    order = torch.randperm(places.shape[0], generator=generator, device=generator.device).to(places.device)
    return _first(places[order], mask, share)


def _first(places: Tensor, mask: Tensor, share: float) -> Tensor:
    """True [B, L] at the first places of a list of flat ones, as many as ``share`` of the mask's tokens, at least one."""
    allowed = (wide(mask.sum()) * share).floor().clamp_min(1)
    taken = torch.arange(places.shape[0], device=places.device) < allowed
    chosen = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
    return (chosen.index_put_((places,), taken) & mask.flatten()).view(mask.shape)
