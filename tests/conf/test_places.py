"""The check tells the truth about models, files and folders that a recipe names, and about settings that the data silences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvlm.conf.check import examine
from rlvlm.conf.places import is_hub_name, model_problem
from rlvlm.models.families.base import FAMILIES
from rlvlm.models.families.names import family_names, looks_unknown


@pytest.fixture
def records(tmp_path: Path):
    def write(*rows: dict, name: str = "train.jsonl") -> str:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    return write


PLAIN = {"problem": "How many?", "answer": "3"}
DIALOGUE = {
    "messages": [
        {"role": "system", "content": "Count."},
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "3"},
    ],
    "answer": "3",
}


def notes_of(*overrides: str, recipe: str = "quickstart") -> str:
    return "\n".join(examine(recipe, overrides)[1].notes)


def test_the_names_of_families_are_those_of_their_registry():
    assert sorted(family_names()) == [entry.name for entry in FAMILIES.own_entries()]


@pytest.mark.parametrize(
    "name", ["Qwen2.5-VL-3B-Instruct", "llava-1.5-7b-hf", "Qwen3-VL-4B-Instruct", "policy", "my-model"]
)
def test_a_name_of_a_known_family_or_of_none_says_nothing(name):
    assert not looks_unknown(name)


@pytest.mark.parametrize(
    "name", ["LLaVA-OneVision-1.5-8B-Instruct", "LLaVA-OneVision-1.5-4B-Base", "Qwen2-VL-2B-Instruct"]
)
def test_a_name_beside_the_known_families_is_told(name):
    assert looks_unknown(name)
    assert "of none of the families" in str(model_problem(f"models/{name}"))


def test_a_hub_name_is_answered_with_the_way_to_get_it():
    told = str(model_problem("Qwen/Qwen2.5-VL-3B-Instruct"))
    assert "hf download Qwen/Qwen2.5-VL-3B-Instruct --local-dir models/Qwen2.5-VL-3B-Instruct" in told
    assert is_hub_name("owner/name")
    assert not any(map(is_hub_name, ("/data/x", "./a/b", "data/x.jsonl", "a/b/c", "name")))


def test_a_model_of_a_family_that_is_not_there_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llavaonevision1_5"}')
    _, found = examine("clevr_count", [f"model.path={tmp_path}"])
    assert any("holds a model of type 'llavaonevision1_5'" in problem for problem in found.problems)
    assert str(model_problem(str(tmp_path.parent))).endswith(
        "holds no config.json; give a folder written by save_pretrained."
    )


def test_data_named_as_on_the_hub_without_a_split_is_told_the_split():
    _, found = examine("clevr_count", ["data.train=owner/name"])
    assert any("owner/name@train" in problem for problem in found.problems)


def test_a_template_that_every_record_overrules_is_said(records):
    path = records(DIALOGUE, DIALOGUE)
    told = notes_of(f"data.train={path}", f"data.eval={path}", "data.template=boxed", "data.system=Think.")
    assert "the prompt template 'boxed' has no effect" in told
    assert "data.system has no effect on 2 of the first 2 records" in told


def test_a_template_that_acts_is_not_spoken_of(records):
    path = records(PLAIN)
    assert notes_of(f"data.train={path}", f"data.eval={path}", "data.template=boxed") == ""
    assert notes_of() == ""


def test_held_out_data_of_another_task_is_said(records):
    assert "data.eval is 'shapes' while data.train" in notes_of(f"data.train={records(PLAIN)}")
    assert notes_of("data.train.size=128") == ""
    assert notes_of(f"data.train={records(PLAIN)}", "data.eval=null") == ""


def test_held_out_files_that_an_override_of_the_training_data_left_behind_are_said(records, tmp_path):
    recipe = tmp_path / "mine.yaml"
    old = records(PLAIN, name="old.jsonl")
    recipe.write_text(f"defaults: [quickstart, _self_]\ndata: {{train: {old}, eval: {old}}}\n")
    new = records(PLAIN, name="new.jsonl")
    assert "data.train was set and data.eval was not" in notes_of(f"data.train={new}", recipe=str(recipe))
    assert notes_of(f"data.train={new}", f"data.eval={new}", recipe=str(recipe)) == ""
    assert notes_of("rollout.n=4", recipe=str(recipe)) == ""
