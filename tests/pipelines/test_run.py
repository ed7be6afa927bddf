"""Whole runs in miniature: reproducible, resumable, in stages, with a summary that says what was measured."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from rlvlm.data.config import DataConfig
from rlvlm.errors import ConfigError, TrainingStopped
from rlvlm.models.config import ModelConfig
from rlvlm.models.loading import load_policy
from rlvlm.pipelines.config import GatesConfig
from rlvlm.pipelines.run import train
from rlvlm.roles.config import ActorConfig
from tests.pipelines.miniature import TOY, read_metrics, rlvr_stage, sft_stage


def final_weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "policy" / "model.safetensors")


def same_weights(a, b) -> bool:
    left, right = final_weights(a), final_weights(b)
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


def test_the_same_seed_gives_the_same_metrics_and_weights(tmp_path):
    for name in ("a", "b"):
        train([rlvr_stage()], tmp_path / name, show=False)
    assert read_metrics(tmp_path / "a") == read_metrics(tmp_path / "b")
    assert same_weights(tmp_path / "a", tmp_path / "b")
    train([rlvr_stage(seed=6, model=ModelConfig(build=TOY, seed=6))], tmp_path / "c", show=False)
    assert read_metrics(tmp_path / "a") != read_metrics(tmp_path / "c")


def test_a_run_that_was_broken_off_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch):
    def stage():
        return rlvr_stage(steps=5, save_every=2, trackers=["jsonl", "break_off"], actor=ActorConfig(mini_batches=2))

    train([stage()], tmp_path / "whole", show=False)
    monkeypatch.setenv("BREAK_AT", "4")
    with pytest.raises(KeyboardInterrupt):
        train([stage()], tmp_path / "broken", show=False)
    monkeypatch.delenv("BREAK_AT")
    train([stage()], tmp_path / "broken", show=False)
    assert read_metrics(tmp_path / "broken") == read_metrics(tmp_path / "whole")
    assert same_weights(tmp_path / "broken", tmp_path / "whole")


def test_the_summary_says_what_was_measured(tmp_path):
    summary = train([rlvr_stage()], tmp_path / "run", recipe="mini", show=False)
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    for key in ("accuracy_before", "accuracy_after", "greedy_before", "greedy_after", "train_seconds"):
        assert stored[key] == pytest.approx(summary[key])
        assert stored[key] is not None
    assert stored["steps"] == 3
    assert stored["status"] == "finished"
    assert {"rl/generate", "rl/reward", "rl/update"} <= set(stored["seconds"])
    assert {"torch", "transformers", "rlvlm"} <= set(stored["versions"])
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    metrics = read_metrics(tmp_path / "run")
    assert [entry["step"] for entry in metrics] == [1, 2, 3]
    assert {"reward", "response_length", "mean/parity/logp_abs_diff", "staleness/max"} <= set(metrics[0])
    assert max(entry["mean/parity/logp_abs_diff"] for entry in metrics) < 1e-4
    assert {entry["staleness/max"] for entry in metrics} == {0.0}


def test_stages_start_from_the_weights_of_the_stage_before_and_a_cached_one_is_used_again(tmp_path):
    def stages():
        warmup = sft_stage(cache=True, dir=str(tmp_path / "runs"), stop_at=None)
        return [warmup, rlvr_stage(init="previous", steps=1)]

    first = train(stages(), tmp_path / "a", show=False)
    again = train(stages(), tmp_path / "b", show=False)
    assert "cached" not in first["details"]["warmup"]
    assert again["details"]["warmup"]["cached"]
    assert same_weights(tmp_path / "a", tmp_path / "b")
    changed = stages()
    changed[0].run.steps = 2
    assert "cached" not in train(changed, tmp_path / "c", show=False)["details"]["warmup"]


def test_a_supervised_stage_lowers_its_loss_and_touches_only_what_is_trainable(tmp_path):
    stage = sft_stage(steps=25)
    stage.model = ModelConfig(build=TOY, seed=5, trainable=["connector", "language"])
    stage.actor.optimizer.lr = 3e-3
    train([stage], tmp_path / "run", show=False)
    losses = [entry["loss"] for entry in read_metrics(tmp_path / "run")]
    assert losses[-1] < 0.6 * losses[0]

    before, after = dict(load_policy(stage.model).named_weights()), final_weights(tmp_path / "run")
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert any("vision_tower" in name for name in after)
    assert any("language_model" in name for name in changed)
    assert not any("vision_tower" in name for name in changed)


def test_blind_training_stops_the_run(tmp_path):
    stage = rlvr_stage(gates=GatesConfig(vision_every=1, vision_patience=2), steps=10)
    stage.plugins.append(str(tmp_path / "blind.py"))
    (tmp_path / "blind.py").write_text(
        "import torch\nfrom rlvlm.models.loading import register_model_builder\nfrom rlvlm.models.toys import toy_llava\n"
        "@register_model_builder('blind_llava')\n"
        "def blind_llava():\n"
        "    parts = toy_llava(hidden=64, layers=1, mlp=64, vision_hidden=32, vision_mlp=32)\n"
        "    with torch.no_grad():\n"
        "        for name, weight in parts.model.named_parameters():\n"
        "            if 'multi_modal_projector' in name:\n                weight.zero_()\n"
        "    return parts\n"
    )
    stage.model = ModelConfig(build="blind_llava", trainable=["language"])
    with pytest.raises(TrainingStopped, match="exactly 0 at 2 measurements running, up to step 2"):
        train([stage], tmp_path / "run", show=False)


def test_a_model_that_sees_has_a_gain_and_goes_on(tmp_path):
    train([rlvr_stage(gates=GatesConfig(vision_every=1, vision_patience=1))], tmp_path / "run", show=False)
    gains = [entry["vision/logp_gain"] for entry in read_metrics(tmp_path / "run")]
    assert len(gains) == 3
    assert all(gain != 0 for gain in gains)


def test_an_engine_that_disagrees_with_the_trainer_stops_at_the_limit(tmp_path):
    with pytest.raises(TrainingStopped, match=r"above run.gates.parity_limit = -1"):
        train([rlvr_stage(gates=GatesConfig(vision_every=0, parity_limit=-1))], tmp_path / "run", show=False)


def test_greedy_baselines_and_references_are_computed_when_the_algorithm_reads_them(tmp_path):
    stage = rlvr_stage(steps=2)
    stage.algorithm.advantage = "remax"
    stage.algorithm.regularizers = {"kl_to_reference": 0.01}
    train([stage], tmp_path / "run", show=False)
    first, second = read_metrics(tmp_path / "run")
    kl = [name for name in first if "kl" in name]
    assert kl, first.keys()
    assert abs(first[kl[0]]) < 1e-6, "the reference is the policy before training"
    assert second["step"] == 2


def test_a_filter_that_drops_every_group_skips_the_update_and_says_so(tmp_path):
    stage = rlvr_stage(steps=2)
    stage.algorithm.filters = [{"name": "mean_window", "low": 5.0, "high": 6.0}]
    train([stage], tmp_path / "run", show=False)
    assert all(entry["sum/skipped_batches"] == 1.0 for entry in read_metrics(tmp_path / "run"))


def test_nothing_to_run_and_nothing_to_start_from_are_errors(tmp_path):
    with pytest.raises(ConfigError, match="no stage to run"):
        train([], tmp_path / "run")
    with pytest.raises(ConfigError, match="starts from the previous stage, but it is the first"):
        train([rlvr_stage(init="previous")], tmp_path / "run", show=False)
    stage = rlvr_stage()
    stage.data = DataConfig(train="shapes", prompts_per_step=4)
    stage.run.accuracy_rule = "shortnes"
    with pytest.raises(ConfigError, match=r"none of reward.rules \(did you mean 'shortness'\?\)"):
        train([stage], tmp_path / "run2", show=False)


def test_a_run_directory_is_not_gone_on_with_under_other_settings(tmp_path):
    first = train([rlvr_stage()], tmp_path / "run", show=False)
    assert train([rlvr_stage()], tmp_path / "run", show=False)["accuracy_after"] == first["accuracy_after"]
    changed = rlvr_stage()
    changed.actor.optimizer.lr = 0.5
    with pytest.raises(ConfigError, match=r"other settings \(actor.optimizer.lr is 0.001 there and 0.5 here\)"):
        train([changed], tmp_path / "run", show=False)
    changed.run.resume = "never"
    (tmp_path / "run" / "notes.txt").write_text("mine")
    train([changed], tmp_path / "run", show=False)
    assert [entry["step"] for entry in read_metrics(tmp_path / "run")] == [1, 2, 3]
    assert (tmp_path / "run" / "notes.txt").exists()


def test_a_finished_run_can_be_made_longer_and_keeps_what_was_measured_before(tmp_path):
    first = train([rlvr_stage(steps=2)], tmp_path / "run", show=False)
    longer = train([rlvr_stage(steps=4)], tmp_path / "run", show=False)
    assert longer["steps"] == 4
    assert longer["accuracy_before"] == first["accuracy_before"]
    assert longer["train_seconds"] > first["train_seconds"]
    assert [entry["step"] for entry in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]
