"""From a batch to mini-batches of whole groups, and from these to micro-batches that fit a token budget."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlvlm.batch import Batch, Media


def mini_batches(batch: Batch, n: int, generator: torch.Generator | None = None) -> list[Batch]:
    """At most ``n`` mini-batches, each of whole groups, of nearly equal numbers of groups.

    Args:
        generator: shuffles the groups; without it they stay in order.
    """
    groups = batch["group_ids"]
    present = torch.unique(groups)
    n = min(n, len(present))
    if n <= 1:
        return [batch]
    if generator is not None:
        present = present[torch.randperm(len(present), generator=generator)]
    pieces = torch.tensor_split(present, n)
    return [batch.index(torch.isin(groups, piece).nonzero().squeeze(1)) for piece in pieces]


def row_lengths(batch: Batch) -> tuple[Tensor, Tensor]:
    """Tokens of each row's prompt and of the rest of the row, both [B]."""
    prompt_lengths = torch.tensor([len(prompt.ids) for prompt in batch.prompts], dtype=torch.int64)
    own_prompt = prompt_lengths[batch["group_ids"].cpu()]
    return own_prompt, batch["attention_mask"].sum(1).cpu() - own_prompt


MicroBatch = tuple[Tensor, Batch]
"""Row numbers [b] in the mini-batch, on the CPU, and the batch of these rows."""


def micro_batches(batch: Batch, budget: int, patches: Callable[[Media], int], shared: bool) -> list[MicroBatch]:
    """Splits rows so that the cost of each piece stays within ``budget``.

    The cost counts text tokens and vision patches: a group's prompt and pictures once where the layout shares them
    (``shared``), else once for each row; a row with pictures of its own (of later turns) never shares its prompt. Rows of a
    group stay side by side; a group over budget is split, and each piece repeats its prompt. A single row over budget is a
    piece of its own.
    """
    prompt, rest = row_lengths(batch)
    own_spans = batch.objects.get("spans") or [()] * len(batch)
    vision, own = (
        torch.tensor([sum(patches(batch.media[span.media]) for span in spans) for spans in several], dtype=torch.int64)
        for several in ([prompt.spans for prompt in batch.prompts], own_spans)
    )
    groups = batch["group_ids"].cpu()
    head, tail = (prompt + vision[groups]).tolist(), (rest + own).tolist()
    whole = [not shared or bool(spans) for spans in own_spans]
    number = groups.tolist()
    pieces: list[list[int]] = [[]]
    cost, opened = 0, -1  # the group whose prompt stands in the piece for others to share
    for row in torch.argsort(groups, stable=True).tolist():
        added = tail[row] + (0 if number[row] == opened and not whole[row] else head[row])
        if pieces[-1] and cost + added > budget:
            pieces.append([])
            cost, added, opened = 0, tail[row] + head[row], -1
        pieces[-1].append(row)
        cost += added
        if not whole[row]:
            opened = number[row]
    if len(pieces) == 1:
        return [(torch.arange(len(batch)), batch)]
    return [(torch.tensor(piece), batch.index(piece)) for piece in pieces]
