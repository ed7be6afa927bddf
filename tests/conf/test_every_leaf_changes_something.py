"""No setting does nothing: of every leaf of a stage, another value makes another run, or a named test shows what it does."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvlm.conf.tree import leaves
from rlvlm.data.loader import Loader
from rlvlm.engines.inference.base import register_inference_engine
from rlvlm.engines.inference.hf import CAPABILITIES, HfEngine
from rlvlm.errors import RlvlmError
from rlvlm.models.config import LoraConfig, ModelConfig
from rlvlm.models.loading import load_policy
from rlvlm.pipelines.build import eval_loader
from rlvlm.pipelines.config import Stage
from rlvlm.pipelines.reads import is_below, unread
from rlvlm.pipelines.run import train
from tests.pipelines.miniature import TOY, read_metrics, rlvr_stage, sft_stage

ROOT = Path(__file__).parents[2]
Settings = dict[str, Any]

LORA = LoraConfig(rank=2, targets=["q_proj"])
SCHEDULE = {"actor.optimizer.schedule": "linear"}
EVALUATED = {"run.eval_every": 1, "data.eval": {"name": "shapes", "size": 8}}
SHORT = {"rollout.max_new_tokens": 2}
FILTERED = {"algorithm.filters": ["reward_spread"]}
MASKED = {"algorithm.mask_truncated": True}
GATED = {"run.gates.vision_every": 1}
TWO_RULES = {"reward.rules": {"shortness": 1.0, "format": {"weight": 0.5, "style": "answer", "think": False}}}

SUPERVISED: dict[str, tuple[Settings, Any]] = {
    "actor.optimizer.betas": ({}, [0.5, 0.9]),
    "actor.optimizer.eps": ({}, 0.1),
    "actor.optimizer.groups": ({}, {"vision": {"lr": 0.0}}),
    "actor.optimizer.lr": ({}, 1e-2),
    "actor.optimizer.max_grad_norm": ({"actor.optimizer.eps": 0.1}, 1e-3),
    "actor.optimizer.min_lr_ratio": (SCHEDULE, 0.5),
    "actor.optimizer.schedule": ({}, "linear"),
    "actor.optimizer.warmup_steps": ({}, 2),
    "actor.optimizer.weight_decay": ({}, 0.5),
    "data.prompts_per_step": ({}, 4),
    "data.shuffle": ({}, False),
    "data.system": ({}, "Count well."),
    "data.template": ({}, "count {{ problem }}"),
    "data.train": ({}, {"name": "shapes", "seed": 7, "columns": {"answer": "response"}}),
    "data.eval": ({}, {"name": "shapes", "size": 4, "columns": {"answer": "response"}}),
    "data.max_pixels": ({}, 32 * 32),
    "data.min_pixels": ({}, 128 * 128),
    "model.build": ({}, {**TOY, "mlp": 32}),
    "model.dtype": ({}, "bfloat16"),
    "model.lora.rank": ({"model.lora": LORA}, 3),
    "model.lora.alpha": ({"model.lora": LORA}, 3.0),
    "model.lora.targets": ({"model.lora": LORA}, ["v_proj"]),
    "model.lora.parts": ({"model.lora": LORA}, ["vision"]),
    "model.seed": ({}, 6),
    "model.trainable": ({}, ["connector"]),
    "name": ({}, "another"),
    "pipeline": ({}, "rlvr"),
    "train_engine": ({}, {"name": "local", "precision": "bfloat16"}),
    "run.seed": ({}, 6),
    "run.steps": ({}, 1),
    "run.trackers": ({}, []),
}
"""Leaves whose effect a supervised run of two steps shows: the settings beside which it is changed, and another value."""

REINFORCED: dict[str, tuple[Settings, Any]] = {
    "actor.epochs": ({}, 2),
    "actor.mini_batches": ({}, 2),
    "actor.shuffle": ({"actor.mini_batches": 4}, False),
    "algorithm.advantage": ({}, "reinforce_plus_plus"),
    "algorithm.aggregation": ({}, {"name": "seq-mean-token-sum-norm", "length": 9}),
    "algorithm.conventions": ({}, {"advantages": {"grpo": {"std": "none"}}}),
    "algorithm.correction": ({}, {"name": "tis", "cap": 1e-3}),
    "algorithm.filters": ({}, [{"name": "reward_spread", "above": 0.7}]),
    "algorithm.kl_in_reward": ({"run.steps": 3}, {"weight": 0.5}),
    "algorithm.mask_truncated": (SHORT, True),
    "algorithm.max_refills": (FILTERED, 0),
    "algorithm.policy_loss": ({"actor.epochs": 3}, {"name": "ppo_clip", "clip_low": 0.001, "clip_high": 0.001}),
    "algorithm.regularizers": ({}, {"entropy": 0.1}),
    "data.max_prompt_tokens": ({"data.train": {"name": "shapes", "size": 16}}, 3),
    "data.columns": ({}, {"problem": "answer"}),
    "reward.bias": ({}, 1.0),
    "reward.rules": ({}, {"shortness": 2.0}),
    "reward.scale": ({"algorithm.advantage": {"name": "grpo", "std": "none"}}, 3.0),
    "rollout.max_new_tokens": ({}, 2),
    "rollout.n": ({}, 2),
    "rollout.skip_special_tokens": ({}, False),
    "rollout.stop": ({}, ["a", "e", "1"]),
    "rollout.stop_ids": ({}, list(range(10, 60))),
    "rollout.temperature": ({}, 0.5),
    "rollout.top_k": ({}, 2),
    "rollout.top_p": ({}, 0.1),
    "run.accuracy_rule": ({**EVALUATED, **TWO_RULES}, "format"),
    "run.eval_every": ({"data.eval": EVALUATED["data.eval"]}, 1),
    "run.eval_prompts": (EVALUATED, 3),
    "run.stop_at": ({**EVALUATED, "run.eval_every": 1}, 0.0),
    "run.sample_every": ({}, 1),
    "run.sample_groups": ({}, 1),
    "run.sample_rows": (EVALUATED, 1),
    "run.gates.vision_every": ({}, 1),
    "run.gates.vision_rows": (GATED, 1),
    "run.gates.parity_limit": ({}, 1e-12),
}
"""The same for a run of reinforcement of two steps."""

DATA, RESUME, RUNNER = "tests/data/test_loader.py", "tests/pipelines/test_resume.py", "tests/rewards/test_runner.py"
LOW = "tests/engines/train/test_low_precision.py"
ELSEWHERE: dict[str, str] = {
    "actor.optimizer.low_precision": f"{LOW}::test_fifty_small_steps_in_bf16_gain_what_they_gain_in_fp32",
    "actor.token_budget": "tests/engines/train/test_budget.py::test_no_piece_of_several_rows_costs_more_than_the_budget",
    "algorithm.seed": "tests/test_algorithm.py::test_random_choices_follow_the_seed_and_go_on_after_a_resume",
    "algorithm.value_loss": "tests/conf/test_contradictions.py::test_a_setting_that_would_do_nothing_is_refused",
    "cache": f"{RESUME}::test_the_cache_is_not_used_after_a_data_file_changed",
    "data.allow_outside": "tests/data/test_media.py::test_paths_inside_are_read_and_outside_ones_when_allowed",
    "data.cache_mb": "tests/pipelines/test_memory.py::test_the_cache_keeps_to_its_bound_and_drops_what_was_used_longest_ago",
    "data.file_cache_mb": "tests/data/files/test_cache.py::test_the_key_sets_the_budget",
    "data.image_folder": "tests/data/test_sources.py::test_the_picture_folder_is_the_file_s_unless_set",
    "data.max_decode_pixels": "tests/data/test_media.py::test_a_header_over_the_limit_is_refused_before_decoding",
    "data.on_bad_row": f"{DATA}::test_a_bad_row_stops_or_is_left_out_and_counted",
    "data.over_long": f"{DATA}::test_over_long_prompts_are_dropped_or_raise_and_are_never_cut",
    "init": f"{RESUME}::test_a_stage_that_starts_from_a_model_of_its_own_is_not_stale",
    "model.gradient_checkpointing": "tests/models/test_policy.py::test_recomputation_really_recomputes_and_changes_no_number",
    "model.head_chunk": "tests/models/test_head.py::test_no_tensor_grows_with_the_vocabulary_beyond_a_chunk_but_the_weights_gradient",
    "model.layout": "tests/models/test_planner.py::test_a_layout_that_is_set_is_taken_and_dropout_turns_sharing_off",
    "model.path": "tests/models/test_policy.py::test_a_saved_policy_loads_as_the_same_policy",
    "plugins": "tests/cli/test_train.py::test_a_users_reward_in_a_file_is_trained_on",
    "reward.max_error_rate": f"{RUNNER}::test_the_run_stops_past_the_error_rate_and_not_before",
    "reward.memory_mb": f"{RUNNER}::test_a_worker_that_hoards_memory_is_replaced_before_it_fails",
    "reward.think_prefilled": "tests/rewards/test_cases.py::test_case_scores_as_expected",
    "reward.timeout": "tests/rewards/test_resident.py::test_a_row_that_holds_the_interpreter_fails_and_the_others_are_scored",
    "reward.unmarked": "tests/rewards/test_string.py::test_string_can_tell_cases_apart_and_takes_unmarked_text",
    "reward.workers": f"{RUNNER}::test_the_pool_keeps_the_order_and_uses_its_workers",
    "run.dir": "tests/cli/test_train.py::test_a_run_directory_that_can_not_be_made_is_one_sentence",
    "run.name": "tests/cli/test_train.py::test_a_named_run_is_resumed_and_a_finished_one_does_nothing_twice",
    "run.keep": "tests/pipelines/test_checkpoint.py::test_only_the_newest_are_kept_and_the_newest_is_loaded",
    "run.save_every": "tests/pipelines/test_run.py::test_a_run_that_was_broken_off_goes_on_as_if_nothing_had_happened",
    "run.keep_finished": f"{RESUME}::test_keep_finished_says_whose_optimiser_stays",
    "run.resume": f"{RESUME}::test_never_on_one_finished_stage_redoes_it_and_the_ones_behind_it_alone",
    "data.prefetch": "tests/conf/test_every_leaf_changes_something.py::test_batches_are_prepared_ahead_as_many_as_asked",
    "inference_engine": "tests/conf/test_every_leaf_changes_something.py::test_the_inference_engine_is_the_one_that_is_named",
    "run.eval_batch": "tests/conf/test_every_leaf_changes_something.py::test_evaluations_take_as_many_prompts_at_once_as_asked",
    "run.threads": "tests/conf/test_every_leaf_changes_something.py::test_a_run_has_the_threads_that_it_asks_for",
    "run.gates.spread_patience": "tests/pipelines/test_gates.py::test_rewards_without_spread_are_said_once_in_as_many_steps_as_asked",
    "run.gates.vision_patience": "tests/pipelines/test_run.py::test_blind_training_stops_the_run",
}
"""Leaves that no single small run shows: the test that shows what they do."""


def changed(stage: Stage, key: str, value: Any) -> Stage:
    """The stage with one leaf set; every dataclass on the way is made again, so that its checks run."""

    def put(node: Any, path: list[str]) -> Any:
        if len(path) == 1:
            return dataclasses.replace(node, **{path[0]: value})
        return dataclasses.replace(node, **{path[0]: put(getattr(node, path[0]), path[1:])})

    return put(stage, key.split("."))


def observed(stage: Stage, folder: Path) -> dict[str, Any]:
    """Everything that a run leaves, but for the clock, the memory and what only repeats the settings."""
    try:
        summary = train([stage], folder, show=False)
    except RlvlmError as error:
        return {"refused": str(error)}
    samples = [path.read_text() for path in sorted(folder.glob("*samples.jsonl"))]
    details = {name: {k: v for k, v in told.items() if "seconds" not in k} for name, told in summary["details"].items()}
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    weights = hashlib.sha256((folder / "policy" / "model.safetensors").read_bytes()).hexdigest()
    metrics = read_metrics(folder) if (folder / "metrics.jsonl").exists() else None
    return {"metrics": metrics, "weights": weights, "samples": samples, "files": files, "details": details}


def base(supervised: bool) -> Stage:
    stage = (sft_stage if supervised else rlvr_stage)(steps=2)
    stage.data.eval = None
    return stage


@pytest.mark.parametrize(
    ("supervised", "key"), [*((True, key) for key in SUPERVISED), *((False, key) for key in REINFORCED)]
)
def test_another_value_makes_another_run(supervised: bool, key: str, tmp_path: Path, before: dict[str, Any]) -> None:
    beside, value = (SUPERVISED if supervised else REINFORCED)[key]
    stage = base(supervised)
    for name, other in beside.items():
        stage = changed(stage, name, other)
    asked = json.dumps([supervised, beside], default=str)
    if asked not in before:
        before[asked] = observed(stage, tmp_path / "before")
    assert "refused" not in before[asked], before[asked]
    after = observed(changed(stage, key, value), tmp_path / "after")
    assert after != before[asked]


def test_what_supervised_stages_are_said_not_to_read_changes_nothing_of_them(tmp_path: Path) -> None:
    """Of those keys, the ones whose effect on a run of reinforcement is shown above, all at once."""
    stage = base(True)
    stage.data.eval = {"name": "shapes", "size": 4, "columns": {"answer": "response"}}
    other = stage
    keys = [key for key in REINFORCED if is_below(key, unread(stage, supervised=True)) and key not in SUPERVISED]
    assert len(keys) > 25
    for key in keys:
        if key not in ("actor.epochs", "actor.mini_batches", "run.accuracy_rule"):  # refused
            other = changed(other, key, REINFORCED[key][1])
    assert observed(other, tmp_path / "a") == observed(stage, tmp_path / "b")


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    """What runs without the change leave: many leaves are changed beside the same settings."""
    return {}


@pytest.mark.parametrize("supervised", [True, False])
def test_a_run_that_is_repeated_is_the_same_run(supervised: bool, tmp_path: Path) -> None:
    """Else the test above would tell nothing."""
    assert observed(base(supervised), tmp_path / "a") == observed(base(supervised), tmp_path / "b")


def test_every_leaf_is_in_one_of_the_tables_and_no_other() -> None:
    assert SUPERVISED.keys() | REINFORCED.keys() | ELSEWHERE.keys() == set(leaves(Stage))


@pytest.mark.parametrize("key", ELSEWHERE)
def test_the_tests_that_are_named_are_there(key: str) -> None:
    path, _, name = ELSEWHERE[key].partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_evaluations_take_as_many_prompts_at_once_as_asked() -> None:
    stage = changed(changed(base(False), "data.eval", {"name": "shapes", "size": 8}), "run.eval_batch", 3)
    loader = eval_loader(stage, load_policy(stage.model))
    assert loader is not None
    assert [len(batch) for batch in loader] == [3, 3, 2]


def test_a_run_has_the_threads_that_it_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    train([changed(base(True), "run.threads", 3)], tmp_path, show=False)
    assert asked == [3]


def test_batches_are_prepared_ahead_as_many_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that prepares stops where as many batches wait as ``prefetch`` says, and one is in its hands."""
    family = load_policy(ModelConfig(build=TOY)).family
    taken = []
    for prefetch in (0, 3):
        config = dataclasses.replace(base(False).data, prefetch=prefetch, eval=None)
        loader = Loader(config, family)
        made: list[int] = []
        monkeypatch.setattr(loader, "_assemble", _counting(loader._assemble, made))
        next(iter(loader))
        for _ in range(200):
            if len(made) >= 1 + prefetch:
                break
            time.sleep(0.02)
        taken.append(len(made))
        loader.close()
    assert taken[0] == 1
    assert taken[1] >= 4


def _counting(call: Any, into: list[int]) -> Any:
    def counted(*given: Any) -> Any:
        into.append(1)
        return call(*given)

    return counted


def test_the_inference_engine_is_the_one_that_is_named(tmp_path: Path) -> None:
    made: list[dict[str, Any]] = []

    @register_inference_engine("noted_hf", capabilities=CAPABILITIES, override=True)
    def noted(policy: Any, autocast: Any = None, *, prefill_tokens: int = 9) -> HfEngine:
        made.append({"prefill_tokens": prefill_tokens})
        return HfEngine(policy, autocast=autocast, prefill_tokens=prefill_tokens)

    observed(changed(base(False), "inference_engine", {"name": "noted_hf", "prefill_tokens": 99}), tmp_path)
    assert made == [{"prefill_tokens": 99}]
