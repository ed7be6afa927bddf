"""``rlvlm train``: a hydra application that runs from any folder and leaves a run directory behind."""

from __future__ import annotations

import errno
import json
import signal
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlvlm.cli.main import main
from rlvlm.conf import load_recipe

SMALL = [
    "model.build={name: toy_llava, task: shapes, hidden: 64, layers: 1, mlp: 64, vision_hidden: 32, vision_mlp: 32}",
    "data.train.size=64", "data.eval={name: shapes, size: 8}", "data.prompts_per_step=4", "rollout.n=2", "rollout.max_new_tokens=3",
    "run.eval_prompts=8", "run.eval_batch=8", "run.steps=2", "run.threads=1", "stages.warmup.run.steps=1", "stages.warmup.cache=false",
]  # fmt: skip


def only_run(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One small run, started in a folder of its own."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "quickstart", *SMALL, "algorithm.policy_loss={name: ppo_clip, clip_high: 0.28}"]) == 0
    assert [path.name for path in folder.iterdir()] == ["runs"]  # hydra leaves no folder of its own
    return only_run(folder / "runs")


def test_the_run_directory_holds_what_was_promised(run):
    assert run.name.startswith("quickstart-")
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "report.html", "tensorboard", "policy"):
        assert (run / name).exists(), name
    summary = json.loads((run / "summary.json").read_text())
    for key in ("accuracy_before", "accuracy_after", "greedy_before", "greedy_after"):
        assert 0.0 <= summary[key] <= 1.0
    assert summary["train_seconds"] > 0
    assert summary["status"] == "finished"
    assert summary["recipe"] == "quickstart"
    assert any(name.endswith("generate") for name in summary["seconds"])
    assert "torch" in summary["versions"]


def test_metrics_hold_each_step_of_each_stage_with_times_and_memory(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(record["stage"], record["step"]) for record in records] == [("warmup", 1), ("rlvr", 1), ("rlvr", 2)]
    assert records[-1]["time/update"] > 0
    assert records[-1]["memory/update"] > 0
    assert "reward" in records[-1]


def test_training_answers_are_kept_with_every_rule_s_score(run):
    kept = [json.loads(line) for line in (run / "training_samples.jsonl").read_text().splitlines()]
    assert [group["uid"].split("/")[:2] for group in kept] == [["rlvr", "1"]] * 2
    (answers,) = kept[0]["answers"].values()
    assert len(answers) == 2
    assert all(set(answer["scores"]) == {"number", "format"} for answer in answers)
    assert all((run / picture).exists() for group in kept for picture in group["pictures"])


def test_metrics_hold_the_spread_of_the_rewards_and_the_epoch(run):
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["reward/std"] >= 0.0
    assert last["epoch"] == 2 * 4 / 64


def test_the_report_shows_the_run(run):
    page = (run / "report.html").read_text()
    assert f"<h1>{run.name}</h1>" in page
    assert "toy_llava" in page
    assert "rlvlm train quickstart" in page
    assert "Answers while training" in page
    assert "\ufffd" not in page
    assert "Curves: rlvr" in page
    assert "data:image/png;base64," in page


def test_the_written_config_repeats_the_run(run):
    recipe = load_recipe(run / "config.yaml")
    assert recipe.algorithm.policy_loss == {"name": "ppo_clip", "clip_high": 0.28}
    assert recipe == load_recipe("quickstart", [*SMALL, "algorithm.policy_loss={name: ppo_clip, clip_high: 0.28}"])


def test_a_named_run_is_resumed_and_a_finished_one_does_nothing_twice(tmp_path, capsys):
    named = [*SMALL, f"run.dir={tmp_path}", "run.name=mine", "run.trackers=[jsonl]"]
    assert main(["train", "quickstart", *named]) == 0
    first = (tmp_path / "mine" / "metrics.jsonl").read_text()
    assert main(["train", "quickstart", *named]) == 0
    assert (tmp_path / "mine" / "metrics.jsonl").read_text() == first
    assert str(tmp_path / "mine" / "report.html") in capsys.readouterr().out


def test_multirun_runs_each_combination_in_its_own_directory(tmp_path, capsys):
    sweep = [*SMALL, f"run.dir={tmp_path}", "run.name=sweep", "run.steps=1", "algorithm.policy_loss=ppo_clip,gspo"]
    assert main(["train", "quickstart", "--multirun", *sweep]) == 0
    losses = [load_recipe(tmp_path / "sweep" / job / "config.yaml").algorithm.policy_loss for job in ("0", "1")]
    assert losses == ["ppo_clip", "gspo"]
    assert "job 1: " in capsys.readouterr().out


