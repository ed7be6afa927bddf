"""Aggregations: from a per-token loss [B, L] to a scalar.

The denominators (``num_tokens``, ``num_sequences``, ``num_prompts``, ``group_tokens``) are counted over the whole
mini-batch of one optimiser step, all ranks and micro-batches, before its first backward. Each function returns the share
of the sequences that it is given, so the shares of micro-batches and ranks add up to the value of the whole mini-batch.
A fully masked sequence adds nothing to any numerator and is not counted by any denominator; if there is nothing to
count, the loss is 0 with a gradient of 0.
"""

from __future__ import annotations

from torch import Tensor

from rlvlm.algos.checks import check_positive, check_rows_of, check_token_fields
from rlvlm.algos.numerics import ZeroOutside, widen_float16
from rlvlm.algos.registries import register_aggregation


@register_aggregation("token-mean")
def token_mean(token_loss: Tensor, loss_mask: Tensor, num_tokens: float, clean: ZeroOutside | None = None) -> Tensor:
    """``Σ l / tokens``: every token weighs the same.

    Paper: DAPO, arXiv 2503.14476.
    Elsewhere: ``token-mean`` (verl, RLLaVA); ``token`` (EasyR1); ``dapo``, ``bnpo`` (TRL).
    """
    return _kept(token_loss, loss_mask, clean).sum() / max(num_tokens, 1)


@register_aggregation("token-sum")
def token_sum(token_loss: Tensor, loss_mask: Tensor, clean: ZeroOutside | None = None) -> Tensor:
    """``Σ l``, divided by nothing.

    Elsewhere: ``token-sum`` (verl).
    """
    return _kept(token_loss, loss_mask, clean).sum()


@register_aggregation("seq-mean-token-sum")
def seq_mean_token_sum(
    token_loss: Tensor, loss_mask: Tensor, num_sequences: float, clean: ZeroOutside | None = None
) -> Tensor:
    """``Σ l / sequences``: sum over the tokens of a sequence, mean over sequences.

    Elsewhere: ``seq-mean-token-sum`` (verl, RLLaVA); ``luspo`` (TRL).
    """
    return _kept(token_loss, loss_mask, clean).sum() / max(num_sequences, 1)


@register_aggregation("seq-mean-token-mean")
def seq_mean_token_mean(
    token_loss: Tensor, loss_mask: Tensor, num_sequences: float, clean: ZeroOutside | None = None
) -> Tensor:
    """``Σ_i (Σ_t l / length_i) / sequences``: a token of a short answer weighs more.

    Paper: DeepSeekMath, arXiv 2402.03300.
    Elsewhere: ``seq-mean-token-mean`` (verl, RLLaVA); ``seq`` (EasyR1); ``grpo``, ``sapo`` (TRL).
    """
    check_token_fields(loss_mask=loss_mask, token_loss=token_loss)
    clean = clean or ZeroOutside(loss_mask)
    (token_loss,) = widen_float16(token_loss)
    per_sequence = clean(token_loss).sum(-1, keepdim=True) / clean.counts.clamp_min(1)
    return per_sequence.sum() / max(num_sequences, 1)


@register_aggregation("seq-mean-token-sum-norm")
def seq_mean_token_sum_norm(
    token_loss: Tensor,
    loss_mask: Tensor,
    num_sequences: float,
    clean: ZeroOutside | None = None,
    *,
    length: float,
    per_sequence: bool = True,
) -> Tensor:
    """``Σ l / (length · sequences)`` with a constant length.

    Paper: Dr. GRPO, arXiv 2503.20783.
    Elsewhere: ``seq-mean-token-sum-norm`` with ``loss_scale_factor`` (verl, RLLaVA); ``dr_grpo`` (TRL).

    Args:
        length: the constant, usually the longest answer allowed.
        per_sequence: divide by the number of sequences; without it the loss is their sum (verl up to 0.8, RLLaVA).
    """
    check_positive("seq-mean-token-sum-norm", length=length)
    return _kept(token_loss, loss_mask, clean).sum() / (length * (max(num_sequences, 1) if per_sequence else 1))


@register_aggregation("prompt-mean")
def prompt_mean(
    token_loss: Tensor, loss_mask: Tensor, group_tokens: Tensor, num_prompts: float, clean: ZeroOutside | None = None
) -> Tensor:
    """``Σ_p (Σ l / tokens_p) / prompts``: a prompt with long answers weighs no more than another."""
    check_rows_of(loss_mask, group_tokens=group_tokens)
    per_sequence = _kept(token_loss, loss_mask, clean).sum(-1) / group_tokens.clamp_min(1)
    return per_sequence.sum() / max(num_prompts, 1)


def _kept(token_loss: Tensor, loss_mask: Tensor, clean: ZeroOutside | None) -> Tensor:
    check_token_fields(loss_mask=loss_mask, token_loss=token_loss)
    (token_loss,) = widen_float16(token_loss)
    return (clean or ZeroOutside(loss_mask))(token_loss)
