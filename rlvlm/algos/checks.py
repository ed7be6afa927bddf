"""Checks of shapes and ranges that say what was expected and got."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvlm.errors import ConfigError, FieldError
from rlvlm.registry import Part


def check_same_shape(**fields: Tensor) -> None:
    """Raises ``FieldError`` unless all tensors have the shape of the first one."""
    (first, model), *others = fields.items()
    for name, value in others:
        if value.shape != model.shape:
            raise FieldError(f"'{name}' has shape {list(model.shape)} like '{first}', got {list(value.shape)}.")


def check_token_fields(**fields: Tensor) -> None:
    """Raises ``FieldError`` unless all tensors have the same shape [B, L]; the first one sets it."""
    name, model = next(iter(fields.items()))
    if model.dim() != 2:
        raise FieldError(f"'{name}' has shape [B, L], got {list(model.shape)}.")
    check_same_shape(**fields)


def check_given(part: Part, value: Tensor, mask: Tensor) -> None:
    """Raises ``FieldError`` unless what a part gave for each token has the shape [B, L] of the mask."""
    if value.shape != mask.shape:
        raise FieldError(f"{part.entry.kind} '{part.name}' gives [B, L] = {list(mask.shape)}, got {list(value.shape)}.")


def check_row_fields(**fields: Tensor) -> None:
    """Raises ``FieldError`` unless all tensors have the same shape [B]; the first one sets it."""
    name, model = next(iter(fields.items()))
    if model.dim() != 1:
        raise FieldError(f"'{name}' has shape [B], got {list(model.shape)}.")
    check_same_shape(**fields)


def check_rows_of(loss_mask: Tensor, **fields: Tensor) -> None:
    """Raises ``FieldError`` unless ``loss_mask`` has shape [B, L] and the others have shape [B]."""
    check_token_fields(loss_mask=loss_mask)
    for name, value in fields.items():
        if value.dim() != 1 or value.shape[0] != loss_mask.shape[0]:
            raise FieldError(
                f"'{name}' has shape [{loss_mask.shape[0]}], one entry for each row of 'loss_mask', got {list(value.shape)}."
            )


def check_ids(group_ids: Tensor) -> None:
    """Raises ``FieldError`` for group ids that are not integers."""
    if group_ids.dtype.is_floating_point or group_ids.dtype == torch.bool:
        raise FieldError(f"'group_ids' has an integer dtype, got {group_ids.dtype}.")


def check_clip(clip_low: float, clip_high: float, dual_clip: float | None = None) -> None:
    """Raises ``ConfigError`` for a lower bound of the ratio below 0 or above 1, an upper one below 1, or a dual clip up to 1."""
    if not 0 <= clip_low <= 1:
        raise ConfigError(f"clip_low lies between 0 and 1 (the ratio is clipped at 1 - clip_low), got {clip_low}.")
    if not clip_high >= 0:
        raise ConfigError(f"clip_high is at least 0 (the ratio is clipped at 1 + clip_high), got {clip_high}.")
    if dual_clip is not None and not dual_clip > 1:
        raise ConfigError(f"dual_clip is a ratio above 1, or null for none, got {dual_clip}.")


def check_positive(part: str, **options: float) -> None:
    """Raises ``ConfigError`` unless all options are above 0."""
    for name, value in options.items():
        if not value > 0:
            raise ConfigError(f"option '{name}' of '{part}' is above 0, got {value}.")


def check_not_negative(part: str, **options: float) -> None:
    """Raises ``ConfigError`` unless all options are at least 0."""
    for name, value in options.items():
        if not value >= 0:
            raise ConfigError(f"option '{name}' of '{part}' is at least 0, got {value}.")


def check_factor(part: str, **options: float) -> None:
    """Raises ``ConfigError`` unless all options lie between 0 and 1, both included."""
    for name, value in options.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"option '{name}' of '{part}' lies between 0 and 1, got {value}.")


def check_share(part: str, **options: float) -> None:
    """Raises ``ConfigError`` unless all options are shares of a whole, above 0 and at most 1."""
    for name, value in options.items():
        if not 0 < value <= 1:
            raise ConfigError(f"option '{name}' of '{part}' is above 0 and at most 1, got {value}.")


def check_window(part: str, low: float, high: float) -> None:
    """Raises ``ConfigError`` unless ``low`` is below ``high``."""
    if not low < high:
        raise ConfigError(f"'{part}' keeps what lies between low and high, got low {low} and high {high}.")
