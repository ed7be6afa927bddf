"""What an engine drew, and how it becomes rows of a batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvlm.batch import Batch
from rlvlm.engines.inference.config import SamplingParams
from rlvlm.errors import DataError, EngineError


@dataclass(frozen=True)
class Responses:
    """Sampled tokens of N responses, filled up on the right to T.

    Attributes:
        ids: [N, T] int64.
        logp: [N, T] fp32, of softmax(logits / temperature) over the ids that may be sampled, before any cut.
        lengths: [N] int64, tokens that were drawn; at least 1.
        truncated: [N] bool, whether the length limit ended it.
    """

    ids: Tensor
    logp: Tensor
    lengths: Tensor
    truncated: Tensor

    @staticmethod
    def concat(parts: list[Responses]) -> Responses:
        """Responses of the same T, one after another."""
        if len(parts) == 1:
            return parts[0]
        names = ("ids", "logp", "lengths", "truncated")
        return Responses(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def check_prompts(prompts: Batch) -> list[int]:
    """The group of each row; raises ``DataError`` unless there are rows and each has a prompt of its own."""
    groups = prompts["group_ids"].tolist()
    if not groups:
        raise DataError("there are no prompts to generate for; give at least one.")
    uids = [prompts.prompts[group].uid for group in groups]
    if len(set(uids)) < len(uids):
        twice = next(uid for uid in uids if uids.count(uid) > 1)
        raise DataError(
            f"prompt '{twice}' is there twice, and would draw the same samples twice; "
            "give each draw of a record its own uid, and ask for more samples by rollout.n."
        )
    return groups


def to_batch(
    prompts: Batch,
    responses: Responses,
    params: SamplingParams,
    *,
    version: int,
    step: int,
    tokenizer: Any,
    end_ids: Collection[int] = (),
) -> Batch:
    """Rows of [expanded prompt | response] for the ``params.n`` responses of each row of ``prompts``.

    Args:
        end_ids: the model's own end ids; one that ends a response is no part of its text.

    Raises ``EngineError`` for a log-prob that is not finite: the policy's logits were not.
    """
    rows = prompts.repeat(params.n)
    device = rows.device
    ids, logp = responses.ids.to(device), responses.logp.to(device)
    lengths = responses.lengths.to(device).unsqueeze(1)
    heads = [rows.prompts[group].ids.to(device) for group in rows["group_ids"].tolist()]
    starts = torch.tensor([len(head) for head in heads], device=device).unsqueeze(1)

    column = torch.arange(int((starts + lengths).max()), device=device)
    in_prompt, drawn = column < starts, torch.arange(ids.shape[1], device=device) < lengths
    loss_mask = (column < starts + lengths) & ~in_prompt
    kept = logp[drawn]
    if not bool(torch.isfinite(kept).all()):
        raise EngineError(
            f"{int((~torch.isfinite(kept)).sum())} sampled tokens have a log-prob that is not finite at step {step}; "
            "the policy's logits are not numbers: look for a diverged update or an overflow in its precision."
        )
    pad = getattr(tokenizer, "pad_token_id", None)
    input_ids = ids.new_full(loss_mask.shape, 0 if pad is None else pad)
    input_ids[in_prompt] = torch.cat(heads)  # masks pick row by row, in the order of the parts
    input_ids[loss_mask] = ids[drawn]
    texts = [row[:length] for row, length in zip(ids.tolist(), lengths.flatten().tolist(), strict=True)]
    if not params.skip_special_tokens:
        ends = {*end_ids, getattr(tokenizer, "eos_token_id", None)}
        texts = [row[:-1] if row[-1] in ends else row for row in texts]
    size = (len(rows),)
    return (
        rows.with_(
            input_ids=input_ids,
            attention_mask=in_prompt | loss_mask,
            loss_mask=loss_mask,
            versions=torch.where(loss_mask, version, -1).to(torch.int32),
            turn_ids=torch.where(loss_mask, 0, -1).to(torch.int32),
            behav_logp=torch.zeros(loss_mask.shape, device=device).masked_scatter(loss_mask, kept),
            truncated=responses.truncated.to(device, copy=True),  # not a tensor of inference mode, like all here
            temperature=torch.full(size, params.logp_temperature, device=device),
        )
        .with_objects(completions=decode_texts(tokenizer, texts, skip_special_tokens=params.skip_special_tokens))
        .with_meta(step=step)
    )


def decode_texts(tokenizer: Any, rows: list[list[int]], *, skip_special_tokens: bool = True) -> list[str]:
    """The text of each row of ids, without special tokens or with them; what ``tokenizer.batch_decode`` gives.

    A fast tokenizer's core is asked directly where nothing is left to do to its text: its wrapper takes ten times as
    long over short rows.
    """
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None or tokenizer.clean_up_tokenization_spaces:
        return tokenizer.batch_decode(rows, skip_special_tokens=skip_special_tokens)
    return [core.decode(row, skip_special_tokens=skip_special_tokens) for row in rows]
