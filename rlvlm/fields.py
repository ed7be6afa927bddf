"""Every batch field, declared once: name, shape, dtype, who writes it and what turns that on.

Sizes: ``B`` samples, ``L`` tokens, ``P`` prompts (groups). Token fields stand on one axis with ``input_ids`` and are
right-padded: entry ``t`` speaks of token ``t``, and ``logp[b, t] = log p(input_ids[b, t] | earlier)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlvlm.errors import FieldError, nearest

if TYPE_CHECKING:
    from rlvlm.batch import Batch

Dims = tuple[str, ...]
_BY_RULE = "scores_by_rule"  # ("scores_by_rule", name) is a family of [B] fields, one per reward rule


@dataclass(frozen=True)
class Field:
    """One column of a batch.

    ``writer`` is a function from batch to tensor for fields of plug-ins, which the pipeline calls for any part that
    reads the field; built-in fields are written by the role named in ``written_by``.
    """

    name: str
    dims: Dims
    dtype: torch.dtype
    written_by: str
    turned_on_by: str
    meaning: str
    writer: Callable[[Batch], Tensor] | None = None
    pad: int = 0
    derived_from: str | None = None
    """The field whose row sum this one always is; it is written with that field and never by itself."""


def _field(
    name: str, dims: str, dtype: torch.dtype, written_by: str, turned_on_by: str, meaning: str, **more: Any
) -> Field:
    return Field(name, tuple(dims.split()), dtype, written_by, turned_on_by, meaning, **more)


_I64, _I32, _F32, _BOOL = torch.int64, torch.int32, torch.float32, torch.bool
_ALWAYS = "it is always on"

FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        _field("input_ids", "B L", _I64, "Rollout", _ALWAYS, "expanded prompt, response and, in multi-turn, the observations"),
        _field("attention_mask", "B L", _BOOL, "Rollout", _ALWAYS, "true where there is a token"),
        _field("loss_mask", "B L", _BOOL, "Rollout", _ALWAYS, "true where the policy itself sampled the token"),
        _field("group_ids", "B", _I64, "Rollout", _ALWAYS, "index into the prompt table; any group sizes, any order"),
        _field("versions", "B L", _I32, "Rollout", _ALWAYS, "policy version that sampled the token; -1 elsewhere", pad=-1),
        _field("behav_logp", "B L", _F32, "Rollout", _ALWAYS, "log-prob under the policy that sampled, as the engine computed it"),
        _field("prox_logp", "B L", _F32, "Actor", "a policy loss or correction that reads it", "log-prob under the policy at the start of this step"),
        _field("ref_logp", "B L", _F32, "Reference", "algorithm.regularizers.kl_to_reference or algorithm.kl_in_reward", "log-prob under the reference policy"),
        _field("values", "B L", _F32, "Critic", "critic", "value of the state before the token"),
        _field("scores", "B", _F32, "Reward", "reward.rules", "weighted sum of the reward rules, raw"),
        _field("token_rewards", "B L", _F32, "Reward", "reward.rules", "rewards after shaping; the outcome on the last policy token"),
        _field("rewards", "B", _F32, "Reward", "reward.rules", "row sum of token_rewards", derived_from="token_rewards"),
        _field("greedy_rewards", "P", _F32, "Rollout and Reward", "an advantage that reads it (remax)", "reward of one greedy answer for each prompt"),
        _field("turn_ids", "B L", _I32, "Rollout", _ALWAYS, "turn of each policy token; -1 on prompt and observations", pad=-1),
        _field("truncated", "B", _BOOL, "Rollout", _ALWAYS, "stopped by length"),
        _field("temperature", "B", _F32, "Rollout", _ALWAYS, "temperature that the row was sampled at"),
        _field("advantages", "B L", _F32, "Algorithm", "algorithm.advantage", "zero where loss_mask is false"),
        _field("returns", "B L", _F32, "Algorithm", "an advantage that gives returns (gae)", "targets of the critic; zero where loss_mask is false"),
        _field("correction_weights", "B L", _F32, "Algorithm", "algorithm.correction", "importance weights of the off-policy correction"),
        _field("correction_mask", "B L", _BOOL, "Algorithm", "algorithm.correction", "false where the off-policy correction rejects the token"),
        _field("group_tokens", "B", _F32, "Algorithm", "an aggregation that reads it (prompt-mean)", "tokens that count in the row's whole group"),
    )
}  # fmt: skip
"""The table of fields, built-in and registered."""


def register_field(
    name: str,
    dims: str | Dims,
    dtype: torch.dtype,
    meaning: str,
    *,
    writer: Callable[[Batch], Tensor] | None = None,
    turned_on_by: str = "the part that reads it",
    override: bool = False,
) -> Field:
    """Declares a field; with ``writer`` the pipeline produces it for any part that reads it.

    Args:
        dims: of ``B``, ``L``, ``P`` and whole numbers, such as ``"B L"`` or ``("B", "4")``.

    Raises ``FieldError`` for a name that is declared already (unless ``override``) or an unknown dimension.
    """
    spelled = tuple(dims.split()) if isinstance(dims, str) else tuple(str(dim) for dim in dims)
    if name in FIELDS and not override:
        raise FieldError(f"field '{name}' is declared already; choose another name or pass override=True.")
    if not spelled or spelled[0] not in ("B", "P"):
        raise FieldError(f"field '{name}' has the dimensions {spelled}; the first is B (samples) or P (prompts).")
    for dim in spelled[1:]:
        if dim not in ("L",) and not dim.isdigit():
            raise FieldError(
                f"field '{name}' has the dimension '{dim}'; expected L (tokens) or a whole number after the first."
            )
    origin = f"the writer of '{name}'" if writer is not None else "the plug-in that declared it"
    FIELDS[name] = Field(name, spelled, dtype, origin, turned_on_by, meaning, writer)
    return FIELDS[name]


def field_of(key: str | tuple[str, ...]) -> Field:
    """The declaration of a key; ``("scores_by_rule", rule)`` is a [B] float field for any rule. Unknown: ``FieldError``."""
    if isinstance(key, tuple):
        if len(key) == 2 and key[0] == _BY_RULE:
            return _field(key[1], "B", _F32, "Reward", "reward.rules", "raw score of one rule")
        raise FieldError(f"key {key!r} is no batch field; the only nested fields are ('{_BY_RULE}', rule name).")
    if key not in FIELDS:
        raise FieldError(f"there is no batch field '{key}'{nearest(key, FIELDS)}; declare one with register_field.")
    return FIELDS[key]


def check_value(key: str | tuple[str, ...], value: Any, sizes: Mapping[str, int]) -> None:
    """Raises ``FieldError`` unless ``value`` is a tensor of the declared dtype and shape.

    Args:
        sizes: the known sizes by dimension name; a name that is absent is not checked.
    """
    declared = field_of(key)
    if not isinstance(value, Tensor):
        raise FieldError(
            f"field {key!r} takes a tensor, got {type(value).__name__}; Python objects go into batch.objects."
        )
    if value.dtype != declared.dtype:
        raise FieldError(f"field {key!r} has dtype {declared.dtype}, got {value.dtype}; convert it before assigning.")
    expected = [sizes.get(dim, int(dim) if dim.isdigit() else -1) for dim in declared.dims]
    if value.dim() != len(expected) or any(
        want not in (-1, got) for want, got in zip(expected, value.shape, strict=True)
    ):
        shape = ", ".join(
            f"{dim}={want}" if want >= 0 else dim for dim, want in zip(declared.dims, expected, strict=True)
        )
        raise FieldError(f"field {key!r} has shape [{shape}], got {list(value.shape)}.")


def missing_field(key: str | tuple[str, ...]) -> FieldError:
    """The error for a field that something requires and the batch lacks: who writes it and which key turns that on."""
    declared = field_of(key)
    return FieldError(
        f"the batch has no field {key!r} ({declared.meaning}); {declared.written_by} writes it, turned on by {declared.turned_on_by}."
    )
