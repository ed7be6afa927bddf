"""Stages: each complete, each laid over the recipe as a child recipe would be."""

from __future__ import annotations

import pytest

from rlvlm.conf import Recipe, RecipeError, load_recipe, resolve_stages
from rlvlm.data.config import DataConfig


def test_a_recipe_without_stages_is_one_rlvr_stage():
    (stage,) = resolve_stages(Recipe(data=DataConfig(train="a.jsonl")))
    assert (stage.name, stage.pipeline, stage.init, stage.cache) == ("rlvr", "rlvr", None, False)
    assert stage.data.train == "a.jsonl"


def test_a_stage_changes_what_it_names_and_keeps_the_rest():
    recipe = load_recipe("quickstart", ["actor.optimizer.eps=1e-7"])
    warmup, rlvr = resolve_stages(recipe)
    assert (warmup.name, warmup.pipeline, rlvr.pipeline, rlvr.init) == ("warmup", "sft", "rlvr", "previous")
    assert warmup.actor.optimizer.lr != rlvr.actor.optimizer.lr
    assert warmup.actor.optimizer.eps == rlvr.actor.optimizer.eps == 1e-7
    assert warmup.run.trackers == rlvr.run.trackers


def test_a_part_that_a_stage_renames_loses_the_recipes_options():
    recipe = Recipe(stages=[{"algorithm": {"policy_loss": {"name": "gspo"}}, "reward": {"rules": {"format": None}}}])
    recipe.algorithm.policy_loss = {"name": "ppo_clip", "clip_high": 0.28}
    recipe.reward.rules = {"format": 0.1, "number": 0.9}
    (stage,) = resolve_stages(recipe)
    assert stage.algorithm.policy_loss == {"name": "gspo"}
    assert stage.reward.rules == {"number": 0.9}


def test_a_stage_can_take_all_rules_out(write):
    path = write(
        "mine", "defaults: [quickstart, _self_]\nstages: [{pipeline: sft, reward: {rules: null}}, {pipeline: rlvr}]\n"
    )
    sft, rlvr = resolve_stages(load_recipe(path))
    assert sft.reward.rules == {}
    assert rlvr.reward.rules == load_recipe("quickstart").reward.rules
    assert load_recipe("quickstart", ["reward.rules=null"]).reward.rules == {}


def test_overrides_name_a_stage_by_name_or_number():
    for which in ("warmup", "0"):
        recipe = load_recipe("quickstart", [f"stages.{which}.run.steps=7", f"stages.{which}.data.train.size=64"])
        warmup, rlvr = resolve_stages(recipe)
        assert warmup.run.steps == 7
        assert rlvr.run.steps != 7
        assert warmup.data.train["name"] == "shapes"
        assert warmup.data.train["size"] == 64
        assert rlvr.data.train == recipe.data.train


def test_an_override_that_every_stage_hides_is_an_error_and_not_a_dead_key(write):
    path = write("mine", "defaults: [base, _self_]\nstages: [{name: a, run: {steps: 1}}, {name: b, run: {steps: 2}}]\n")
    with pytest.raises(
        RecipeError, match=r"has no effect, since each stage sets run\.steps itself; write stages\.<name>\.run\.steps"
    ):
        load_recipe(path, ["run.steps=5"])
    assert load_recipe(path, ["stages.b.run.steps=5"]).stages[1]["run"]["steps"] == 5


@pytest.mark.parametrize(
    ("stages", "piece"),
    [
        ([{"name": "a"}, {"name": "a"}], "is called 'a' like an earlier stage"),
        ([{"pipeline": "sft"}, {"pipeline": "sft"}], "is called 'sft' like an earlier stage"),
        ([{"init": "previous"}], "but it is the first stage"),
        ([{}, {"name": "b", "init": "previos"}], "did you mean 'previous'"),
        ([{"model": {"dtype": "half"}}], "model.dtype is one of"),
        *(
            ([{"name": name}], "a folder is called by it")
            for name in ("..", ".", "../../x", "a/b", "", "/", "a\\b", "-x", "a\nb")
        ),
    ],
)
def test_stages_that_can_not_be_are_refused(stages, piece):
    with pytest.raises(RecipeError) as caught:
        resolve_stages(Recipe(stages=stages))
    assert piece in str(caught.value)


def test_all_that_is_wrong_with_stages_comes_at_once():
    with pytest.raises(RecipeError) as caught:
        resolve_stages(Recipe(stages=[{"init": "previous", "model": {"dtype": "half"}}, {}]))
    assert len(caught.value.problems) == 3


def test_a_stages_name_may_have_spaces_and_letters_of_any_script():
    assert [stage.name for stage in resolve_stages(Recipe(stages=[{"name": "étape 1.b-c"}, {"name": "二"}]))] == [
        "étape 1.b-c",
        "二",
    ]
