"""``rlvlm check``: all faults at once, exit code 0 or 1."""

from __future__ import annotations

import subprocess
import sys

from rlvlm.cli.main import main


def test_a_sound_recipe_is_described(capsys):
    assert main(["check", "quickstart"]) == 0
    out = capsys.readouterr().out
    assert "quickstart: nothing is wrong." in out
    assert "steps of sft" in out
    assert "grpo with ppo_clip" in out


def test_paths_that_lead_nowhere_are_errors_and_hub_data_a_note(capsys):
    assert main(["check", "geometry3k", "model.path=/nowhere/model", "data.train=/nowhere/train.parquet"]) == 1
    out = capsys.readouterr().out
    assert "error: model.path '/nowhere/model' is not on this machine" in out
    assert "error: data.train '/nowhere/train.parquet' is not on this machine" in out
    assert "note: data.eval 'hiyouga/geometry3k@test' is a data set of the Hugging Face hub" in out


def test_every_fault_is_a_line(capsys):
    assert main(["check", "quickstart", "actor.epchs=1", "algorithm.advantage=grop", "reward.rules.nubmer=1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "error", "error", "quickstart"]
    assert lines[-1] == "quickstart: 3 problems."


def test_a_check_of_a_recipe_with_a_model_on_disk_loads_no_transformers():
    code = "import sys; from rlvlm.cli.main import main; main(['check', 'clevr_count']); print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_train_refuses_what_check_refuses_before_it_makes_a_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ["clevr_count", "model.path=nowhere", "data.train=gone.jsonl", "run.epochs=3", "algorithm.advantage=grop"]
    assert main(["check", *asked]) == 1
    checked = capsys.readouterr().out.splitlines()
    assert main(["train", *asked]) == 2
    trained = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("error: ") for line in checked if line.startswith("error: ")] == [
        line.removeprefix("rlvlm train: ") for line in trained if not line.startswith("note: ")
    ]
    assert [line for line in checked if line.startswith("note")] == [
        line for line in trained if line.startswith("note")
    ]
    assert list(tmp_path.iterdir()) == []
