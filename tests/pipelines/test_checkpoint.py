"""Checkpoints: the newest whole one is found, the oldest are dropped, a half-written one is passed over."""

from __future__ import annotations

import errno

import pytest
import torch
from safetensors import SafetensorError

from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.local import LocalEngine
from rlvlm.errors import DataError, StorageError
from rlvlm.pipelines.checkpoint import Checkpoints
from tests import tiny


def engine() -> LocalEngine:
    made = LocalEngine("cpu")
    made.prepare(tiny.policy("llava"), OptimizerConfig(), 1)
    return made


def trained() -> LocalEngine:
    """With a state of the optimiser."""
    made = engine()
    weight = next(p for p in made.policy.parameters() if p.requires_grad)
    made.backward(weight.square().sum())
    made.step()
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


DAMAGES = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\xa5" + path.read_bytes()[-8:]),
}


@pytest.mark.parametrize("name", ["state.pt", "policy.safetensors", "optimizer.pt", "files.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_is_named_and_the_last_good_one_loaded(tmp_path, caplog, name, damage):
    made, checkpoints = trained(), Checkpoints(tmp_path)
    for step in (3, 4):
        checkpoints.save(step, made, {"it": step})
    DAMAGES[damage](tmp_path / "step_000004" / name)
    caplog.clear()
    assert checkpoints.load_newest(made)["it"] == 3
    if (name, damage) == ("files.json", "gone"):
        return  # as cut off before it was whole
    assert "step_000004' is damaged" in caplog.text
    assert name in caplog.text
    assert checkpoints.steps() == [3]
    checkpoints.save(4, made, {"it": "again"})  # what is new counts as newest, whatever lay there
    assert checkpoints.load_newest(made)["it"] == "again"


def test_without_a_good_checkpoint_every_damaged_one_is_named_and_nothing_is_deleted(tmp_path):
    made, checkpoints = engine(), Checkpoints(tmp_path)
    for step in (3, 4):
        checkpoints.save(step, made, {})
        (tmp_path / f"step_{step:06d}" / "state.pt").write_bytes(b"not a state")
    with pytest.raises(DataError, match=r"step_000004': state.pt has 11 bytes of .*step_000003.*run.resume=never"):
        checkpoints.load_newest(made)
    assert checkpoints.steps() == [3, 4]


def test_a_checkpoint_that_can_not_be_written_leaves_the_ones_before_and_no_debris(tmp_path, monkeypatch):
    made, checkpoints = engine(), Checkpoints(tmp_path, keep=1)
    checkpoints.save(3, made, {})
    full = {
        "torch": RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
        "safetensors": SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        "python": OSError(errno.ENOSPC, "No space left on device"),
    }
    for error in full.values():

        def fail(folder, error=error):
            (folder / "policy.safetensors").write_bytes(b"half")
            raise error

        monkeypatch.setattr(made, "save", fail)
        with pytest.raises(StorageError, match=r"can't be written.*free some space.*start the run again"):
            checkpoints.save(4, made, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step_000003"]


def test_a_fault_of_the_engine_is_no_full_disk(tmp_path, monkeypatch):
    made = engine()

    def fail(folder):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(made, "save", fail)
    with pytest.raises(RuntimeError, match="shapes cannot"):
        Checkpoints(tmp_path).save(4, made, {})
