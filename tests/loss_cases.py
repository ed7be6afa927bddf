"""Cases of faults that were reported of other libraries' losses: ``tests/cases/loss.jsonl``, shared by the folders that test them.

A case gives inputs, what must come out, and where it was reported. ``null`` in an input stands for NaN, in an expected
value for "anything".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases/loss.jsonl").read_text().splitlines()]
Case = dict[str, Any]
Operation = Callable[[Case, Case, Case], None]
"""Takes a case's input, what is expected, and the whole case."""


def table(*operations: Operation) -> dict[str, Operation]:
    """Operations by their name in the cases."""
    return {operation.__name__: operation for operation in operations}


def cases_of(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrises a test by the cases of these operations."""
    chosen = [case for case in CASES if case["input"]["op"] in set(names)]
    return pytest.mark.parametrize("case", chosen, ids=[f"{case['id']}-{case['source']}" for case in chosen])


def numbers(values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor in which ``null`` is NaN."""

    def plain(value: Any) -> Any:
        return [plain(item) for item in value] if isinstance(value, list) else math.nan if value is None else value

    return torch.tensor(plain(values), dtype=dtype)


def close(got: Tensor, expected: Any, case: Case) -> None:
    """Equal to the case's tolerance wherever it expects a number."""
    wanted = numbers(expected)
    assert got.shape == wanted.shape
    anything = wanted.isnan()
    torch.testing.assert_close(
        got.double().masked_fill(anything, 0),
        wanted.masked_fill(anything, 0),
        rtol=1e-9,
        atol=case["tolerance"] or 1e-12,
    )
