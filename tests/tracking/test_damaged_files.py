"""A damaged file of a run directory is named with the remedy, wherever it is read."""

from __future__ import annotations

import pytest

from rlvlm.cli.main import main
from rlvlm.errors import RlvlmError
from rlvlm.pipelines.run import train
from rlvlm.tracking.rundir import RunDir, read_metrics, read_summary
from rlvlm.tracking.samples import load_samples, load_training_samples
from tests.pipelines.miniature import rlvr_stage, sft_stage

FAULTS = {"empty": b"", "cut": b'{"a": ', "other": b"5", "bytes": b"\xff\xfe\x00{}"}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_reader_names_its_file(tmp_path, fault):
    run = RunDir(tmp_path)
    for path, read in ((run.summary, lambda: read_summary(run)), (run.samples, lambda: load_samples(run))):
        path.write_bytes(FAULTS[fault])
        with pytest.raises(RlvlmError, match=rf"{path.name}' .*; restore it, or delete it"):
            read()
    run.metrics.write_bytes(FAULTS[fault] + b'\n{"step": 1}\n')
    if fault != "empty":
        with pytest.raises(RlvlmError, match=r"line 1 of .*metrics.jsonl"):
            list(read_metrics(run.metrics))
    run.training_samples.write_bytes(FAULTS[fault] + b"\n")
    assert load_training_samples(run) == []


def fault_of(stages, folder) -> str:
    """What a restart says of the run; the names of all files where it says nothing."""
    try:
        train(stages, folder, show=False)
    except RlvlmError as error:
        return str(error)
    return " ".join(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_finished_run_with_a_damaged_file_is_refused_or_goes_on_but_never_breaks(tmp_path, fault, capsys):
    stages = [sft_stage(steps=1), rlvr_stage(steps=1, sample_every=1)]
    stages[1].init = "previous"
    train(stages, tmp_path, show=False)
    for name in ("summary.json", "samples.json", "metrics.jsonl", "training_samples.jsonl", "stages/rl/result.json"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(FAULTS[fault])
        assert name.split("/")[-1] in fault_of(stages, tmp_path)
        assert main(["report", str(tmp_path)]) in (0, 1)
        assert "Traceback" not in capsys.readouterr().err
        (tmp_path / name).write_bytes(content)
    assert train(stages, tmp_path, show=False)["already_finished"]
