"""No dead keys: in two miniature runs, something reads every leaf of the tree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rlvlm.conf import Recipe, load_recipe, resolve_stages
from rlvlm.conf.tree import leaves
from rlvlm.pipelines import train
from rlvlm.pipelines.config import Stage
from tests.conf.recording import record_reads

SMALL = [
    "model.build={name: toy_llava, task: shapes, hidden: 64, layers: 1, mlp: 64, vision_hidden: 32, vision_mlp: 32}",
    "data.train.size=64", "data.eval={name: shapes, size: 8}", "data.prompts_per_step=4", "rollout.n=2", "rollout.max_new_tokens=3",
    "run.eval_prompts=8", "run.eval_batch=8", "run.steps=2", "run.eval_every=1", "run.save_every=1", "run.threads=1",
    "run.gates.vision_every=1", "stages.warmup.run.steps=1", "stages.warmup.cache=false",
]  # fmt: skip

BY_THE_COMMAND = {"run.dir", "run.name"}
"""Read when a run's directory is chosen, before there are stages: see ``tests/cli/test_train.py``."""

RULE = """
from rlvlm import register_reward

@register_reward("leaf_test_rule")
def rule(completion: str) -> float:
    return 1.0 / (1.0 + len(completion))
"""


def run_recording(overrides: list[str], folder: Path, reads: set[str]) -> None:
    recipe = load_recipe("quickstart", [*SMALL, *overrides])
    stages = [record_reads(stage, reads) for stage in resolve_stages(recipe)]
    train(stages, folder, recipe="leaves", config=dataclasses.asdict(recipe), show=False)


def test_the_recorder_tells_a_read_from_a_copy_and_a_check():
    reads: set[str] = set()
    stage = record_reads(resolve_stages(Recipe())[0], reads)
    dataclasses.asdict(stage)
    assert repr(stage).startswith("Stage(")
    copied = dataclasses.replace(stage, actor=dataclasses.replace(stage.actor, epochs=3))
    assert reads == set()
    assert eval("settings.actor.optimizer.lr", {"__name__": "elsewhere", "settings": copied}) == 2 * 0.5e-6
    assert reads == {"actor", "actor.optimizer", "actor.optimizer.lr"}
    assert isinstance(copied, Stage)


def test_every_leaf_is_read_in_one_of_two_small_runs(tmp_path):
    reads: set[str] = set()
    run_recording([], tmp_path / "plain", reads)

    rows = [{"problem": f"{number} shapes?", "answer": "1"} for number in range(8)]
    awkward = [{"neither": 1}, {"problem": "shapes " * 200, "answer": "1"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*awkward, *rows]))
    (tmp_path / "rule.py").write_text(RULE)
    other_ways = [
        "stages=[]",
        f"plugins=[{tmp_path / 'rule.py'}]",
        "model.build=null",
        f"model.path={tmp_path / 'plain' / 'policy'}",
        "model.lora={rank: 2, targets: [q_proj]}",
        f"data.train={tmp_path / 'train.jsonl'}",
        "data.on_bad_row=skip",
        "data.max_prompt_tokens=64",
        "algorithm.policy_loss=clip_cov",
        "algorithm.regularizers={kl_to_reference: 0.1}",
        "actor.optimizer.schedule=cosine",
        "actor.optimizer.warmup_steps=0",
        "reward.rules={leaf_test_rule: 1.0}",
        "~reward.rules.number",
        "~reward.rules.format",
    ]
    run_recording(other_ways, tmp_path / "other", reads)
    dead = set(leaves(Stage)) - reads - BY_THE_COMMAND
    assert not dead, f"nothing reads {', '.join(sorted(dead))}"


def test_the_exceptions_are_keys_that_exist():
    assert set(leaves(Recipe)) >= BY_THE_COMMAND
