"""Comparison of numbers that two ways of computing gave: as near as their size allows, on any CPU."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_near(got: Tensor, wanted: Tensor, *, within: float = 1e-5, least: float = 1.0) -> None:
    """Fails unless ``max|got - wanted|`` is at most ``within`` times the largest ``|wanted|``, or times ``least`` if that is more.

    Rounding of a sum follows its largest terms, not its result, and another CPU adds in another order: a bound must follow the
    scale of the whole tensor. Infinities and NaN must stand where they are wanted.

    Args:
        within: share of the scale that may differ.
        least: scale below which differences count as they are.
    """
    assert got.shape == wanted.shape, f"shapes {tuple(got.shape)} and {tuple(wanted.shape)}"
    finite = wanted.double()[wanted.isfinite()].abs()
    scale = max(least, float(finite.detach().max()) if finite.numel() else 0.0)
    torch.testing.assert_close(got.double(), wanted.double(), atol=within * scale, rtol=0, equal_nan=True)
