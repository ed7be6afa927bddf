"""Files are told apart by what they hold, at a cost that has a bound."""

from __future__ import annotations

import os

import pytest

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.data import identity
from rlvlm.data.config import DataConfig
from rlvlm.pipelines.config import GatesConfig, RunConfig, Stage
from rlvlm.pipelines.origin import differences, origin_of, other_versions, read_origin
from rlvlm.rewards.config import RewardConfig
from rlvlm.roles.config import ActorConfig, RolloutConfig


def stage(path, **changes) -> Stage:
    return Stage(data=DataConfig(train=str(path)), **changes)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "a", "answer": "1"}\n')
    return path


def test_a_file_of_another_time_and_the_same_content_is_the_same(rows):
    before = origin_of(stage(rows), {})
    os.utime(rows, (1, 1))
    assert differences(before, origin_of(stage(rows), {}, before)) == []
    assert origin_of(stage(rows), {}).fingerprint() == before.fingerprint()


@pytest.mark.parametrize("size", [100, 1 << 20, (1 << 26) + 5])
def test_a_change_at_the_beginning_or_the_end_is_seen_at_every_size(tmp_path, size):
    path = tmp_path / "rows.jsonl"
    for place in (0, size - 1):
        with path.open("wb") as file:
            file.truncate(size)
        before = origin_of(stage(path), {})
        with path.open("rb+") as file:
            file.seek(place)
            file.write(b"x")
        (found,) = differences(before, origin_of(stage(path), {}, before))
        assert "rows.jsonl' has changed since" in found


def test_large_files_are_read_in_part_and_not_again_while_size_and_time_stay(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 33)  # 8 GiB without a block on the disk
    before = origin_of(stage(path), {})  # would take long if it were read
    monkeypatch.setattr(identity, "_hash", lambda *_: pytest.fail("read again"))
    assert origin_of(stage(path), {}, before).files == before.files


def test_what_may_change_between_kill_and_resume_is_in_no_fingerprint(rows):
    plain = origin_of(stage(rows), {})
    free = RunConfig(
        name="x", dir="y", trackers=[], keep=9, keep_finished="all", save_every=7, resume="never", threads=3,
        sample_rows=1, sample_every=3, sample_groups=5,
    )  # fmt: skip
    other = stage(rows, run=free, cache=True)
    other.data.cache_mb, other.data.file_cache_mb, other.data.prefetch, other.reward.workers = 1, 2, 3, 4
    other = origin_of(other, {})
    assert differences(plain, other) == []
    assert plain.fingerprint() == other.fingerprint()


WATCHED = RunConfig(eval_every=2, stop_at=0.5)
RULES = {"number": 1.0, "format": {"weight": 0.2, "style": "answer"}}


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": AlgorithmConfig(policy_loss="gspo", advantage="rloo")},
        {"rollout": RolloutConfig(n=16)},
        {"actor": ActorConfig(epochs=2, mini_batches=4)},
        {"reward": RewardConfig(rules={"number": 0.5, "format": {"weight": 0.7, "style": "answer"}})},
        {"reward": RewardConfig(rules=RULES, scale=10.0, bias=-0.5, workers=1)},
        {"run": RunConfig(eval_every=2, stop_at=0.5, gates=GatesConfig(vision_every=3))},
        {"data": {"prefetch": 0, "cache_mb": 1}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_supervised_stage_does_not_read_is_no_difference(rows, changes):
    settings = {"pipeline": "sft", "run": WATCHED, "reward": RewardConfig(rules=RULES)}
    plain = origin_of(stage(rows, **settings), {})
    other = Stage(**{"data": DataConfig(train=str(rows), **changes.pop("data", {})), **settings, **changes})
    assert plain.fingerprint() == origin_of(other, {}).fingerprint()
    assert differences(plain, origin_of(other, {})) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout": RolloutConfig(temperature=0.5)},
        {"rollout": RolloutConfig(max_new_tokens=3)},
        {"reward": RewardConfig(rules={"number": {"tolerance": 1.0}, "format": {"weight": 0.2, "style": "answer"}})},
        {"reward": RewardConfig(rules={"number": 1.0})},
        {"run": RunConfig(eval_every=2, stop_at=0.5, accuracy_rule="format")},
        {"run": RunConfig(eval_every=2, stop_at=0.5, seed=1)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_decides_where_a_supervised_stage_stops_is_a_difference_while_it_is_evaluated_on_the_way(rows, changes):
    settings = {"pipeline": "sft", "run": WATCHED, "reward": RewardConfig(rules=RULES)}
    plain, other = origin_of(stage(rows, **settings), {}), origin_of(stage(rows, **{**settings, **changes}), {})
    assert plain.fingerprint() != other.fingerprint()
    assert differences(plain, other) != []


def test_without_evaluations_on_the_way_a_supervised_stage_samples_nothing_and_its_checkpoints_outlast_them(rows):
    quiet = {"pipeline": "sft", "run": RunConfig(), "reward": RewardConfig(rules=RULES)}
    plain = origin_of(stage(rows, **quiet), {})
    other = origin_of(stage(rows, **{**quiet, "rollout": RolloutConfig(temperature=0.5), "reward": RewardConfig()}), {})
    assert plain.fingerprint() == other.fingerprint()
    watched = origin_of(stage(rows, **{**quiet, "run": WATCHED}), {})  # made longer: lengths may change
    assert differences(plain, watched) == differences(watched, plain) == []
    assert plain.identity() == watched.identity()


def test_a_reinforced_stage_reads_them_all(rows):
    plain = origin_of(stage(rows), {})
    for changes in ({"algorithm": AlgorithmConfig(advantage="rloo")}, {"rollout": RolloutConfig(n=2)}):
        assert differences(plain, origin_of(stage(rows, **changes), {})) != []


def test_lengths_are_no_difference_but_stay_on_record(rows):
    short = origin_of(stage(rows, run=RunConfig(steps=2)), {})
    long = origin_of(stage(rows, run=RunConfig(steps=4)), {})
    assert differences(short, long) == []
    assert short.identity() == long.identity()
    assert len({short.fingerprint(), long.fingerprint(), long.lengthened(short).fingerprint()}) == 3


def test_an_origin_comes_back_from_its_folder_and_another_version_is_named(rows, tmp_path):
    made = origin_of(stage(rows), {"fingerprint": "f", "made": "m"})
    made.write(tmp_path)
    assert read_origin(tmp_path) == made
    older = read_origin(tmp_path)
    older.versions["torch"] = "1.0"
    assert other_versions(older, made) == [f"torch was 1.0 and is {made.versions['torch']}"]
    (tmp_path / "origin.json").write_text("{")
    assert read_origin(tmp_path) is None
