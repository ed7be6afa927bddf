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


def test_a_real_recipe_is_accepted_and_says_what_it_could_not_look_at(capsys):
    assert main(["check", "geometry3k", "model.path=/nowhere/model", "data.train=/nowhere/train.parquet"]) == 0
    out = capsys.readouterr().out
    assert "note: model.path '/nowhere/model'" in out
    assert "note: data.train '/nowhere/train.parquet'" in out


def test_every_fault_is_a_line(capsys):
    assert main(["check", "quickstart", "actor.epchs=1", "algorithm.advantage=grop", "reward.rules.nubmer=1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "error", "error", "quickstart"]
    assert lines[-1] == "quickstart: 3 problems."


def test_a_check_of_a_recipe_with_a_model_on_disk_loads_no_transformers():
    code = "import sys; from rlvlm.cli.main import main; main(['check', 'clevr_count']); print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
