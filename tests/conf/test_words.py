"""Other libraries' names lead to keys of ours that exist."""

from __future__ import annotations

import pytest

from rlvlm.cli.parts import registry_of
from rlvlm.conf import Recipe
from rlvlm.conf.check import examine
from rlvlm.conf.schema import PARTS
from rlvlm.conf.tree import known_paths
from rlvlm.conf.words import WORDS, translate

ASKED = [
    ("run.epochs=3", "run.steps"),
    ("actor.ppo_mini_batch_size=3", "actor.mini_batches"),
    ("ppo_mini_batch_size=3", "actor.mini_batches"),
    ("model.lora.r=3", "model.lora.rank"),
    ("trainer.total_epochs=3", "run.steps"),
    ("trainer.logger=[wandb]", "run.trackers"),
    ("trainer.n_gpus_per_node=8", "run"),
    ("data.max_response_length=3", "rollout.max_new_tokens"),
    ("num_generations=3", "rollout.n"),
    ("beta=0.04", "algorithm.regularizers.kl_to_reference"),
    ("actor_rollout_ref.rollout.temperature=1", "rollout.temperature"),
    ("actor_rollout_ref.actor.optim.lr=1e-6", "actor.optimizer.lr"),
    ("stages.rlvr.run.epochs=3", "stages.rlvr.run.steps"),
]


def exists(target: str) -> bool:
    """A key of the schema, or an option or a name below a key that holds parts."""
    if target in known_paths(Recipe):
        return True
    parent, _, name = target.rpartition(".")
    if parent == "algorithm.regularizers":
        return name in registry_of("regularizers").names()
    registry = registry_of(PARTS[parent])
    return any(name in registry.get(part).options for part in registry.names())


@pytest.mark.parametrize("target", sorted({target for target, _ in WORDS.values()}))
def test_every_target_exists(target):
    assert exists(target)


def test_no_key_of_ours_is_taken_for_another_library_s():
    assert [key for key in known_paths(Recipe) if key in WORDS] == []


@pytest.mark.parametrize(("override", "target"), ASKED)
def test_a_word_of_another_library_is_answered_with_our_key(override, target):
    _, found = examine("quickstart", [override])
    (problem,) = found.problems
    assert f"did you mean '{target}'" in problem


def test_the_longest_known_end_of_a_name_counts():
    assert translate("trainer.logger") == WORDS["trainer.logger"]
    assert translate("a.b.gconfig.top_p") == WORDS["gconfig.top_p"]
    assert translate("temprature") is None


def test_each_key_of_another_library_s_group_is_answered_by_itself(tmp_path):
    file = tmp_path / "theirs.yaml"
    file.write_text("defaults: [base, _self_]\ntrainer: {total_epochs: 2, save_freq: 5, nnodes: 1}\n")
    _, found = examine(file)
    told = " ".join(found.problems)
    assert "run.steps" in told
    assert "run.save_every" in told
    assert "'trainer.nnodes'" in told
