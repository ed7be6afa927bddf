"""Recipes are found, composed, inherited and overridden; every mistake is one sentence with what was meant."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

import rlvlm
from rlvlm.conf import RecipeError, load_recipe
from rlvlm.conf.recipes import recipe_names
from rlvlm.conf.schema import Recipe
from rlvlm.errors import ConfigError


def problems_of(*overrides: str, recipe: object = "quickstart") -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    return caught.value.problems


def test_a_recipe_is_typed_and_what_it_leaves_out_is_the_components_default():
    recipe = load_recipe("quickstart")
    assert isinstance(recipe, Recipe)
    assert recipe.actor.epochs == Recipe().actor.epochs
    assert recipe.reward.rules["format"]["style"] == "answer"
    assert rlvlm.load_recipe is load_recipe


def test_overrides_reach_their_keys():
    recipe = load_recipe(
        "quickstart",
        [
            "actor.epochs=2",
            "actor.optimizer.lr=1e-3",
            "rollout.stop=[a,b]",
            "model.lora.rank=4",
            "+data.max_pixels=100",
            "run.name=x",
        ],
    )
    assert (recipe.actor.epochs, recipe.actor.optimizer.lr, recipe.rollout.stop) == (2, 1e-3, ["a", "b"])
    assert (recipe.model.lora.rank, recipe.data.max_pixels, recipe.run.name) == (4, 100, "x")


def test_changing_a_parts_name_discards_its_options_and_an_option_of_a_bare_name_is_added():
    file = ["algorithm.policy_loss={name: ppo_clip, clip_high: 0.28}"]
    assert load_recipe("quickstart", [*file, "algorithm.policy_loss=gspo"]).algorithm.policy_loss == "gspo"
    changed = load_recipe("quickstart", [*file, "algorithm.policy_loss.name=gspo"]).algorithm.policy_loss
    assert changed in ("gspo", {"name": "gspo"})
    added = load_recipe("quickstart", ["algorithm.advantage.std=none"]).algorithm.advantage
    assert added == {"name": "grpo", "std": "none"}
    both = load_recipe("quickstart", ["algorithm.policy_loss=gspo", "algorithm.policy_loss.clip_high=0.3"])
    assert both.algorithm.policy_loss == {"name": "gspo", "clip_high": 0.3}


def test_a_rule_can_be_reweighted_added_and_taken_out():
    recipe = load_recipe("quickstart", ["reward.rules.format=0.5", "reward.rules.string=0.1", "~reward.rules.number"])
    format_rule = {**load_recipe("quickstart").reward.rules["format"], "weight": 0.5}
    assert recipe.reward.rules == {"format": format_rule, "string": 0.1}


TOGETHER = [
    ("actor.epchs=2", "(did you mean 'actor.epochs'?)"),
    ("epochs=2", "(did you mean 'actor.epochs'?)"),
    ("+rollout.temprature=2", "(did you mean 'rollout.temperature'?)"),
    ("actor.epochs=two", "takes a whole number, got 'two'"),
    ("actor.epochs=2.5", "takes a whole number, got 2.5"),
    ("actor=3", "is a group of keys (epochs"),
    ("plugins={a: b}", "takes a list"),
    ("actor.shuffle", "override 'actor.shuffle' sets nothing; write it as key=value"),
    ("run.dir=[1", "can't be read"),
    ("run.steps=1,2", "gives several values"),
    ("~reward.rules.fromat", "(did you mean 'format'?)"),
    ("modl=x", "(did you mean 'model'?)"),
    ("prest/x=y", "config group 'prest/x', which does not exist"),
    ("hydra/laucher=basic", "(did you mean 'hydra/launcher'?)"),
    ("stages.wrmup.run.steps=1", "(did you mean 'warmup'?)"),
    ("stages.warmup.run.stps=1", "(did you mean 'stages.warmup.run.steps'?)"),
    ("stages.warmup.run.dir=x", "of the whole run"),
]
"""Wrong overrides that are found while the recipe is composed, all in one go, and a piece of the sentence for each."""

ALONE = [
    ("+preset=vrel", "config group 'preset' has no choice 'vrel' (did you mean 'verl'?)"),
    ("preset=verl", "this recipe makes no choice of 'preset' that could be changed; add one with +preset="),
    ("hydra.rn.dir=x", "(did you mean 'hydra.run'?)"),
    ("hydra/launcher=bsic", "(did you mean 'basic'?)"),
    ("stages=[3]", "is a group of keys"),
    ("actor.optimizer.lr=${rollout.nn}", "refers to 'rollout.nn', which does not exist (did you mean 'rollout.n'?)"),
    ("actor.epochs=${rollout.temperature}", "actor.epochs"),
    ("model.path=???", "the key 'model.path' has no value"),
    ("data.over_long=drp", "(did you mean 'drop'?)"),
    ("model.dtype=bf16", "model.dtype is one of"),
]


@pytest.fixture(scope="module")
def all_problems() -> list[str]:
    return problems_of(*(override for override, _ in TOGETHER))


def is_one_sentence(problem: str) -> bool:
    return problem.endswith(".") and "\n" not in problem


def test_each_wrong_override_is_one_sentence_and_none_hides_another(all_problems):
    assert len(all_problems) == len(TOGETHER)
    assert all(map(is_one_sentence, all_problems))


@pytest.mark.parametrize(("override", "piece"), TOGETHER)
def test_a_wrong_override_is_told_with_what_was_meant(override, piece, all_problems):
    assert len([problem for problem in all_problems if f"override '{override}'" in problem and piece in problem]) == 1


@pytest.mark.parametrize(("override", "piece"), ALONE)
def test_a_wrong_override_that_ends_composition_is_one_sentence(override, piece):
    (problem,) = problems_of(override)
    assert piece in problem
    assert is_one_sentence(problem)


def test_all_wrong_keys_come_at_once_each_naming_its_file_or_override(write):
    path = write(
        "mine", "defaults: [quickstart, _self_]\nactor: {epchs: 2, mini_batches: x}\nstages: [{pipline: sft}]\n"
    )
    problems = problems_of("rolout.n=3", "run.steps=many", recipe=path)
    assert len(problems) == 5
    assert problems[0].startswith("in 'mine.yaml', the key 'actor.epchs' does not exist")
    assert problems[1].startswith("in 'mine.yaml', the key 'actor.mini_batches' takes a whole number")
    assert "'stages.0.pipline' does not exist (did you mean 'stages.0.pipeline'?)" in problems[2]
    assert problems[3].startswith("in override 'rolout.n=3'")
    assert problems[4].startswith("in override 'run.steps=many'")


def test_a_recipe_inherits_and_a_part_that_it_renames_starts_anew(write):
    write(
        "parent",
        "defaults: [quickstart, _self_]\nalgorithm: {policy_loss: {name: ppo_clip, clip_high: 0.28}}\nrun: {steps: 7}\n",
    )
    child = write(
        "child",
        """
        defaults: [parent, _self_]
        algorithm: {policy_loss: {name: gspo}}
        data: {train: mine.jsonl}
        reward: {rules: {format: null}}
        """,
    )
    recipe = load_recipe(child)
    assert recipe.algorithm.policy_loss == {"name": "gspo"}
    assert recipe.data.train == "mine.jsonl"
    assert list(recipe.reward.rules) == ["number"]
    assert recipe.run.steps == 7
    assert recipe.rollout == load_recipe("quickstart").rollout  # two files up


def test_a_recipe_without_base_still_has_every_default(write):
    assert load_recipe(write("bare", "run: {steps: 3}\n")) == dataclasses.replace(
        Recipe(), run=dataclasses.replace(Recipe().run, steps=3)
    )


def test_interpolations_and_numbers_in_yaml_are_read_as_meant(write):
    path = write(
        "mine",
        "defaults: [base, _self_]\nactor: {optimizer: {lr: 1e-6}}\nrollout: {n: 4}\nrun: {eval_every: '${rollout.n}'}\n",
    )
    recipe = load_recipe(path)
    assert recipe.actor.optimizer.lr == 1e-6
    assert recipe.run.eval_every == 4


def test_config_groups_are_chosen_and_wrong_choices_are_named():
    recipe = load_recipe("clevr_count", ["model.path=/models/3b"])
    assert recipe.model.dtype == "bfloat16"
    assert recipe.model.path == "/models/3b"
    (problem,) = problems_of("model=qwen2_5_vl_3", recipe="clevr_count")
    assert "config group 'model' has no choice 'qwen2_5_vl_3' (did you mean 'qwen2_5_vl_3b'?)" in problem
    (problem,) = problems_of("model=qwen2_5_vl_3b")
    assert "add one with +model=" in problem
    assert load_recipe("quickstart", ["model={dtype: bfloat16}"]).model.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("quikstart", "(did you mean 'quickstart'?)"),
        ("nowhere/quickstart.yaml", "there is no recipe file 'nowhere/quickstart.yaml'"),
        ("mine.txt/", "there is no recipe file"),
    ],
)
def test_an_unknown_recipe_is_one_sentence(name, piece):
    with pytest.raises(ConfigError) as caught:
        load_recipe(name)
    assert piece in str(caught.value)


def test_a_misspelt_file_is_told_from_its_neighbours(write, tmp_path):
    write("counting", "run: {steps: 3}\n")
    with pytest.raises(ConfigError, match=r"did you mean 'counting\.yaml'"):
        load_recipe(tmp_path / "countng.yaml")


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("defaults: [basee, _self_]\n", "there is no config called 'basee' (did you mean 'base'?)"),
        ("run: [unclosed\n", "no valid YAML"),
        ("- a\n- b\n", "can't be composed"),
        ("defaults: [mine, _self_]\n", "inherits from itself"),
    ],
)
def test_a_broken_file_is_one_sentence(write, text, piece):
    (problem,) = problems_of(recipe=write("mine", text))
    assert piece in problem


def test_a_composed_recipe_written_out_is_a_recipe_again(tmp_path):
    recipe = load_recipe("digits", ["algorithm.policy_loss={name: gspo, clip_high: 0.1}", "run.steps=5"])
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(dataclasses.asdict(recipe)))
    assert load_recipe(path) == recipe


def test_the_promised_recipes_are_there():
    assert {"quickstart", "digits", "clevr_count", "geometry3k", "refcoco"} <= set(recipe_names())


def test_loading_a_recipe_loads_neither_torch_nor_transformers():
    code = "import sys; from rlvlm import load_recipe; load_recipe('quickstart'); print({'torch', 'transformers'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "set()"
    )