def test_a_users_reward_in_a_file_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_reward.py").write_text(
        "from rlvlm import register_reward\n"
        "@register_reward('train_test_brevity')\n"
        "def brevity(completion: str) -> float:\n    return 1.0 / (1 + len(completion))\n"
    )
    own = [
        "plugins=[my_reward.py]",
        "reward.rules={train_test_brevity: 1.0}",
        "~reward.rules.number",
        "~reward.rules.format",
    ]
    assert main(["train", "quickstart", *SMALL, *own, "run.steps=1", "hydra.run.dir=here"]) == 0
    records = [json.loads(line) for line in Path("here/metrics.jsonl").read_text().splitlines()]
    assert records[-1]["reward"] > 0


def test_a_run_that_stops_itself_says_why_and_keeps_its_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("failing.py").write_text(
        "from rlvlm import register_reward\n"
        "@register_reward('train_test_failing')\n"
        "def failing(completion: str) -> float:\n    raise ValueError('always')\n"
    )
    own = [
        "plugins=[failing.py]",
        "reward.rules={train_test_failing: 1.0}",
        "~reward.rules.number",
        "~reward.rules.format",
    ]
    assert main(["train", "quickstart", *SMALL, *own, "hydra.run.dir=here"]) == 1
    captured = capsys.readouterr()
    assert "rlvlm train: " in captured.err
    assert "max_error_rate" in captured.err
    assert json.loads(Path("here/summary.json").read_text())["status"].startswith("stopped: ")
    assert Path("here/report.html").exists()


def test_cfg_prints_the_composed_recipe_and_stops(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "quickstart", "--cfg", "job", "actor.epochs=3"]) == 0
    printed = OmegaConf.create(capsys.readouterr().out)
    assert printed.actor.epochs == 3
    assert printed.algorithm.advantage == {"name": "grpo", "std": "none"}
    assert "hydra" not in printed
    assert main(["train", "--cfg", "job", "-p", "actor.optimizer", "quickstart"]) == 0
    assert "lr:" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_help_and_info_explain_a_recipe(capsys):
    assert main(["train", "--help"]) == 0
    assert "Recipes: " in capsys.readouterr().out
    assert main(["train", "quickstart", "--help"]) == 0
    text = capsys.readouterr().out
    assert "rlvlm train quickstart [key=value …]" in text
    assert "model: qwen2_5_vl_3b" in text
    assert main(["train", "quickstart", "--info", "defaults-tree"]) == 0


def test_a_recipe_of_ones_own_runs_by_its_path_and_inherits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("defaults: [quickstart, _self_]\nalgorithm: {policy_loss: {name: gspo}}\n")
    assert main(["train", "mine.yaml", *SMALL, "run.steps=1"]) == 0
    run = only_run(tmp_path / "runs")
    assert run.name.startswith("mine-")
    assert load_recipe(run / "config.yaml").algorithm.policy_loss == {"name": "gspo"}


def test_another_folder_of_configs_can_be_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more" / "model").mkdir(parents=True)
    Path("more/model/mine.yaml").write_text("# @package model\npath: /models/mine\ndtype: bfloat16\n")
    assert main(["train", "clevr_count", "--config-dir", "more", "model=mine", "--cfg", "job", "-p", "model"]) == 0
    assert "path: /models/mine" in capsys.readouterr().out


def test_an_interrupted_run_says_so_in_its_summary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("breaking.py").write_text(
        "from rlvlm.tracking import register_tracker\n"
        "@register_tracker('train_test_interrupt')\n"
        "def interrupt(step: int) -> None:\n    raise KeyboardInterrupt\n"
    )
    own = ["plugins=[breaking.py]", "run.trackers=[jsonl,train_test_interrupt]"]
    assert main(["train", "quickstart", *SMALL, *own, "hydra.run.dir=here"]) == 130
    assert json.loads(Path("here/summary.json").read_text())["status"] == "stopped: interrupted"


def test_a_terminated_run_says_so_in_its_summary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ending.py").write_text(
        "import os, signal\n"
        "from rlvlm.tracking import register_tracker\n"
        "@register_tracker('train_test_terminate')\n"
        "def terminate(step: int) -> None:\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    own = ["plugins=[ending.py]", "run.trackers=[jsonl,train_test_terminate]"]
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main(["train", "quickstart", *SMALL, *own, "hydra.run.dir=here"])
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert json.loads(Path("here/summary.json").read_text())["status"] == "stopped: terminated"


# ---------------------------------------------------------------------- resuming, and directories


def supervised(folder: Path, **run: object) -> list[str]:
    """A run of one supervised stage, named in ``folder``."""
    own = {"dir": folder, "name": "mine", "trackers": "[jsonl]", **run}
    stage = "stages=[{name: warmup, pipeline: sft, data: {train: {columns: {answer: response}}}}]"
    return [*[word for word in SMALL if not word.startswith(("stages", "rollout"))], stage, "data.eval=null", "reward.rules={}",
            "~reward.rules.number", "~reward.rules.format", *(f"run.{key}={value}" for key, value in own.items())]  # fmt: skip


