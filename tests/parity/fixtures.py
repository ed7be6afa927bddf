"""Reads what ``make_fixtures.py`` stored: random batches, and what the peers' functions gave for them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent


@cache
def _joined(suite: str) -> dict[str, np.ndarray]:
    with np.load(HERE / f"{suite}.npz") as file:
        return dict(file)


@cache
def read(suite: str, name: str) -> dict[int, Tensor]:
    """The array ``name`` of a suite by batch number; of [B, L] outputs the entries inside the mask, flat."""
    joined = _joined(suite)
    flat = torch.from_numpy(joined[f"{name}|values"])
    shapes = [tuple(int(size) for size in shape if size >= 0) for shape in joined[f"{name}|shapes"]]
    pieces = flat.split([int(np.prod(shape)) for shape in shapes])
    return {
        int(n): piece.view(shape) for n, piece, shape in zip(joined[f"{name}|numbers"], pieces, shapes, strict=True)
    }


def names(suite: str) -> list[str]:
    """Names of the arrays of a suite."""
    return sorted({key.split("|")[0] for key in _joined(suite)})


def inputs(number: int) -> dict[str, Tensor]:
    """The fields of one batch."""
    return {name: read("inputs", name)[number] for name in names("inputs")}


def cases(suite: str, name: str) -> Iterator[tuple[int, dict[str, Tensor], Tensor]]:
    """(number, inputs, what the peer gave) of every batch that the peer's function ran on."""
    for number, expected in read(suite, name).items():
        yield number, inputs(number), expected


def assert_equal(ours: Tensor, theirs: Tensor, number: int, tolerance: float = 1e-6) -> None:
    """Absolute or relative difference of at most ``tolerance``, NaN nowhere."""
    torch.testing.assert_close(
        ours.double(), theirs.double(), rtol=tolerance, atol=tolerance, msg=lambda text: f"batch {number}: {text}"
    )
