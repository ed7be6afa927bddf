"""Random inputs of parts, float64, by seed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvlm.algos.registries import COUNTS


def draw(
    seed: int = 0, rows: int = 6, length: int = 9, groups: int = 3, dtype: torch.dtype = torch.float64
) -> dict[str, Any]:
    """Everything that a part may read: masks with holes, an empty row, groups of unequal size in any order."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=g, dtype=torch.float64) * scale).to(dtype)

    mask = torch.rand(rows, length, generator=g) > 0.3
    mask[0] = False
    mask[1:, 1:3] = True
    logp = -normal(rows, length).abs() - 0.05
    token_rewards = normal(rows, length) * mask
    fields: dict[str, Any] = {
        "loss_mask": mask,
        "group_ids": torch.randint(0, groups, (rows,), generator=g) * 7 + 3,
        "input_ids": torch.randint(0, 4, (rows, length), generator=g),
        "token_rewards": token_rewards,
        "rewards": torch.randint(-4, 5, (rows,), generator=g).to(dtype) / 4,
        "values": normal(rows, length),
        "returns": normal(rows, length),
        "value_preds": normal(rows, length),
        "advantages": normal(rows, length),
        "logp": logp,
        "prox_logp": logp + normal(rows, length, scale=0.3),
        "behav_logp": logp + normal(rows, length, scale=0.3),
        "ref_logp": logp + normal(rows, length, scale=0.3),
        "entropy": normal(rows, length).abs(),
        "truncated": torch.rand(rows, generator=g) > 0.7,
        "greedy_rewards": normal(groups * 7 + 4),
        "token_loss": normal(rows, length),
    }
    fields["scores"] = fields["rewards"]
    fields["scores_by_rule"] = {
        "exact": fields["rewards"],
        "format": torch.randint(0, 3, (rows,), generator=g).to(dtype),
    }
    return counted(fields)


def counted(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with the counts of their mask, as of a mini-batch of their own."""
    mask, ids = fields["loss_mask"], fields["group_ids"]
    same = ids[:, None] == ids
    counts = {
        "num_tokens": float(mask.sum()),
        "num_sequences": float(mask.any(-1).sum()),
        "num_prompts": float(len(ids[mask.any(-1)].unique())),
        "group_tokens": (same * mask.sum(-1)).sum(-1).to(fields["rewards"].dtype),
        "generator": torch.Generator().manual_seed(11),
    }
    return {**fields, **counts}


def take(fields: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """Some rows, in the order given; counts and the tables of prompts stay."""
    whole = ("greedy_rewards", "generator", *COUNTS)

    def picked(value: Any) -> Any:
        return {name: scores[rows] for name, scores in value.items()} if isinstance(value, dict) else value[rows]

    return {name: value if name in whole else picked(value) for name, value in fields.items()}


def widen(fields: dict[str, Any], columns: int, fill: float = float("nan")) -> dict[str, Any]:
    """More columns on the right, masked; floats there hold ``fill``."""
    length = fields["loss_mask"].shape[1]

    def padded(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() != 2 or value.shape[1] != length:
            return value
        filling = fill if value.dtype.is_floating_point else 0
        return torch.nn.functional.pad(value, (0, columns), value=filling)

    return {name: padded(value) for name, value in fields.items()}


def spoil(fields: dict[str, Any], fill: float) -> dict[str, Any]:
    """Every float [B, L] with ``fill`` outside the mask."""
    mask = fields["loss_mask"]

    def spoiled(value: Any) -> Any:
        is_tokens = isinstance(value, Tensor) and value.shape == mask.shape and value.dtype.is_floating_point
        return torch.where(mask, value, fill) if is_tokens else value

    return {name: spoiled(value) for name, value in fields.items()}