def made_steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_config_of_a_run_goes_on_with_that_run_and_repeats_it_under_another_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "quickstart", *supervised(Path("runs"))]) == 0
    out = capsys.readouterr().out
    assert "model: runs/mine/policy\n" in out
    assert "report: runs/mine/report.html\n" in out
    config = "runs/mine/config.yaml"
    assert main(["train", config]) == 0
    assert "finished already, with 2 steps" in capsys.readouterr().out
    assert main(["train", config, "run.steps=3"]) == 0
    assert "warmup: resumed from step 2 of 3" in capsys.readouterr().err
    assert made_steps(Path("runs/mine")) == [1, 2, 3]
    assert main(["train", config, "run.name=other"]) == 0
    assert made_steps(Path("runs/other")) == [1, 2, 3]
    assert sorted(path.name for path in Path("runs").iterdir()) == ["mine", "other"]
    summary = json.loads(Path("runs/other/summary.json").read_text())
    assert summary["status"] == "finished"
    assert main(["train", config, "run.resume=never"]) == 0
    assert load_recipe(config).run.resume == "auto", "the file a run leaves goes on with it"
    assert json.loads(Path("runs/mine/summary.json").read_text())["recipe"] == "quickstart"


def test_a_recipe_called_config_that_no_run_left_begins_a_run_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("defaults: [quickstart, _self_]\n")
    assert main(["train", "config.yaml", *supervised(Path("runs"))]) == 0
    assert Path("runs/mine/policy").is_dir()


def test_a_refused_restart_leaves_config_and_summary_as_they_are(tmp_path, capsys):
    assert main(["train", "quickstart", *supervised(tmp_path)]) == 0
    files = {
        path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file() and path.name != ".lock"
    }
    assert main(["train", "quickstart", *supervised(tmp_path), "actor.optimizer.lr=0.5"]) == 1
    assert "other settings (actor.optimizer.lr is" in capsys.readouterr().err
    assert all(path.read_bytes() == content for path, content in files.items())


def test_ctrl_c_saves_and_prints_the_command_that_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("breaking.py").write_text(
        "import os, signal\n"
        "from rlvlm.tracking import register_tracker\n"
        "@register_tracker('train_test_ctrl_c')\n"
        "def ctrl_c(step: int) -> None:\n"
        "    if step == 2 and not os.path.exists('pressed'):\n"
        "        open('pressed', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
    )
    own = ["plugins=[breaking.py]", "run.trackers=[jsonl,train_test_ctrl_c]", "run.steps=4"]
    assert main(["train", "quickstart", *supervised(Path("runs")), *own]) == 130
    told = capsys.readouterr().err
    assert "SIGINT: step 2 is finished and saved first" in told
    (command,) = [line.partition(": ")[2] for line in told.splitlines() if line.startswith("go on with: ")]
    assert command == "rlvlm train runs/mine/config.yaml"
    assert main(command.split()[1:]) == 0
    assert "resumed from step 2 of 4" in capsys.readouterr().err
    assert made_steps(Path("runs/mine")) == [1, 2, 3, 4]


@pytest.mark.parametrize("multirun", [[], ["--multirun"]])
def test_a_key_that_no_stage_reads_stops_the_command_before_it_trains(tmp_path, capsys, multirun):
    assert main(["train", "quickstart", *multirun, *supervised(tmp_path), "algorithm.advantage=rloo"]) in (1, 2)
    assert "'algorithm.advantage' has no effect" in capsys.readouterr().err
    assert not (tmp_path / "mine" / "stages").exists()


@pytest.mark.parametrize("multirun", [[], ["--multirun"]])
@pytest.mark.parametrize("name", [["run.name=mine"], []])
def test_a_run_directory_that_can_not_be_made_is_one_sentence(tmp_path, capsys, multirun, name):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "runs"
    command = ["train", "quickstart", *multirun, *supervised(folder), *name, *([] if name else ["run.name=null"])]
    assert main(command) == 1
    captured = capsys.readouterr().err
    (line,) = [line for line in captured.splitlines() if line.startswith("rlvlm train: ")]
    assert str(folder) in line
    assert "can't be made (not a directory); choose another folder with run.dir." in line
    assert "Traceback" not in captured


def test_a_disk_that_is_full_ends_a_run_with_one_sentence_and_loses_nothing(tmp_path, monkeypatch, capsys):
    from rlvlm.tracking.trackers import JsonlTracker

    write = JsonlTracker.__call__

    def full(self, step, stage, metrics, run_dir):
        if step == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, step, stage, metrics, run_dir)

    with monkeypatch.context() as patch:
        patch.setattr(JsonlTracker, "__call__", full)
        assert main(["train", "quickstart", *supervised(tmp_path), "run.steps=4", "run.save_every=2"]) == 1
    told = capsys.readouterr().err
    assert (
        f"rlvlm train: the run directory '{tmp_path / 'mine'}' can't be written (no space left on device); free some"
        in told
    )
    assert "Traceback" not in told
    assert main(["train", "quickstart", *supervised(tmp_path), "run.steps=4", "run.save_every=2"]) == 0
    assert made_steps(tmp_path / "mine") == [1, 2, 3, 4]
