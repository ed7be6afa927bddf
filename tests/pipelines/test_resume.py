"""What a run that is started again keeps, goes on with, redoes and refuses, each by name."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

from rlvlm.data.config import DataConfig
from rlvlm.errors import ConfigError, DataError
from rlvlm.models.config import ModelConfig
from rlvlm.pipelines.config import Stage
from rlvlm.pipelines.run import train
from rlvlm.rewards.config import RewardConfig
from rlvlm.tracking.lock import locked
from rlvlm.tracking.trackers import register_tracker
from tests.pipelines.miniature import read_metrics, rlvr_stage, sft_stage

BRIEF = {"eval_prompts": 4, "eval_batch": 4, "sample_rows": 0}


class Died(BaseException):
    """As abrupt as a kill, for a run in this process."""


@register_tracker("die")
def die(step: int, stage: str) -> None:
    """Ends the run at the stage and step that the environment names."""
    if os.environ.get("DIE_AT") == f"{stage} {step}":
        raise Died


def short_rl(**changes) -> Stage:
    return rlvr_stage(**{**BRIEF, "steps": 2, "trackers": ["jsonl", "die"], **changes})


def short_sft(name: str = "warmup", **changes) -> Stage:
    """Supervised, which starts no processes for rewards and so takes a fraction of the time."""
    stage = sft_stage(**{**BRIEF, "steps": 2, "trackers": ["jsonl", "die"], "reward": RewardConfig(), **changes})
    stage.name, stage.data.eval = name, None
    return stage


def last(**changes) -> Stage:
    return short_sft(**{"name": "last", **changes})


def steps(folder):
    return [(line["stage"], line["step"]) for line in read_metrics(folder)]


def weights(folder):
    return load_file(folder / "policy" / "model.safetensors")


def same(a, b) -> bool:
    left, right = weights(a), weights(b)
    return all(torch.equal(value, right[name]) for name, value in left.items())


def run(stages, folder, **options):
    return train(stages, folder, **{"show": False, **options})


def die_at(monkeypatch, moment, stages, folder):
    monkeypatch.setenv("DIE_AT", moment)
    with pytest.raises(Died):
        run(stages, folder)
    monkeypatch.delenv("DIE_AT")


def made(folder, stage) -> str:
    return json.loads((folder / "stages" / stage / "result.json").read_text())["made"]


def tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


# ---------------------------------------------------------------------- metrics, stop_at


def test_a_death_before_the_first_checkpoint_leaves_each_step_once(tmp_path, monkeypatch):
    die_at(monkeypatch, "last 2", [last(steps=3)], tmp_path / "run")
    assert steps(tmp_path / "run") == [("last", 1), ("last", 2)]
    run([last(steps=3)], tmp_path / "run")
    assert steps(tmp_path / "run") == [("last", 1), ("last", 2), ("last", 3)]


def test_a_stage_that_reached_stop_at_trains_no_further_after_a_death(tmp_path, monkeypatch):
    def stage():
        return short_rl(steps=5, eval_every=1, stop_at=0.0)

    from rlvlm.pipelines.stages import Examiner

    measure = Examiner.before_and_after

    def killed_after(self, moment, samples):
        if moment == "after":
            raise Died
        return measure(self, moment, samples)

    with monkeypatch.context() as patch:
        patch.setattr(Examiner, "before_and_after", killed_after)
        with pytest.raises(Died):
            run([stage()], tmp_path / "run")
    summary = run([stage()], tmp_path / "run")
    assert summary["steps"] == 1
    assert steps(tmp_path / "run") == [("rl", 1)]
    higher = stage()
    higher.run.stop_at, higher.run.steps = 2.0, 3
    assert run([higher], tmp_path / "run")["steps"] == 3


# ---------------------------------------------------------------------- stale stages


def test_a_stage_that_is_made_longer_makes_the_ones_behind_it_redone(tmp_path, capsys):
    def stages(length):
        return [short_sft(steps=length, keep_finished="all"), last(init="previous")]

    run(stages(2), tmp_path / "run")
    before = made(tmp_path / "run", "last")
    run(stages(3), tmp_path / "run", show=True)
    assert "stage 'last' is redone: stage 'warmup', which it starts from, has changed" in capsys.readouterr().err
    assert made(tmp_path / "run", "last") != before
    assert steps(tmp_path / "run") == [("warmup", 1), ("warmup", 2), ("warmup", 3), ("last", 1), ("last", 2)]
    run(stages(3), tmp_path / "direct")
    assert same(tmp_path / "run", tmp_path / "direct")


def test_a_longer_stage_whose_optimiser_was_not_kept_begins_anew_and_says_so(tmp_path, capsys):
    run([short_sft(), last(init="previous")], tmp_path / "run")
    run([short_sft(steps=3), last(init="previous")], tmp_path / "run", show=True)
    assert (
        "stage 'warmup' begins at step 1: it is finished and its optimiser's state was not kept"
        in capsys.readouterr().err
    )
    run([short_sft(steps=3), last(init="previous")], tmp_path / "direct")
    assert read_metrics(tmp_path / "run")[-1] == read_metrics(tmp_path / "direct")[-1]
    assert same(tmp_path / "run", tmp_path / "direct")


def test_a_death_while_a_stale_stage_is_redone_never_brings_the_old_one_back(tmp_path, monkeypatch):
    def stages(length):
        return [short_sft(steps=length), last(init="previous")]

    run(stages(2), tmp_path / "run")
    old = made(tmp_path / "run", "last")
    die_at(monkeypatch, "warmup 3", stages(3), tmp_path / "run")
    run(stages(3), tmp_path / "run")
    assert made(tmp_path / "run", "last") != old
    run(stages(3), tmp_path / "direct")
    assert same(tmp_path / "run", tmp_path / "direct")


def test_a_stage_that_starts_from_a_model_of_its_own_is_not_stale(tmp_path):
    run([short_sft(), last()], tmp_path / "run")
    before = made(tmp_path / "run", "last")
    run([short_sft(steps=3), last()], tmp_path / "run")
    assert made(tmp_path / "run", "last") == before


def test_a_shorter_stage_is_refused(tmp_path):
    run([last(steps=3)], tmp_path / "run")
    before = tree(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"stage 'last' of the run directory has done 3 steps, and run.steps is 2"):
        run([last(steps=2)], tmp_path / "run")
    assert tree(tmp_path / "run") == before


# ---------------------------------------------------------------------- the cache


def cached(tmp_path, **changes):
    return short_sft(cache=True, dir=str(tmp_path / "runs"), **changes)


def was_cached(summary, stage="warmup") -> bool:
    return bool(summary["details"][stage].get("cached"))


def rows(path, word):
    path.write_text("".join(json.dumps({"problem": f"q{n}", "response": word}) + "\n" for n in range(8)))


def of_file(stage, path):
    stage.data = DataConfig(train=str(path), template=None, prompts_per_step=4, prefetch=0)
    return stage


def test_the_cache_is_not_used_after_a_data_file_changed(tmp_path):
    def stage():
        return of_file(cached(tmp_path), tmp_path / "rows.jsonl")

    rows(tmp_path / "rows.jsonl", "one")
    run([stage()], tmp_path / "a")
    assert was_cached(run([stage()], tmp_path / "b"))
    rows(tmp_path / "rows.jsonl", "two")  # of the same size
    assert not was_cached(run([stage()], tmp_path / "c"))
    assert not same(tmp_path / "a", tmp_path / "c")


def test_the_cache_is_used_under_another_algorithm(tmp_path):
    run([cached(tmp_path)], tmp_path / "a")
    other = cached(tmp_path)
    other.algorithm.policy_loss, other.algorithm.advantage, other.rollout.n = "gspo", "rloo", 16
    assert was_cached(run([other], tmp_path / "b"))
    assert same(tmp_path / "a", tmp_path / "b")


def test_the_cache_is_not_used_after_a_stage_before_changed(tmp_path):
    def stages(lr):
        first = short_sft()
        first.actor.optimizer.lr = lr
        return [first, cached(tmp_path, name="second", init="previous")]

    run(stages(1e-3), tmp_path / "a")
    assert was_cached(run(stages(1e-3), tmp_path / "b"), "second")
    assert same(tmp_path / "a", tmp_path / "b")
    assert not was_cached(run(stages(1e-2), tmp_path / "c"), "second")
    assert not same(tmp_path / "a", tmp_path / "c")


def test_the_cache_is_not_used_after_the_stage_before_the_one_before_changed(tmp_path):
    def stages(lr):
        first = short_sft()
        first.actor.optimizer.lr = lr
        return [first, short_sft(name="second", init="previous"), cached(tmp_path, name="third", init="previous")]

    run(stages(1e-3), tmp_path / "a")
    assert was_cached(run(stages(1e-3), tmp_path / "b"), "third")
    assert not was_cached(run(stages(1e-2), tmp_path / "c"), "third")
    assert not same(tmp_path / "a", tmp_path / "c")


def test_a_stage_that_was_made_longer_is_not_put_into_the_cache_of_one_that_was_not(tmp_path):
    run([cached(tmp_path)], tmp_path / "a")
    run([cached(tmp_path, steps=3)], tmp_path / "a")
    assert not was_cached(run([cached(tmp_path, steps=3)], tmp_path / "b"))


# ---------------------------------------------------------------------- files that changed

RULE = """
from rlvlm.rewards import register_reward

