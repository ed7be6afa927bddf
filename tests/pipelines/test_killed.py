"""SIGKILL at many moments: after a resume the run is the one that was never killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.pipelines.miniature import read_metrics

EVERY = 37
"""Changes of files between the kills; 1 tries each moment, in some minutes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """``whole``, a run that was not killed, and the killed and resumed ones beside it."""
    made = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.pipelines.killing", str(made), str(EVERY)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], capture_output=True)
    return made


def test_a_killed_run_goes_on_to_the_same_metrics_and_weights(folder):
    whole = read_metrics(folder / "whole")
    assert [(line["stage"], line["step"]) for line in whole] == [
        ("warmup", 1), ("warmup", 2), ("rl", 1), ("rl", 2), ("rl", 3),
    ]  # fmt: skip
    weights = load_file(folder / "whole" / "policy" / "model.safetensors")
    killed = [path for path in folder.iterdir() if path.name.isdigit()]
    assert len(killed) >= 4
    for run in killed:
        assert read_metrics(run) == whole, run
        resumed = load_file(run / "policy" / "model.safetensors")
        assert all(torch.equal(resumed[name], weight) for name, weight in weights.items()), run


def test_nothing_half_written_stays(folder):
    debris = [path for path in folder.rglob("*") if path.name.endswith(".partial")]
    assert not debris
    files = {
        run.name: sorted(str(path.relative_to(run)) for path in run.rglob("*") if "/samples/" not in str(path))
        for run in folder.iterdir()
        if run.is_dir()
    }
    assert all(own == files["whole"] for own in files.values())
