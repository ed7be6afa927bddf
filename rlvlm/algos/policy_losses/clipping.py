"""Losses that clip the ratio between two policies.

Arguments are [B, L]; so is the loss. What stands outside ``loss_mask`` is the caller's to ignore.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlvlm.algos.checks import check_clip, check_positive, check_token_fields
from rlvlm.algos.numerics import exp_clamped, log_difference, widen_float16
from rlvlm.algos.registries import register_policy_loss
from rlvlm.algos.results import TokenLoss


@register_policy_loss("ppo_clip")
def ppo_clip(
    logp: Tensor,
    prox_logp: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> TokenLoss:
    """``max(-A ρ, -A clip(ρ, 1 - low, 1 + high))`` with ``ρ = exp(logp - prox_logp)``.

    Paper: PPO, arXiv 1707.06347; asymmetric clip: DAPO, arXiv 2503.14476; dual clip: arXiv 1912.09729.
    Elsewhere: ``vanilla`` (verl, RLLaVA); ``default`` (EasyR1); the loss of GRPOTrainer, whose ``delta`` is ``dual_clip`` (TRL).

    Args:
        dual_clip: bound c > 1 of the loss where the advantage is negative, ``min(loss, -A c)``.
    """
    check_token_fields(logp=logp, prox_logp=prox_logp, advantages=advantages)
    logp, prox_logp, advantages = widen_float16(logp, prox_logp, advantages)
    log_ratio = logp - prox_logp
    return clipped_surrogate(exp_clamped(log_ratio), -log_ratio, advantages, clip_low, clip_high, dual_clip)


@register_policy_loss("decoupled_clip", weighs_behaviour=True)
def decoupled_clip(
    logp: Tensor,
    prox_logp: Tensor,
    behav_logp: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    cap: float = 5.0,
    over_cap: Literal["clamp", "mask"] = "clamp",
) -> TokenLoss:
    """``w · max(-A ρ, -A clip(ρ, 1 - low, 1 + high))`` with the behaviour weight ``w = exp(prox_logp - behav_logp)``.

    Paper: AReaL, arXiv 2505.24298; decoupled PPO, arXiv 2110.00641.
    Elsewhere: ``use_decoupled_loss``, ``behav_imp_weight_cap`` (AReaL, LLaVA-OneVision-1.5-RL).

    Args:
        cap: largest behaviour weight.
        over_cap: what happens above the cap: the weight becomes the cap (``clamp``), or 0 (``mask``).
    """
    check_token_fields(logp=logp, prox_logp=prox_logp, behav_logp=behav_logp, advantages=advantages)
    check_positive("decoupled_clip", cap=cap)
    logp, prox_logp, behav_logp, advantages = widen_float16(logp, prox_logp, behav_logp, advantages)
    raw = exp_clamped(log_difference(prox_logp.detach(), behav_logp))
    capped = raw > cap
    weight = raw.clamp(max=cap) if over_cap == "clamp" else raw.masked_fill(capped, 0.0)
    log_ratio = logp - prox_logp
    clipped = clipped_surrogate(exp_clamped(log_ratio), -log_ratio, advantages, clip_low, clip_high, dual_clip)
    metrics = {"mean/behav_weight": raw, "max/behav_weight": raw, "mean/behav_capped": capped}
    return TokenLoss(clipped.loss * weight, {**clipped.metrics, **metrics})


def clipped_surrogate(
    ratio: Tensor,
    approx_kl: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> TokenLoss:
    """PPO's pessimistic loss [B, L] of a ratio, whatever it is a ratio of.

    An advantage above 0 pulls the ratio up to ``1 + clip_high`` at most, one below 0 pulls it down to ``1 - clip_low``, and
    counts no ratio above ``dual_clip``.

    Args:
        ratio: [B, L], or [B, 1] for one ratio of each sequence.
        approx_kl: minus the log-ratio, [B, L], or its mean over each sequence, [B, 1]; a metric.
    """
    check_clip(clip_low, clip_high, dual_clip)
    loss, clipped, bounded = _Pessimistic.apply(ratio, advantages, 1 - clip_low, 1 + clip_high, dual_clip)
    metrics = {
        "mean/ratio": ratio.detach(),
        "max/ratio": ratio.detach(),
        "mean/approx_kl": approx_kl.detach(),
        "mean/clip_fraction": clipped,
    }
    if dual_clip is not None:
        metrics["mean/dual_clip_fraction"] = bounded
    return TokenLoss(loss, metrics)


class _Pessimistic(torch.autograd.Function):
    """``max(-A ρ, -A clip(ρ, low, high))``, at most ``-A dual`` where A < 0; and where it lies above, below ``-A ρ``.

    The slope is -A where the loss is ``-A ρ``, the bounds included, and 0 elsewhere: one comparison and one product, where
    autograd would compare, halve and select for each of ``clamp``, ``maximum`` and ``minimum``.
    """

    @staticmethod
    def forward(
        ctx: Any, ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        fall = -ratio
        free, loss = advantages * fall, advantages * fall.clamp(-high, -low)
        torch.maximum(loss, free, out=loss)
        bounded = None
        if dual is not None:
            torch.minimum(loss, advantages.clamp_max(0) * -dual, out=loss)
            bounded = loss < free
        clipped = loss > free
        ctx.mark_non_differentiable(*(flag for flag in (clipped, bounded) if flag is not None))
        ctx.set_materialize_grads(False)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(torch.eq(loss, free, out=free).mul_(advantages))
            ctx.shape = ratio.shape
        return loss, clipped, bounded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        (slope,), upstream = ctx.saved_tensors, gradients[0]
        if upstream is None:
            return None, None, None, None, None
        if ctx.shape == slope.shape:
            return (upstream * slope).neg_(), None, None, None, None
        return torch.linalg.vecdot(upstream, slope).unsqueeze(-1).neg_(), None, None, None, None
