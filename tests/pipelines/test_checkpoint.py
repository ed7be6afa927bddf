"""Checkpoints: the newest whole one is found, the oldest are dropped, a half-written one is passed over."""

from __future__ import annotations

import pytest
import torch

from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.local import LocalEngine
from rlvlm.errors import DataError
from rlvlm.pipelines.checkpoint import Checkpoints
from tests import tiny


def engine() -> LocalEngine:
    made = LocalEngine("cpu")
    made.prepare(tiny.policy("llava"), OptimizerConfig(), 1)
    return made


def test_only_the_newest_are_kept_and_the_newest_is_loaded(tmp_path):
    made, checkpoints = engine(), Checkpoints(tmp_path, keep=2)
    for step in (1, 5, 12):
        checkpoints.save(step, made, {"parts": {"counts": torch.tensor([step, 2])}})
    assert checkpoints.steps() == [5, 12]
    state = checkpoints.load_newest(made)
    assert state["step"] == 12
    assert state["parts"]["counts"].tolist() == [12, 2]


def test_a_half_written_checkpoint_is_passed_over_and_a_step_can_be_saved_again(tmp_path):
    made, checkpoints = engine(), Checkpoints(tmp_path)
    checkpoints.save(3, made, {})
    (tmp_path / ".partial_000007").mkdir()
    (tmp_path / "step_000007").mkdir()  # without a state: cut off before it was whole
    assert checkpoints.steps() == [3]
    checkpoints.save(3, made, {"again": True})
    assert checkpoints.load_newest(made)["again"] is True


def test_without_a_checkpoint_there_is_nothing_to_load(tmp_path):
    assert Checkpoints(tmp_path / "none").load_newest(engine()) is None


def test_a_damaged_state_says_what_to_do(tmp_path):
    made, checkpoints = engine(), Checkpoints(tmp_path)
    folder = checkpoints.save(3, made, {})
    (folder / "state.pt").write_bytes(b"not a state")
    with pytest.raises(DataError, match=r"state.pt' is damaged .*delete that folder"):
        checkpoints.load_newest(made)
