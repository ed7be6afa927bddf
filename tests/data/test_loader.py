"""The loader: exact positions, ranks, faults, shared pictures."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rlvlm.batch import Batch
from rlvlm.data.config import DataConfig
from rlvlm.data.loader import Loader
from rlvlm.errors import DataError
from tests.data.helpers import counting_rows, family, png, write_jsonl


def make(
    path: Any,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    split: str = "train",
    name: str = "llava",
    **settings: Any,
) -> Loader:
    config = DataConfig(**{split: path, "template": None, "prompts_per_step": 4, **settings})
    return Loader(config, family(name), seed, split=split, rank=rank, world_size=world_size)


def take(loader: Loader, count: int) -> list[Batch]:
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(count)]
    loader.close()
    return batches


def uids(batches: list[Batch]) -> list[list[str]]:
    return [[prompt.uid for prompt in batch.prompts] for batch in batches]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write_jsonl(tmp_path / "a.jsonl", counting_rows(tmp_path, 10))


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_a_batch_has_one_row_a_prompt_and_the_tables(file: str, name: str) -> None:
    (batch,) = take(make(file, name=name), 1)
    assert len(batch) == len(batch.prompts) == len(batch.media) == 4
    assert batch["group_ids"].tolist() == [0, 1, 2, 3]
    bound = family(name)
    for prompt in batch.prompts:
        (span,) = prompt.spans
        media = batch.media[span.media]
        assert int(media.image.decode().getpixel((0, 0))[0]) == int(prompt.record["answer"]), (
            "each prompt has its own picture"
        )
        assert media.size == bound.target_size((56, 56))
        assert torch.equal(media.pixels["pixel_values"], bound.process(media.image)["pixel_values"])
        assert "images" not in prompt.record
        assert prompt.record["problem"].endswith("?")


def test_an_epoch_draws_every_record_once_and_uids_never_repeat(file: str) -> None:
    drawn = [uid for batch in uids(take(make(file), 10)) for uid in batch]
    assert len(set(drawn)) == 40
    assert {uid.split("@")[0] for uid in drawn[:10]} == {f"train.0:{i}.{i}" for i in range(10)}
    assert uids(take(make(file, seed=1), 10)) != uids(take(make(file), 10))
    assert uids(take(make(file, prefetch=3), 10)) == uids(take(make(file, prefetch=0), 10))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_saved_position_goes_on_behind_the_last_batch_given_out(file: str, prefetch: int) -> None:
    straight = uids(take(make(file, prefetch=prefetch), 9))
    loader = make(file, prefetch=prefetch)
    first = take(loader, 4)
    state = json.loads(json.dumps(loader.state_dict()))
    again = make(file, prefetch=prefetch)
    again.load_state_dict(state)
    assert uids(first) + uids(take(again, 5)) == straight


def test_resuming_on_another_number_of_ranks_draws_the_same_prompts(file: str) -> None:
    straight = uids(take(make(file), 6))
    two = [make(file, rank, 2) for rank in range(2)]
    halves = [uids(take(loader, 3)) for loader in two]
    assert [a + b for a, b in zip(*halves, strict=True)] == straight[:3]
    assert two[0].state_dict() == two[1].state_dict()
    four = [make(file, rank, 4) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(two[0].state_dict())
    quarters = [uids(take(loader, 3)) for loader in four]
    assert [[uid for part in parts for uid in part] for parts in zip(*quarters, strict=True)] == straight[3:]


def test_held_out_records_come_once_in_order_at_every_pass(file: str) -> None:
    loader = make(file, split="eval")
    first = list(loader)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert [p.record["answer"] for batch in first for p in batch.prompts] == [str(i) for i in range(10)]
    next(iter(loader))  # a pass that was broken off does not shift the next
    assert uids(list(loader)) == uids(first)
    loader.close()


def test_a_picture_that_prompts_share_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (batch,) = take(make(write_jsonl(tmp_path / "a.jsonl", [{"problem": "q", "images": ["a.png", "a.png"]}] * 4)), 1)
    assert len(batch.media) == 1
    assert [span.media for prompt in batch.prompts for span in prompt.spans] == [0] * 8


def test_processed_pictures_are_kept_for_the_next_epoch(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound, calls = family("llava"), []
    plain = bound.process_all
    monkeypatch.setattr(bound, "process_all", lambda pictures: calls.extend(pictures) or plain(pictures))
    take(make(file, prefetch=0), 10)
    assert len(calls) == 10
    take(make(file, prefetch=0, cache_mb=0), 10)
    assert len(calls) == 50


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_pictures_processed_together_are_those_processed_alone(name: str) -> None:
    bound = family(name)
    noise = np.random.default_rng(0)
    pictures = [
        Image.fromarray(noise.integers(0, 255, (h, w, 3), np.uint8))
        for h, w in ((56, 56), (91, 140), (56, 56), (300, 60))
    ]
    for alone, together in zip(map(bound.process, pictures), bound.process_all(pictures), strict=True):
        assert alone.keys() == together.keys()
        assert all(torch.equal(alone[key], together[key]) for key in alone)


def truncated() -> bytes:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    buffer = io.BytesIO()
    noise.save(buffer, "JPEG")
    return buffer.getvalue()[:1500]


BAD = [
    {"problem": "<image>q"},
    {"problem": "q", "images": ["../a.jsonl"]},
    {"problem": "q", "images": ["missing.png"]},
    {"answer": "no problem"},
    {"problem": "q", "images": ["thin.png"]},
    {"problem": "q", "prompt_template": "/etc/passwd"},
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_row_stops_or_is_left_out_and_counted(
    tmp_path: Path, bad: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "thin.png").write_bytes(png((600, 1)))
    file = write_jsonl(tmp_path / "a.jsonl", [*counting_rows(tmp_path, 3), bad])
    with pytest.raises(DataError, match=r"a\.jsonl, row 3"):
        take(make(file, name="qwen2_5_vl", shuffle=False, prefetch=1), 1)
    loader = make(file, name="qwen2_5_vl", shuffle=False, on_bad_row="skip")
    with caplog.at_level(logging.WARNING, "rlvlm.data"):
        batches = take(loader, 2)
    assert [p.record["answer"] for p in batches[0].prompts] == ["0", "1", "2", "0"], "the next record takes its place"
    assert batches[0].meta["metrics"] == {"sum/data/bad_rows": 1.0}
    assert "a.jsonl, row 3" in caplog.text


def test_pixels_that_break_behind_a_good_header_make_the_batch_shorter(tmp_path: Path) -> None:
    (tmp_path / "cut.jpg").write_bytes(truncated())
    rows = [*counting_rows(tmp_path, 3), {"problem": "q", "images": ["cut.jpg"]}]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    (batch,) = take(make(file, shuffle=False, on_bad_row="skip"), 1)
    assert len(batch) == 3
    with pytest.raises(DataError, match=r"row 3: picture .*can't be decoded"):
        take(make(file, shuffle=False), 1)


def test_over_long_prompts_are_dropped_or_raise_and_are_never_cut(tmp_path: Path) -> None:
    rows = [{"problem": "x" * (10 if i % 2 else 900)} for i in range(8)]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    loader = make(file, max_prompt_tokens=200)
    batches = take(loader, 2)
    assert all(len(prompt.ids) <= 200 and prompt.record["problem"] == "x" * 10 for b in batches for prompt in b.prompts)
    assert loader.counts["over_long"] == 8
    with pytest.raises(DataError, match=r"a.jsonl, row \d: the prompt has 9\d\d tokens .*allows 200"):
        take(make(file, max_prompt_tokens=200, over_long="raise"), 1)


def test_a_file_without_one_usable_row_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{"problem": "q", "kind": "a"}] * 5)
    with pytest.raises(DataError, match=r"not one of the 5 records drawn is usable .*'filtered_out': 5"):
        take(make({"path": file, "where": {"kind": "b"}}), 1)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="no records"):
        make(str(tmp_path / "empty.jsonl"))
    with pytest.raises(DataError, match="data.train names no source"):
        make(None)


def test_sources_are_mixed_by_weight(tmp_path: Path) -> None:
    files = [write_jsonl(tmp_path / f"{name}.jsonl", [{"problem": name}] * 50) for name in "ab"]
    batches = take(make([{"path": files[0], "weight": 3}, {"path": files[1], "weight": 1}]), 10)
    names = [prompt.record["problem"] for batch in batches for prompt in batch.prompts]
    assert names.count("a") == 30


@pytest.mark.parametrize("weights", [(3, 1), (1, 5), (0.9, 0.1)])
def test_weighted_sources_are_read_once_each_record_when_held_out(tmp_path: Path, weights: tuple[float, float]) -> None:
    sizes = {"a": 9, "b": 3}
    rows = {name: [{"problem": f"{name}{row}"} for row in range(size)] for name, size in sizes.items()}
    files = [write_jsonl(tmp_path / f"{name}.jsonl", rows[name]) for name in sizes]
    loader = make([{"path": file, "weight": w} for file, w in zip(files, weights, strict=True)], split="eval")
    for _ in range(2):
        read = [prompt.record["problem"] for batch in loader for prompt in batch.prompts]
        assert read == [row["problem"] for name in sizes for row in rows[name]]
    loader.close()


def test_pixel_limits_hold_for_trainer_and_engine_alike(tmp_path: Path) -> None:
    (tmp_path / "big.png").write_bytes(png((560, 280)))
    file = write_jsonl(tmp_path / "a.jsonl", [{"problem": "q", "images": ["big.png"]}] * 4)
    (batch,) = take(make(file, name="qwen2_5_vl", max_pixels=56 * 28 * 4), 1)
    media = batch.media[0]
    assert media.image.decode().size == (112, 56), "what an engine is handed"
    assert media.pixels["image_grid_thw"].tolist() == [[1, 4, 8]], "what the trainer sees"
    assert batch.prompts[0].spans[0].length == 8
