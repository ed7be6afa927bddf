"""Three supervised stages and two of reinforcement learning in miniature, captions packed offline."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvlm.conf import load_recipe, resolve_stages
from rlvlm.conf.check import examine
from rlvlm.data.config import DataConfig
from rlvlm.data.offline_packing import Budget, ShardTask, count_lengths, pack, save_bins, write_shards
from rlvlm.data.workers import SourceTask
from rlvlm.models.config import ModelConfig
from rlvlm.models.loading import load_policy
from rlvlm.pipelines.origin import read_origin
from rlvlm.pipelines.run import train

OV15 = ("ov15_stage1", "ov15_stage1_5", "ov15_stage2", "ov15_rl_stage1", "ov15_rl_stage2", "ov15_mini")
STEPS = {"stage1": 15, "stage1_5": 15, "stage2": 15, "rl_stage1": 2, "rl_stage2": 1}
SMALL = ["data.prompts_per_step=16", "run.eval_prompts=32", "rollout.n=4"]
SMALL += [f"stages.{name}.data.prompts_per_step=4" for name in ("rl_stage1", "rl_stage2")]


@pytest.mark.parametrize("name", OV15)
def test_the_recipes_are_accepted_but_for_what_is_not_on_this_machine(name: str) -> None:
    _, found = examine(name)
    assert found.problems == found.absent


def test_the_published_settings_are_those_of_the_recipes() -> None:
    first, _, third = (resolve_stages(load_recipe(name))[0] for name in OV15[:3])
    assert first.model.trainable == ["connector"]
    assert (first.run.steps, first.data.prompts_per_step, first.actor.optimizer.lr) == (2500, 8, 1e-4)
    assert (third.run.steps, third.data.prompts_per_step, third.actor.optimizer.weight_decay) == (3500, 224, 0)
    one, two = (resolve_stages(load_recipe(name))[0] for name in OV15[3:5])
    assert (one.rollout.n, one.rollout.max_new_tokens, one.rollout.temperature) == (16, 4096, 1.0)
    assert (one.reward.scale, one.reward.bias, one.run.seed, one.data.prompts_per_step) == (10.0, -0.5, 219, 32)
    assert (one.actor.optimizer.lr, one.actor.mini_batches, one.data.max_pixels) == (2e-6, 1, 512 * 512)
    assert one.algorithm.policy_loss == {"name": "decoupled_clip", "clip_low": 0.2, "clip_high": 0.28}
    assert (one.data.template, two.data.template) == ("answer_only", "think_answer")
    assert two.model.path == "runs/ov15_rl_stage1/policy"
    assert {**vars(one), **dict.fromkeys(("model", "data", "run"))} == {
        **vars(two),
        **dict.fromkeys(("model", "data", "run")),
    }


def packed_captions(folder: Path, family: Any) -> str:
    """Drawn captions packed into bins of 256 tokens."""
    config = DataConfig(train={"name": "shape_captions", "size": 300}, template=None)
    task = SourceTask(config, functools.partial(lambda bound: bound, family))
    lengths = count_lengths(task, folder / "lengths", quiet=True)
    save_bins(pack(lengths.tokens, Budget(256)), folder / "bins")
    write_shards(ShardTask(task, *(str(folder / step) for step in ("lengths", "bins", "shards"))), quiet=True)
    return f"{folder}/shards/*.tar"


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """A saved policy's parameters by the policy's own names."""
    return dict(load_policy(ModelConfig(path=str(folder))).named_parameters())


def changes(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Names of the parameters that differ."""
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def part_of(name: str) -> str:
    """Vision, connector or language, of a LLaVA's parameter."""
    inner = name.removeprefix("model.model.").split(".")[0]
    return {"vision_tower": "vision", "multi_modal_projector": "connector"}.get(inner, "language")


@pytest.mark.slow
def test_each_stage_lowers_its_loss_and_reinforcement_starts_from_the_last(tmp_path: Path) -> None:
    fresh = load_policy(resolve_stages(load_recipe("ov15_mini"))[0].model)
    tars = packed_captions(tmp_path / "packed", fresh.family)
    overrides = [f"stages.{name}.run.steps={steps}" for name, steps in STEPS.items()]
    overrides += [*SMALL, f"stages.stage1_5.data.train='{tars}'", "stages.stage1_5.data.prompts_per_step=2"]
    stages = resolve_stages(load_recipe("ov15_mini", overrides))
    summary = train(stages, tmp_path / "run", show=False)
    for name in ("stage1", "stage1_5", "stage2"):
        numbers = summary["details"][name]
        assert numbers["held_out_loss_after"] < 0.97 * numbers["held_out_loss_before"], name
    folders = {stage.name: tmp_path / "run" / "stages" / stage.name for stage in stages}
    first, second = weights_of(folders["stage1"] / "policy"), weights_of(folders["stage1_5"] / "policy")
    changed = changes(dict(fresh.named_parameters()), first)
    assert changed == {name for name in first if part_of(name) == "connector"}, "the connector, all of it, nothing else"
    assert {part_of(name) for name in changes(first, second)} == {"vision", "connector", "language"}
    assert [summary["details"][name]["steps"] for name in ("rl_stage1", "rl_stage2")] == [2, 1]
    origins = {name: read_origin(folder) for name, folder in folders.items()}
    assert origins["rl_stage1"].before["fingerprint"] == origins["stage2"].fingerprint()
