"""The reward role: fields of the batch, rows that failed, shaping, and what rules read of a batch."""

from __future__ import annotations

import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from rlvlm.batch import Batch, Media, Prompt, Span, reward_details
from rlvlm.data.media import Picture
from rlvlm.errors import ConfigError, TrainingStopped
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.rule import register_reward
from rlvlm.roles.reward import Reward
from tests.rewards import rules_of_tests  # noqa: F401 (registers test_red)

NUMBER = {"number": 0.9, "format": {"weight": 0.1, "style": "answer", "think": False}}


@register_reward("test_reads_batch", isolated=False)
def reads_batch(
    response_length: int,
    max_length: int,
    truncated: bool,
    images: Any,
    image_size: Any,
    resized_size: Any,
    problem: str,
) -> dict[str, Any]:
    """Tells what it got."""
    detail = [
        response_length,
        max_length,
        truncated,
        [type(one).__name__ for one in images],
        image_size,
        resized_size,
        problem,
    ]
    return {"score": 1.0, "detail": {"got": detail}}


@register_reward("test_tells_numbers", isolated=False, details=("accuracy", "exact", "said"))
def tells_numbers(answer_text: str) -> dict[str, Any]:
    """Tells numbers beside its score, in both places where they may stand."""
    told = {"score": 1.0, "exact": answer_text == "3", "text": "no number"}
    return {**told, "detail": {"accuracy": 0.5}} if answer_text == "3" else told


@register_reward("test_fails_on_five", isolated=False)
def fails_on_five(answer_text: str) -> float:
    """Fails where the answer is 5."""
    if answer_text == "5":
        raise ValueError("five")
    return 1.0


def _batch(completions: list[str], per_prompt: int = 2, record: dict[str, Any] | None = None) -> Batch:
    rows, prompts = len(completions), len(completions) // per_prompt
    mask = torch.zeros(rows, 9, dtype=torch.bool)
    for row in range(rows):
        mask[row, 3 : 6 + row % 3] = True
    picture = Picture(Image.new("RGB", (40, 20)))
    table = [
        Prompt(
            f"p{i}",
            {"answer": str(3 + i), "problem": f"q{i}", **(record or {})},
            torch.arange(3),
            torch.arange(3),
            (Span(0, 0, 1),),
        )
        for i in range(prompts)
    ]
    return Batch(
        {
            "group_ids": torch.arange(prompts).repeat_interleave(per_prompt),
            "loss_mask": mask,
            "truncated": torch.zeros(rows, dtype=torch.bool),
        },
        objects={"completions": completions},
        prompts=table,
        media=[Media("k", (28, 14), picture)],
        meta={"step": 7, "metrics": {"mean/other": 1.0}},
    )


def test_scores_parts_and_the_outcome_on_the_last_policy_token() -> None:
    batch = _batch(["<answer>3</answer>", "<answer>4</answer>", "4", "<answer>9</answer>"])
    with Reward(RewardConfig(rules=NUMBER, scale=10.0, bias=-0.5)) as reward:
        found = reward.score(batch)
    torch.testing.assert_close(found["scores"], torch.tensor([1.0, 0.1, 0.9, 0.1]))
    torch.testing.assert_close(found["scores_by_rule", "number"], torch.tensor([1.0, 0.0, 1.0, 0.0]))
    torch.testing.assert_close(found["rewards"], (found["scores"] - 0.5) * 10)
    last = [5, 6, 7, 5]
    assert found["token_rewards"].count_nonzero() == 4
    torch.testing.assert_close(found["token_rewards"][torch.arange(4), torch.tensor(last)], found["rewards"])
    assert "scores" not in batch
    assert found.meta["metrics"] == {"mean/other": 1.0, "sum/reward/errors": 0.0}
    assert found.meta["step"] == 7


def test_a_failed_row_leaves_the_batch_and_is_listed_and_counted() -> None:
    batch = _batch(["<answer>3</answer>", "<answer>5</answer>", "<answer>4</answer>", "<answer>4</answer>"])
    with Reward(RewardConfig(rules={"number": 1.0, "test_fails_on_five": 1.0}, max_error_rate=0.3)) as reward:
        found = reward.score(batch)
    assert found["scores"].tolist() == [2.0, 2.0, 2.0]
    assert found["group_ids"].tolist() == [0, 1, 1]
    assert found.objects["completions"] == ["<answer>3</answer>", "<answer>4</answer>", "<answer>4</answer>"]
    assert found.meta["metrics"]["sum/reward/errors"] == 1.0
    (error,) = found.meta["reward_errors"]
    assert error["uid"] == "p0"
    assert error["rule"] == "test_fails_on_five"
    assert error["kind"] == "exception"
    assert error["completion"] == "<answer>5</answer>"
    assert "ValueError: five" in error["message"]


