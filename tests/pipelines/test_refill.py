"""Dynamic sampling: filtered groups are replaced until the batch is full, and a run with it resumes exactly."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.batch import Batch, Prompt
from rlvlm.pipelines.prompts import PromptStream
from rlvlm.pipelines.rlvr import RLVR
from rlvlm.pipelines.run import train
from rlvlm.roles.config import ActorConfig, RolloutConfig
from tests.pipelines.miniature import read_metrics, rlvr_stage

NO_IDS = torch.zeros(0, dtype=torch.int64)


class Numbered:
    """A loader of numbered prompts, ``size`` in a batch."""

    def __init__(self, size: int) -> None:
        self.size, self.drawn = size, 0

    def __iter__(self):
        while True:
            first = self.drawn
            self.drawn += self.size
            yield prompts(range(first, first + self.size)).with_meta(metrics={"sum/data/bad_rows": 1.0})

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


def prompts(numbers) -> Batch:
    table = [Prompt(str(number), {}, NO_IDS, NO_IDS, ()) for number in numbers]
    return Batch({"group_ids": torch.arange(len(table))}, prompts=table)


def uids(batch: Batch) -> list[str]:
    return [prompt.uid for prompt in batch.prompts]


class Answers:
    """Two answers to each prompt, of which only those of ``good`` numbers differ in their reward; the rest of RLVR does nothing."""

    version, n_failed, passed_over = 0, 0, 0

    def __init__(self, good, failing=()) -> None:
        self.good, self.failing = good, set(failing)
        self.updated: list[list[str]] = []

    def generate(self, asked: Batch, step: int) -> Batch:
        batch = asked.repeat(2)
        mask = torch.ones(len(batch), 3, dtype=torch.bool)
        return batch.with_(
            loss_mask=mask, truncated=~mask[:, 0], versions=torch.zeros(len(batch), 3, dtype=torch.int32)
        )

    def generate_once(self, asked: Batch, *, greedy: bool, step: int) -> Batch:
        return self.generate(asked, step).index(range(0, 2 * len(asked), 2)).with_meta(once=True)

    def score(self, batch: Batch) -> Batch:
        numbers = [int(batch.prompts[group].uid) for group in batch["group_ids"].tolist()]
        failed = [bool(batch.meta.get("once")) and number in self.failing for number in numbers]
        rewards = torch.zeros(len(batch), 3)
        rewards[:, -1] = torch.tensor([float(self.good(n) and row % 2) for row, n in enumerate(numbers)])
        scored = batch.with_(token_rewards=rewards)
        keep = [row for row, bad in enumerate(failed) if not bad]
        counted = {**batch.meta.get("metrics", {}), "sum/reward/errors": float(sum(failed))}
        return (scored.index(keep) if sum(failed) else scored).with_meta(metrics=counted)

    def update(self, batch: Batch) -> dict[str, float]:
        self.updated.append(uids(batch))
        return {"rows": float(len(batch))}

    def pass_over(self) -> None:
        self.passed_over += 1

    def update_weights(self, weights, version: int) -> None:
        pass

    def weights(self):
        return []


def pipeline(parts: Answers, **config: Any) -> RLVR:
    algorithm = Algorithm(AlgorithmConfig(**{"filters": ["reward_spread"], **config}))
    greedy = "greedy_rewards" in algorithm.needs
    passes = SimpleNamespace(prox_logp=False, greedy=greedy, written=())
    return RLVR(parts, parts, parts, None, algorithm, passes)  # type: ignore[arg-type]


RECORDER: Any = SimpleNamespace(phase=lambda name: nullcontext())


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 4, 7])
def test_a_batch_is_full_whatever_share_of_the_groups_is_dropped(every: int, size: int) -> None:
    parts, stream = Answers(lambda number: number % every == 0), PromptStream(Numbered(size), size)
    made = pipeline(parts, max_refills=50)
    for step in range(1, 4):
        metrics = made.step(stream.take(size), step, RECORDER, stream.take)
        assert metrics["sum/refill/missing_groups"] == 0
        assert metrics["rows"] == 2 * size
        assert (metrics["sum/refills"] > 0) == (metrics["sum/filter/reward_spread/dropped_groups"] > 0)
    used = [int(uid) for step in parts.updated for uid in step]
    assert used == sorted(set(used))
    assert all(number % every == 0 for number in used)


def test_refills_are_bounded_counted_and_ask_for_what_the_share_so_far_calls_for() -> None:
    parts, stream = Answers(lambda number: number in (1, 8)), PromptStream(Numbered(4), 4)
    metrics = pipeline(parts, max_refills=2).step(stream.take(4), 1, RECORDER, stream.take)
    assert parts.updated == [["1", "8"]]
    assert metrics["sum/refills"] == 2
    assert metrics["sum/refill/groups"] == 1
    assert metrics["sum/refill/missing_groups"] == 2
    assert metrics["sum/filter/reward_spread/dropped_groups"] == 10
    assert metrics["sum/data/bad_rows"] == 3  # of the three batches that were drawn


def test_groups_that_are_too_many_are_left_out_and_counted() -> None:
    parts, stream = Answers(lambda number: number == 0 or number > 3), PromptStream(Numbered(4), 4)
    metrics = pipeline(parts).step(stream.take(4), 1, RECORDER, stream.take)
    assert parts.updated == [["0", "4", "5", "6"]]
    assert metrics["sum/refill/surplus_groups"] == 1


@pytest.mark.parametrize("settings", [{"max_refills": 0}, {"filters": []}])
def test_without_refills_or_filters_a_step_takes_its_own_prompts_only(settings: dict[str, Any]) -> None:
    parts, stream = Answers(lambda number: number % 2), PromptStream(Numbered(4), 4)
    metrics = pipeline(parts, **settings).step(stream.take(4), 1, RECORDER, stream.take)
    assert "sum/refills" not in metrics
    assert uids(stream.take(4)) == ["4", "5", "6", "7"]


def test_a_step_in_which_no_refill_helps_is_skipped_and_says_what_was_tried() -> None:
    parts, stream = Answers(lambda number: False), PromptStream(Numbered(4), 4)
    metrics = pipeline(parts, max_refills=3).step(stream.take(4), 1, RECORDER, stream.take)
    assert (parts.updated, parts.passed_over) == ([], 1), "the schedule goes on without a step"
    assert metrics["sum/skipped_batches"] == 1
    assert metrics["sum/refills"] == 3
    assert metrics["sum/filter/reward_spread/dropped_groups"] == 16


@pytest.mark.parametrize("cuts", [[3], [1, 1, 1], [4, 2, 5], [9, 1], [2, 2, 4, 3]])
def test_a_stream_goes_on_from_any_place_inside_a_batch(cuts: list[int]) -> None:
    whole = PromptStream(Numbered(4), 4)
    expected = [uid for _ in range(8) for uid in uids(whole.take(4))]
    stream, seen = PromptStream(Numbered(4), 4), []
    for cut in cuts:
        seen += uids(stream.take(cut))
        again = PromptStream(Numbered(4), 4)
        again.load_state_dict(stream.state_dict())
        assert again.state_dict() == stream.state_dict()
        stream = again
    seen += uids(stream.take(4))
    assert seen == expected[: len(seen)]


def test_what_was_passed_over_is_counted_once_however_a_batch_is_cut() -> None:
    stream = PromptStream(Numbered(4), 4)
    counted = [stream.take(3).meta["metrics"].get("sum/data/bad_rows", 0.0) for _ in range(4)]
    assert sum(counted) == 3


def remax(parts: Answers, **config: Any) -> tuple[RLVR, PromptStream]:
    return pipeline(parts, advantage="remax", filters=[], **config), PromptStream(Numbered(8), 8)


def test_groups_without_a_greedy_reward_are_counted() -> None:
    parts = Answers(lambda number: True, failing=(1, 2, 3, 6))
    made, stream = remax(parts)
    metrics = made.step(stream.take(8), 1, RECORDER)
    assert metrics["rows"] == 8
    assert metrics["sum/reward/errors"] == 4
    assert metrics["sum/reward/no_baseline"] == 8


def test_a_batch_whose_greedy_answers_all_fail_is_skipped_and_counted() -> None:
    made, stream = remax(Answers(lambda number: True, failing=range(8)))
    metrics = made.step(stream.take(8), 1, RECORDER)
    assert metrics["sum/skipped_batches"] == 1
    assert metrics["sum/reward/errors"] == 8
    assert metrics["sum/reward/no_baseline"] == 16


def test_a_batch_with_no_scored_row_is_skipped(tmp_path) -> None:
    (tmp_path / "failing.py").write_text(
        "from rlvlm.rewards import register_reward\n"
        "@register_reward('failing')\n"
        "def failing(completion: str) -> float:\n    raise ValueError('never')\n"
    )
    for advantage in ("remax", "grpo"):
        stage = rlvr_stage(steps=2, eval_prompts=2)
        stage.data.eval = None
        stage.plugins = [str(tmp_path / "failing.py")]
        stage.reward.rules, stage.reward.max_error_rate = {"failing": 1.0}, 1.0
        stage.algorithm.advantage, stage.algorithm.filters = advantage, ["reward_spread"]
        train([stage], tmp_path / advantage, show=False)
        assert all(entry["sum/skipped_batches"] == 1 for entry in read_metrics(tmp_path / advantage))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_run_with_refills_that_was_broken_off_goes_on_as_if_nothing_had_happened(
    tmp_path, monkeypatch, prefetch: int
) -> None:
    def stage():
        made = rlvr_stage(
            steps=4,
            save_every=1,
            trackers=["jsonl", "break_off"],
            actor=ActorConfig(mini_batches=2),
            rollout=RolloutConfig(n=3, max_new_tokens=3),
        )
        made.algorithm.filters = [{"name": "mean_window", "low": 0.0, "high": 0.17}]
        made.data.eval, made.data.prefetch = None, prefetch
        return made

    train([stage()], tmp_path / "whole", show=False)
    refilled = [entry["sum/refills"] for entry in read_metrics(tmp_path / "whole")]
    assert any(refilled)
    monkeypatch.setenv("BREAK_AT", "3")
    with pytest.raises(KeyboardInterrupt):
        train([stage()], tmp_path / "broken", show=False)
    monkeypatch.delenv("BREAK_AT")
    train([stage()], tmp_path / "broken", show=False)
    assert read_metrics(tmp_path / "broken") == read_metrics(tmp_path / "whole")
