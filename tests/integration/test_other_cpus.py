"""A sample of the numeric tests as other CPUs round, and on more threads; ``make test-cpus`` runs all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = [
    "tests/models/test_head.py",
    "tests/models/test_policy.py::test_saved_adapters_are_merged",
    "tests/models/test_invariants.py",
    "tests/algos/policy_losses",
]


@pytest.mark.parametrize(
    "setting",
    [
        {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"},
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "2"},
    ],
    ids=["default", "avx2"],
)
def test_numbers_hold_as_another_cpu_rounds(setting: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not qwen", *SAMPLE]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **setting}, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
