"""A check finds everything that is wrong at once, without loading a model, and loads nothing that it does not need."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlvlm import conf
from rlvlm.conf import Recipe, check_recipe, load_recipe
from rlvlm.conf.check import examine
from rlvlm.conf.recipes import recipe_names


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_library_is_accepted_but_for_what_is_not_on_this_machine(name):
    found = check_recipe(load_recipe(name))
    assert found.problems == found.absent


@pytest.mark.parametrize("name", sorted(path.stem for path in (Path(conf.__file__).parent / "preset").glob("*.yaml")))
def test_every_preset_is_accepted_on_any_recipe(name):
    _, found = examine("quickstart", [f"+preset={name}"])
    assert found.problems == []


FAULTS = [
    ("algorithm.advantage=grop", "no advantage called 'grop' (did you mean 'grpo'?)"),
    ("algorithm.policy_loss.clip_hgih=0.3", "no option 'clip_hgih' (did you mean 'clip_high'?)"),
    ("algorithm.aggregation=token-maen", "(did you mean 'token-mean'?)"),
    ("algorithm.regularizers.entropi=0.1", "(did you mean 'entropy'?)"),
    ("algorithm.filters=[spred]", "no filter called 'spred'"),
    ("algorithm.kl_in_reward.wieght=0.1", "(did you mean 'weight'?)"),
    ("reward.rules.nubmer=1.0", "no reward called 'nubmer' (did you mean 'number'?)"),
    ("reward.rules.format.sytle=boxed", "(did you mean 'style'?)"),
    ("run.accuracy_rule=numbr", "run.accuracy_rule is 'numbr', which is none of reward.rules (did you mean 'number'?)"),
    ("run.trackers=[jsnl]", "no tracker called 'jsnl' (did you mean 'jsonl'?)"),
    ("rollout.n=0", "'n' is a whole number, at least 1"),
    ("train_engine=locl", "(did you mean 'local'?)"),
    ("inference_engine.cash_tokens=3", "(did you mean 'cache_tokens'?)"),
    ("model.build.task=shape", "option 'task'"),
    ("data.template=boxd", "(did you mean 'boxed'?)"),
    ("data.train.sise=3", "(did you mean 'size'?)"),
    (
        "actor.optimizer.low_precision=stochastic_rounding",
        "for weights that train in bfloat16, but there are some in float32",
    ),
    ("actor.optimizer.groups.vision.lrr=1e-5", "(did you mean 'lr'?)"),
    ("actor.epochs=0", "actor.epochs is at least 1, got 0"),
    ("actor.mini_batches=-1", "actor.mini_batches is at least 1, got -1"),
    ("actor.optimizer.lr=-1", "actor.optimizer.lr is at least 0, got -1.0"),
    ("actor.optimizer.betas=[2,3]", "actor.optimizer.betas is two numbers from 0 to below 1, got [2.0, 3.0]"),
    ("actor.optimizer.groups.language.lr=-2", "actor.optimizer.groups.language.lr is at least 0, got -2"),
    ("run.steps=-5", "run.steps is at least 1, got -5"),
    ("run.resume=atuo", "run.resume is one of auto, never, got 'atuo' (did you mean 'auto'?)"),
    ("run.gates.vision_rows=0", "run.gates.vision_rows is at least 1, got 0"),
    ("reward.scale=nan", "reward.scale is a finite number, got nan"),
    ("data.prefetch=-1", "data.prefetch is at least 0, got -1"),
    ("plugins=[nowhere.py]", "plugin file 'nowhere.py' does not exist"),
]
"""Faults of parts, all in one recipe, and a piece of the sentence for each."""

ALONE = [
    ("algorithm.policy_loss.clip_high=wide", "option 'clip_high'"),
    ("algorithm.advantage=gae", "gae"),  # reads values, and nothing writes them
    ("reward.rules.number={weight: 1.0, gate: formt}", "(did you mean 'format'?)"),
    ("~reward.rules", "reward.rules is empty"),
    ("rollout.top_p=0", "top_p"),
    ("model.build=toy_lava", "(did you mean 'toy_llava'?)"),
    ("model.path=somewhere", "exactly one of model.path and model.build"),
    ("data.train=shaps", "(did you mean 'shapes'?)"),
    ("data.train=null", "data.train is empty"),
    ("actor.optimizer.schedule=cosin", "(did you mean 'cosine'?)"),
    ("stages.rlvr.pipeline=rlvrr", "(did you mean 'rlvr'?)"),
    ("algorithm.filters=[{name: mean_window, of: number, low: 2, high: 1}]", "got low 2 and high 1"),
    ("data.train={name: shapes, size: -5}", "shapes.size is at least 0, got -5"),
    ("data.max_pixels=???", "data.max_pixels"),
    ("model.lora={rank: 0}", "model.lora.rank is at least 1, got 0"),
    ("actor.optimizer.groups.language=3", "is a mapping of lr, weight_decay, max_grad_norm, got 3"),
    ("stages.warmup.run.steps=-3", "run.steps is at least 1, got -3"),
    ("stages.warmup.init=previous", "but it is the first stage"),
]


@pytest.fixture(scope="module")
def all_problems() -> list[str]:
    return examine("quickstart", [override for override, _ in FAULTS])[1].problems


def test_all_faults_come_at_once_and_each_is_one_sentence(all_problems):
    assert len(all_problems) == len(FAULTS), all_problems
    assert all("\n" not in problem for problem in all_problems)


@pytest.mark.parametrize(("override", "piece"), FAULTS)
def test_each_fault_among_many_is_told_once(override, piece, all_problems):
    assert len([problem for problem in all_problems if piece in problem]) == 1, override


@pytest.mark.parametrize(("override", "piece"), ALONE)
def test_a_fault_is_told_once(override, piece):
    _, found = examine("quickstart", [override])
    told = [problem for problem in found.problems if piece in problem]
    assert len(told) == 1, found.problems
    assert "\n" not in told[0]


def test_wrong_keys_do_not_hide_wrong_parts():
    recipe, found = examine(
        "quickstart",
        [
            "actor.epchs=2",
            "rollout.temperature=warm",
            "algorithm.advantage=grop",
            "reward.rules.nubmer=1.0",
            "data.over_long=drp",
            "nonsense",
        ],
    )
    assert recipe is not None
    for piece in ("epchs", "'warm'", "grop", "nubmer", "'drp'", "nonsense"):
        assert sum(piece in problem for problem in found.problems) == 1, (piece, found.problems)
    assert len(found.problems) == 6


def test_a_fault_of_one_stage_names_the_stage():
    _, found = examine("quickstart", ["stages.warmup.data.template=boxd"])
    (problem,) = found.problems
    assert problem.startswith("stage 'warmup': there is no prompt template 'boxd'")


def recipe_on(tmp_path, record, **rules) -> Recipe:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(record) + "\n")
    overrides = [f"data.train={path}", "data.eval=null", "model.path=null", "+model.build=toy_llava"]
    recipe = load_recipe("clevr_count", overrides)
    recipe.reward.rules = rules or {"number": 1.0}
    return recipe


def test_a_record_column_that_shadows_an_injected_name_is_found(tmp_path):
    found = check_recipe(recipe_on(tmp_path, {"problem": "p", "answer": "1", "completion": "oh"}))
    assert any("column 'completion'" in problem for problem in found.problems)


def test_a_column_that_a_rule_reads_and_records_lack_is_found(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from rlvlm import register_reward\n"
        "@register_reward('check_test_rule')\n"
        "def rule(answer_text: str, anwser: str) -> float:\n    return 0.0\n"
    )
    recipe = recipe_on(tmp_path, {"problem": "p", "answer": "1"}, check_test_rule=1.0)
    recipe.plugins = [str(tmp_path / "mine.py")]
    (problem,) = check_recipe(recipe).problems
    assert "reward rule 'check_test_rule' reads 'anwser'" in problem
    assert "did you mean 'answer" in problem


def test_a_record_that_can_not_be_read_is_found_with_file_and_row(tmp_path):
    recipe = recipe_on(tmp_path, {"neither": 1})
    (problem,) = check_recipe(recipe).problems
    assert "train.jsonl" in problem
    assert "row 0" in problem


def test_what_is_not_on_this_machine_is_a_problem_with_its_remedy(tmp_path):
    asked = [
        f"data.train={tmp_path}/later.jsonl",
        f"data.eval={tmp_path}/*.parquet",
        f"data.image_folder={tmp_path}/pictures",
    ]
    found = check_recipe(load_recipe("clevr_count", asked))
    assert found.problems == found.absent
    told = "\n".join(found.problems)
    assert "model.path 'models/Qwen2.5-VL-3B-Instruct' is not on this machine" in told
    assert "hf download <owner>/Qwen2.5-VL-3B-Instruct --local-dir models/Qwen2.5-VL-3B-Instruct" in told
    for missing in ("data.train", "data.eval", "data.image_folder"):
        assert f"{missing} '{tmp_path}" in told


@pytest.mark.parametrize(
    ("node", "piece"),
    [
        (
            "{path: later.jsonl, limt: 3}",
            "has the key 'limt', which source 'jsonl' does not take (did you mean 'limit'?)",
        ),
        ("{path: later.jsonl, wieght: 3}", "(did you mean 'weight'?)"),
        ("{path: later.jsonl, format: flt}", "(did you mean 'flat'?)"),
        ("{path: later.jsonl, weight: -1}", "weight"),
        ("later.jsnl", "(did you mean '.jsonl'?)"),
        ("[{path: a.jsonl, weight: 1}, b.jsonl]", "give all a weight or none"),
    ],
)
def test_a_wrong_source_is_found_before_its_file_is_there(node, piece):
    _, found = examine("clevr_count", [f"data.eval={node}"])
    assert len([problem for problem in found.problems if piece in problem]) == 1, found.problems


def test_a_tracker_whose_package_is_missing_is_found(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    recipe = load_recipe("quickstart", ["run.trackers=[jsonl,wandb]"])
    (problem,) = [problem for problem in check_recipe(recipe).problems if "wandb" in problem]
    assert "pip install 'rlvlm[trackers]'" in problem


def test_a_users_part_is_checked_like_any_other(tmp_path):
    path = tmp_path / "parts.py"
    path.write_text(
        "from rlvlm import register_advantage\n"
        "@register_advantage('check_test_advantage')\n"
        "def advantage(rewards, group_ids, loss_maks, *, scale: float = 1.0):\n    return rewards\n"
    )
    _, found = examine("quickstart", [f"plugins=[{path}]", "algorithm.advantage=check_test_advantage"])
    (problem,) = found.problems
    assert "reads 'loss_maks'" in problem
    assert "did you mean 'loss_mask'" in problem
    sys.modules.pop("parts", None)
