"""What is left out of training and of evaluation is counted where a user looks; no accuracy is null, not 0."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from rlvlm.data.config import DataConfig
from rlvlm.pipelines import train
from rlvlm.rewards.config import RewardConfig
from tests.pipelines.miniature import read_metrics, rlvr_stage, sft_stage

GOOD = [{"problem": f"{number} shapes?", "answer": str(number), "response": str(number)} for number in range(4)]
AWKWARD = [{"neither": 1}, {"problem": "shapes " * 200, "answer": "1", "response": "1"}]

FAILING = """
from rlvlm import register_reward

@register_reward("always_fails", isolated=False, override=True)
def always_fails(completion: str) -> float:
    raise RuntimeError("no idea")
"""


@pytest.fixture
def data(tmp_path) -> DataConfig:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*AWKWARD, *GOOD]))
    return DataConfig(
        train=str(path), eval=str(path), template=None, prompts_per_step=4, prefetch=0, on_bad_row="skip", over_long="drop",
        max_prompt_tokens=64, shuffle=False,
    )  # fmt: skip


def test_sft_reports_over_long_and_bad_records_of_training_and_of_held_out_data(tmp_path, data):
    stage = sft_stage(steps=2)
    stage.data = dataclasses.replace(
        data,
        train={"path": data.train, "columns": {"answer": "response"}},
        eval={"path": data.eval, "columns": {"answer": "response"}},
    )
    stage.reward = RewardConfig()
    summary = train([stage], tmp_path / "run", show=False)
    first = read_metrics(tmp_path / "run")[0]
    assert (first["sum/data/over_long"], first["sum/data/bad_rows"]) == (1, 1)
    details = summary["details"]["warmup"]
    assert (details["held_out_over_long"], details["held_out_bad_rows"]) == (1, 1)


def test_an_evaluation_whose_rewards_all_fail_gives_null_and_says_so(tmp_path, data, caplog):
    plugin = tmp_path / "failing.py"
    plugin.write_text(FAILING)
    stage = rlvr_stage(steps=2, eval_every=1)
    stage.data = data
    stage.plugins, stage.reward = [str(plugin)], RewardConfig(rules={"always_fails": 1.0}, max_error_rate=1.0)
    summary = train([stage], tmp_path / "run", show=False)
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["accuracy_before"] is None
    assert told["greedy_after"] is None
    details = summary["details"]["rl"]
    assert (details["eval_reward_errors_before"], details["eval_over_long"], details["eval_bad_rows"]) == (8, 1, 1)
    first = read_metrics(tmp_path / "run")[0]
    assert first["eval/accuracy"] is None or math.isnan(first["eval/accuracy"])
    assert first["eval/reward_errors"] == 4
    assert "no held-out answer could be scored" in caplog.text