def test_all_rows_may_fail_and_the_run_stops_past_the_limit(tmp_path: Path) -> None:
    batch = _batch(["<answer>5</answer>"] * 4)
    log = tmp_path / "run" / "errors.jsonl"
    with Reward(RewardConfig(rules={"test_fails_on_five": 1.0}, max_error_rate=1.0)) as reward:
        assert len(reward.score(batch)) == 0
    config = RewardConfig(rules={"test_fails_on_five": 1.0})
    with Reward(config, error_log=log) as reward, pytest.raises(TrainingStopped, match="max_error_rate"):
        reward.score(batch)
    logged = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [(row["step"], row["uid"]) for row in logged] == [(7, "p0"), (7, "p0"), (7, "p1"), (7, "p1")]


def test_a_row_without_a_policy_token_fails() -> None:
    batch = _batch(["<answer>3</answer>"] * 4)
    mask = batch["loss_mask"].clone()
    mask[1] = False
    with Reward(RewardConfig(rules=NUMBER, max_error_rate=0.5)) as reward:
        found = reward.score(batch.with_(loss_mask=mask))
    assert len(found) == 3
    assert "no policy token" in found.meta["reward_errors"][0]["message"]


def test_rules_read_lengths_pictures_and_sizes_of_the_batch() -> None:
    batch = _batch(["a", "b"])
    reward = Reward(RewardConfig(rules={"test_reads_batch": 1.0}), max_length=16)
    details = reward.runner.score(reward._samples(batch)).details["test_reads_batch"]
    assert details[0]["got"] == [3, 16, False, ["Picture"], (40, 20), (28, 14), "q0"]
    assert details[1]["got"][0] == 4


def test_pictures_go_to_the_pool_by_handle(tmp_path: Path) -> None:
    Image.new("RGB", (900, 700), "red").save(tmp_path / "red.png")
    handle = Picture(str(tmp_path / "red.png"))
    handle.decode()
    assert len(pickle.dumps(handle)) < 2000  # not the pixels
    batch = _batch(["a", "b"])
    media = [Media("k", (28, 14), handle)]
    batch = Batch(
        {"group_ids": batch["group_ids"], "loss_mask": batch["loss_mask"]},
        objects=batch.objects,
        prompts=batch.prompts,
        media=media,
    )
    with Reward(RewardConfig(rules={"test_red": 1.0}, workers=1)) as reward:
        found = reward.runner.score(reward._samples(batch))
    assert found.scores == [255.0, 255.0]
    assert found.details["test_red"][0]["pid"] != os.getpid()


def test_a_records_own_size_comes_first_and_boxes_are_converted_by_it() -> None:
    rules = {"bbox": {"weight": 1.0, "pred_space": "resized", "gold_space": "pixel"}}
    record = {"answer": [0, 0, 20, 10]}
    with Reward(RewardConfig(rules=rules)) as reward:
        assert reward.score(_batch(["<answer>[0, 0, 14, 7]</answer>"] * 2, record=record))["scores"].tolist() == [
            1.0,
            1.0,
        ]
        half = reward.score(_batch(["<answer>[0, 0, 14, 7]</answer>"] * 2, record={**record, "image_size": [20, 10]}))
    assert half["scores"].tolist() == [0.25, 0.25]


def test_a_column_with_a_filled_in_name_is_an_error() -> None:
    with Reward(RewardConfig(rules=NUMBER)) as reward, pytest.raises(ConfigError, match="'answer_text'"):
        reward.score(_batch(["3", "4"], record={"answer_text": "x"}))


def test_scoring_can_go_on_beside_generation_and_from_any_thread() -> None:
    batches = [_batch([f"<answer>{n}</answer>"] * 2) for n in (3, 9)]
    with Reward(RewardConfig(rules={"math": 1.0}, workers=1)) as reward:
        waiting = [reward.submit(batch) for batch in batches]
        kept: list[Batch] = []
        thread = threading.Thread(target=lambda: kept.append(reward.score(batches[0])))
        thread.start()
        assert [future.result()["scores"].tolist() for future in waiting] == [[1.0, 1.0], [0.0, 0.0]]
        thread.join()
        assert kept[0]["scores"].tolist() == [1.0, 1.0]


def test_numbers_that_rules_tell_beside_their_scores_are_kept_by_rule_and_key() -> None:
    rules = {"test_tells_numbers": 0.5, "again": {"name": "test_tells_numbers"}, "number": 1.0}
    with Reward(RewardConfig(rules=rules)) as reward:
        scored = reward.score(_batch([f"<answer>{n}</answer>" for n in (3, 5, 4, 3)]))
    both = {"exact": 1.0, "accuracy": 0.5}
    assert scored.objects["reward_details"][0] == {"test_tells_numbers": both, "again": both}
    assert scored.objects["reward_details"][1] == {"test_tells_numbers": {"exact": 0.0}, "again": {"exact": 0.0}}
    found = reward_details(scored.index([3, 1]))
    assert sorted(found) == ["again.accuracy", "again.exact", "test_tells_numbers.accuracy", "test_tells_numbers.exact"]
    assert found["again.exact"].tolist() == [1, 0]
    assert found["again.accuracy"][1].isnan()
    with Reward(RewardConfig(rules={"test_tells_numbers": 0.5})) as reward:
        alone = reward_details(reward.score(_batch(["<answer>3</answer>"] * 2)))
    assert alone["accuracy"].tolist() == alone["test_tells_numbers.accuracy"].tolist() == [0.5, 0.5]