@register_reward("of_a_file", override=True)
def of_a_file(completion: str) -> float:
    return {value} / (1.0 + len(completion))
"""


def test_a_plugin_that_was_edited_is_refused_by_name(tmp_path, monkeypatch):
    plugin = tmp_path / "mine.py"
    plugin.write_text(RULE.format(value=1.0))

    def stage():
        stage = short_rl(steps=3, save_every=1, reward=RewardConfig(rules={"of_a_file": 1.0}))
        stage.plugins.append(str(plugin))
        return stage

    die_at(monkeypatch, "rl 2", [stage()], tmp_path / "run")
    before = tree(tmp_path / "run")
    plugin.write_text(RULE.format(value=2.0))
    with pytest.raises(
        ConfigError, match=r"holds stage 'rl' with other settings \(the file '.*mine.py' has changed since"
    ):
        run([stage()], tmp_path / "run")
    assert tree(tmp_path / "run") == before
    plugin.write_text(RULE.format(value=1.0))  # put back: another time, the same content
    assert run([stage()], tmp_path / "run")["steps"] == 3


def test_a_peers_reward_file_that_was_edited_is_refused_by_name(tmp_path, monkeypatch):
    peer = tmp_path / "peer.py"
    peer.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.5\n")

    def stage():
        return short_rl(steps=3, reward=RewardConfig(rules={"theirs": {"style": "verl", "path": str(peer)}}))

    die_at(monkeypatch, "rl 2", [stage()], tmp_path / "run")
    peer.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.7\n")
    with pytest.raises(ConfigError, match=r"the file '.*peer.py' has changed since"):
        run([stage()], tmp_path / "run")


@pytest.mark.parametrize("named", ["file", "folder", "pattern"])
def test_a_data_file_that_was_edited_is_refused_by_name(tmp_path, monkeypatch, named):
    (tmp_path / "data").mkdir()
    rows(tmp_path / "data" / "train.jsonl", "one")
    path = {"file": "data/train.jsonl", "folder": "data", "pattern": "data/*.jsonl"}[named]

    def stage():
        return of_file(short_sft(steps=3, save_every=1), tmp_path / path)

    die_at(monkeypatch, "warmup 2", [stage()], tmp_path / "run")
    rows(tmp_path / "data" / "train.jsonl", "two")
    with pytest.raises(ConfigError, match=r"the file '.*train.jsonl' has changed since"):
        run([stage()], tmp_path / "run")
    (tmp_path / "data" / "train.jsonl").unlink()
    with pytest.raises((ConfigError, DataError), match=r"train.jsonl|holds no data files|does not exist"):
        run([stage()], tmp_path / "run")


def test_a_model_folder_that_was_trained_further_is_refused_by_name(tmp_path, monkeypatch):
    run([short_sft()], tmp_path / "first")

    def stage():
        return last(steps=3, model=ModelConfig(path=str(tmp_path / "first" / "policy")))

    die_at(monkeypatch, "last 2", [stage()], tmp_path / "run")
    run([short_sft(steps=4)], tmp_path / "first")
    with pytest.raises(ConfigError, match=r"the file '.*model.safetensors' has changed since"):
        run([stage()], tmp_path / "run")


def test_a_finished_stage_is_refused_too_when_its_data_changed(tmp_path):
    rows(tmp_path / "rows.jsonl", "one")
    stages = [of_file(short_sft(), tmp_path / "rows.jsonl"), last(init="previous")]
    run(stages, tmp_path / "run")
    rows(tmp_path / "rows.jsonl", "two")
    before = tree(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"stage 'warmup' .*rows.jsonl' has changed since"):
        run(stages, tmp_path / "run")
    assert tree(tmp_path / "run") == before
    stages[0].run.resume = "never"
    run(stages, tmp_path / "run")
    assert steps(tmp_path / "run") == [("warmup", 1), ("warmup", 2), ("last", 1), ("last", 2)]


# ---------------------------------------------------------------------- resume=never


def test_never_on_one_finished_stage_redoes_it_and_the_ones_behind_it_alone(tmp_path):
    def stages(resume="auto"):
        middle = short_sft("middle", resume=resume, init="previous", steps=1, save_every=1, keep=1)
        return [short_sft(), middle, last(init="previous")]

    run(stages(), tmp_path / "run")
    before = {name: made(tmp_path / "run", name) for name in ("warmup", "middle", "last")}
    run(stages("never"), tmp_path / "run")
    after = {name: made(tmp_path / "run", name) for name in ("warmup", "middle", "last")}
    assert before["warmup"] == after["warmup"]
    assert before["middle"] != after["middle"]
    assert before["last"] != after["last"]
    assert sorted(steps(tmp_path / "run")) == sorted(
        [("warmup", 1), ("warmup", 2), ("middle", 1), ("last", 1), ("last", 2)]
    )


def test_never_deletes_the_old_checkpoints_and_not_the_new_ones(tmp_path, monkeypatch):
    run([short_sft(keep_finished="all", steps=6, save_every=1), last(init="previous")], tmp_path / "run")
    again = [short_sft(resume="never", steps=6, save_every=1), last(init="previous")]
    die_at(monkeypatch, "warmup 4", again, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints" / "warmup").iterdir()) == [
        "step_000002",
        "step_000003",
    ]
    again[0].run.resume = "auto"
    assert run(again, tmp_path / "run")["details"]["warmup"]["steps"] == 6


# ---------------------------------------------------------------------- what stays


def test_weights_are_stored_once_and_the_optimiser_of_the_last_stage_alone(tmp_path):
    run([short_sft(save_every=1), last(init="previous", save_every=1)], tmp_path / "run")
    of_stage = tmp_path / "run" / "stages" / "last" / "policy" / "model.safetensors"
    assert os.path.samefile(tmp_path / "run" / "policy" / "model.safetensors", of_stage)
    kept = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("optimizer.pt"))
    assert kept == ["checkpoints/last/step_000002/optimizer.pt"]


@pytest.mark.parametrize(("choice", "count"), [("all", 2), ("none", 0)])
def test_keep_finished_says_whose_optimiser_stays(tmp_path, choice, count):
    run([short_sft(keep_finished=choice), last(init="previous", keep_finished=choice)], tmp_path / "run")
    assert len(list((tmp_path / "run").rglob("optimizer.pt"))) == count
    with pytest.raises(ConfigError, match=r"run.keep_finished is one of last, all, none, got 'some'|keep_finished"):
        short_rl(keep_finished="some")


def test_two_rl_stages_both_keep_their_accuracies(tmp_path):
    second = short_rl(init="previous")
    second.name = "more"
    summary = run([short_rl(), second], tmp_path / "run")
    for name in ("rl", "more"):
        assert {"accuracy_before", "accuracy_after", "greedy_before", "greedy_after"} <= summary["details"][name].keys()
    assert summary["accuracy_after"] == summary["details"]["more"]["accuracy_after"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "rl: accuracy before" in page
    assert "more: accuracy before" in page


# ---------------------------------------------------------------------- refusals write nothing, locks


def test_a_refused_restart_changes_no_file(tmp_path):
    run([last()], tmp_path / "run", config_text="mine: 1\n")
    before = tree(tmp_path / "run")
    other = last()
    other.actor.optimizer.lr = 0.5
    with pytest.raises(ConfigError, match="other settings"):
        run([other], tmp_path / "run", config_text="other: 1\n")
    assert tree(tmp_path / "run") == before


def test_a_finished_run_says_so_and_does_nothing(tmp_path):
    run([last()], tmp_path / "run")
    before = tree(tmp_path / "run")
    assert run([last()], tmp_path / "run")["already_finished"]
    assert tree(tmp_path / "run") == before


def three_stages(**changes):
    chained = {"init": "previous", **changes}
    return [short_sft(), short_sft(name="second", **chained), short_sft(name="third", **chained)]


def test_a_finished_run_of_three_stages_does_nothing_either(tmp_path):
    run(three_stages(), tmp_path / "run")
    before = tree(tmp_path / "run")
    assert run(three_stages(), tmp_path / "run").get("already_finished")
    assert tree(tmp_path / "run") == before


def test_the_third_stage_goes_on_from_its_checkpoint(tmp_path, monkeypatch, capsys):
    die_at(monkeypatch, "third 3", three_stages(steps=3, save_every=1), tmp_path / "run")
    run(three_stages(steps=3, save_every=1), tmp_path / "run", show=True)
    told = capsys.readouterr().err
    assert "third: resumed from step 2 of 3" in told
    assert "redone" not in told


def test_a_resumed_run_says_from_where(tmp_path, monkeypatch, capsys):
    die_at(monkeypatch, "last 3", [last(steps=4, save_every=2)], tmp_path / "run")
    run([last(steps=4, save_every=2)], tmp_path / "run", show=True)
    assert "last: resumed from step 2 of 4" in capsys.readouterr().err


def test_a_directory_of_another_version_is_refused(tmp_path):
    run([last()], tmp_path / "run")
    (tmp_path / "run" / "stages" / "last" / "origin.json").unlink()
    with pytest.raises(ConfigError, match=r"another version of rlvlm"):
        run([last()], tmp_path / "run")


def test_a_checkpoint_of_another_run_is_refused(tmp_path, monkeypatch):
    die_at(monkeypatch, "last 3", [last(steps=4, save_every=2)], tmp_path / "a")
    die_at(monkeypatch, "last 3", [last(steps=4, save_every=2, seed=9)], tmp_path / "b")
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    shutil.copytree(tmp_path / "b" / "checkpoints", tmp_path / "a" / "checkpoints")
    with pytest.raises(ConfigError, match=r"was made of other settings or files"):
        run([last(steps=4, save_every=2)], tmp_path / "a")


def test_two_processes_do_not_run_in_one_directory(tmp_path):
    run([last()], tmp_path / "run")
    before = tree(tmp_path / "run")
    with locked(tmp_path / "run"), pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on host"):
        run([last(steps=4)], tmp_path / "run")
    assert tree(tmp_path / "run") == before


def test_trackers_get_the_name_that_the_run_was_given(tmp_path):
    names = []

    @register_tracker("names_of_tests", override=True)
    def keep(run_name: str) -> None:
        names.append(run_name)

    run([last(steps=1, trackers=["names_of_tests"], name="warmup")], tmp_path / "unnamed")
    stage = last(steps=1, trackers=["names_of_tests"])
    stage.run.name = "mine"
    run([stage], tmp_path / "mine")
    run([stage], tmp_path / "mine" / "0")
    assert names == ["unnamed", "mine", "mine/0"]


# ---------------------------------------------------------------------- signals


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_lets_the_step_end_saves_and_the_run_goes_on_behind_it(tmp_path, monkeypatch, number, raised):
    def end(given, frame):
        raise SystemExit(128 + given)

    before = signal.signal(signal.SIGTERM, end)
    try:
        from rlvlm.roles.reward import Reward

        score = Reward.score
        calls = []

        def interrupted(self, batch):
            calls.append(1)
            if len(calls) == 4:  # two evaluations before, then in the middle of the second step
                os.kill(os.getpid(), number)
            return score(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(Reward, "score", interrupted)
            with pytest.raises(raised):
                run([short_rl(steps=4)], tmp_path / "run")
        assert steps(tmp_path / "run") == [("rl", 1), ("rl", 2)]
        assert (tmp_path / "run" / "checkpoints" / "rl" / "step_000002").is_dir()
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"].startswith("stopped: ")
    finally:
        signal.signal(signal.SIGTERM, before)
    run([short_rl(steps=4)], tmp_path / "run")
    run([short_rl(steps=4)], tmp_path / "whole")
    assert read_metrics(tmp_path / "run") == read_metrics(tmp_path / "whole")
    assert same(tmp_path / "run", tmp_path / "whole")


def test_a_second_signal_ends_at_once(tmp_path, monkeypatch):
    from rlvlm.roles.reward import Reward

    def twice(self, batch):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second signal was held back")

    stage = short_rl(steps=4)
    stage.data.eval = None
    monkeypatch.setattr(Reward, "score", twice)
    with pytest.raises(KeyboardInterrupt):
        run([stage], tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_finished_run_of_four_stages_does_nothing_twice(tmp_path):
    stages = [short_sft("first"), *(last(init="previous", name=name) for name in ("second", "third", "fourth"))]
    run(stages, tmp_path)
    there = {name: made(tmp_path, name) for name in ("first", "second", "third", "fourth")}
    assert run(stages, tmp_path)["already_finished"]
    assert {name: made(tmp_path, name) for name in there} == there


def test_a_run_that_dies_in_its_third_stage_keeps_the_first_two(tmp_path, monkeypatch):
    stages = [short_sft("first"), last(init="previous", name="second"), last(init="previous", name="third")]
    die_at(monkeypatch, "third 2", stages, tmp_path)
    there = {name: made(tmp_path, name) for name in ("first", "second")}
    run(stages, tmp_path)
    assert {name: made(tmp_path, name) for name in there} == there
