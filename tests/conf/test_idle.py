"""A setting that no stage of a recipe reads is refused at check time; one that is read, or inherited, is not."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from rlvlm.conf.check import examine
from rlvlm.conf.recipes import load_recipe, recipe_names

SUPERVISED = "ov15_stage1_5"
IDLE = [
    "actor.shuffle=false",
    "algorithm.advantage=rloo",
    "algorithm.aggregation=token-sum",
    "algorithm.conventions.advantages.grpo.std=none",
    "algorithm.correction=tis",
    "algorithm.filters=[reward_spread]",
    "algorithm.kl_in_reward=0.1",
    "algorithm.mask_truncated=true",
    "algorithm.max_refills=2",
    "algorithm.policy_loss=gspo",
    "algorithm.regularizers.entropy=0.1",
    "algorithm.seed=3",
    "inference_engine=hf",
    "reward.bias=1",
    "reward.max_error_rate=0.5",
    "reward.rules.number=1",
    "reward.scale=2",
    "reward.unmarked=none",
    "rollout={n: 4, top_k: 3}",
    "rollout.max_new_tokens=3",
    "rollout.skip_special_tokens=false",
    "rollout.stop=[a]",
    "rollout.temperature=0.5",
    "rollout.top_p=0.5",
    "run.accuracy_rule=number",
    "run.gates.parity_limit=0.1",
    "run.gates.vision_every=3",
    "run.sample_every=3",
    "run.sample_groups=3",
    "run.sample_rows=3",
]


def effects(recipe: str, *overrides: str) -> list[str]:
    return [problem for problem in examine(recipe, overrides)[1].problems if "no effect" in problem]


@pytest.mark.parametrize("override", IDLE)
def test_a_key_that_no_stage_reads_is_refused_by_name(override: str) -> None:
    found = effects(SUPERVISED, override)
    assert found
    assert all(f"in override '{override}', '{override.split('=')[0]}" in problem for problem in found)


@pytest.mark.parametrize("override", [one for one in IDLE if one.startswith(("rollout.t", "reward.unmarked"))])
def test_what_a_supervised_stage_samples_by_counts_while_it_is_evaluated_on_the_way(override: str) -> None:
    assert effects(SUPERVISED, override, "run.eval_every=5", "reward.rules={number: 1.0}") == []


def test_a_preset_of_an_algorithm_that_nothing_runs_is_one_sentence() -> None:
    (found,) = effects(SUPERVISED, "+preset=dapo")
    assert "'preset/dapo.yaml' has no effect" in found


def test_one_stage_that_reads_a_key_is_enough_but_not_where_another_stage_is_given_it() -> None:
    assert effects("quickstart", "algorithm.advantage=rloo", "rollout.n=4", "reward.scale=2") == []
    assert effects("quickstart", "stages.warmup.rollout.temperature=0.7") == []
    found = effects("quickstart", "stages.warmup.rollout.n=4", "stages.warmup.algorithm.advantage=rloo")
    assert ["'stages.warmup.rollout.n'" in found[0], "'stages.warmup.algorithm.advantage'" in found[1]] == [True] * 2


def test_what_is_inherited_is_no_mistake_of_the_recipe_that_leaves_it_unread(tmp_path) -> None:
    recipe = tmp_path / "warm.yaml"
    recipe.write_text("defaults: [quickstart, _self_]\nstages: [{name: only, pipeline: sft}]\n")
    assert effects(str(recipe)) == []
    recipe.write_text(recipe.read_text() + "rollout: {n: 4}\n")
    assert effects(str(recipe)) == [
        "in 'warm.yaml', 'rollout.n' has no effect, since no stage of this recipe reads it; take it out."
    ]


def test_the_file_that_a_run_leaves_holds_every_key_and_is_no_mistake(tmp_path) -> None:
    recipe = load_recipe("ov15_stage1_5", ["run.seed=7"])
    path = tmp_path / "config.yaml"
    path.write_text("defaults: [base, _self_]\n" + yaml.safe_dump(dataclasses.asdict(recipe)))
    assert effects(str(path)) == []


@pytest.mark.parametrize("name", recipe_names())
def test_no_recipe_of_the_library_sets_what_nothing_reads(name: str) -> None:
    assert effects(name) == []
