"""Lengths, shards and the reader: exact counts, kills, equal bytes, packed as padded."""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import os
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import webdataset
from PIL import Image

from rlvlm.cli.main import main
from rlvlm.data.config import DataConfig
from rlvlm.data.offline_packing import (
    Budget,
    Lengths,
    ShardTask,
    count_lengths,
    pack,
    save_bins,
    verify_shards,
    write_shards,
)
from rlvlm.data.records import register_format
from rlvlm.data.sources import open_sources
from rlvlm.data.supervised import supervised_loader
from rlvlm.data.workers import SourceTask
from rlvlm.errors import ConfigError, DataError
from tests import tiny
from tests.data.helpers import family, png, write_jsonl

SIZES = ((56, 56), (84, 112), (200, 60), (57, 91))


def dialogues(folder: Path, count: int = 12) -> str:
    """Dialogues of one or two turns, with none, one or two pictures of several sizes."""
    for number, size in enumerate(SIZES):
        (folder / f"{number}.png").write_bytes(png(size, (number, 40, 40)))
    rows = []
    for number in range(count):
        pictures = [f"{(number + k) % len(SIZES)}.png" for k in range(number % 3)]
        turns = [("human", "<image>" * len(pictures) + "word " * (1 + number % 5)), ("gpt", f"answer {number}")]
        turns += [("human", "more?"), ("gpt", "no")] * (number % 2)
        rows.append(
            {
                "id": f"r{number}",
                "image": pictures,
                "conversations": [{"from": who, "value": what} for who, what in turns],
            }
        )
    return write_jsonl(folder / "data.jsonl", rows)


def task_of(path: Any, name: str = "llava", **settings: Any) -> SourceTask:
    return SourceTask(DataConfig(train=path, template=None, **settings), functools.partial(family, name))


def packed_into(folder: Path, task: SourceTask, max_tokens: int, **options: Any) -> dict[str, Any]:
    lengths = count_lengths(task, folder / "lengths", quiet=True)
    save_bins(pack(lengths.tokens, Budget(max_tokens), skip_empty=True), folder / "bins")
    shards = ShardTask(task, *(str(folder / step) for step in ("lengths", "bins", "shards")))
    return write_shards(shards, quiet=True, **options)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_lengths_are_the_processor_s_own_and_decode_no_pixels(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dialogues(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Image.Image, "load", lambda self: pytest.fail("pixels were decoded"))
        lengths = count_lengths(task_of(path, name), tmp_path / "out", quiet=True)
    bound = family(name)
    for row, record in enumerate(map(json.loads, Path(path).read_text().splitlines())):
        images = [Image.open(tmp_path / picture) for picture in record["image"]]
        roles = {"human": "user", "gpt": "assistant"}
        messages = [
            {"role": roles[t["from"]], "content": t["value"].replace("<image>", tiny.picture_text(name))}
            for t in record["conversations"]
        ]
        text = bound.tokenizer.apply_chat_template(messages, tokenize=False)
        tokens, patches = processor_count(name, bound, text, images)
        assert (int(lengths.tokens[row]), int(lengths.patches[row])) == (tokens, patches)
    assert isinstance(lengths.tokens, np.memmap)


def processor_count(name: str, bound: Any, text: str, images: list[Image.Image]) -> tuple[int, int]:
    """What transformers' own processors make of a sample."""
    if name == "llava":
        processor = transformers.LlavaProcessor(
            bound.image_processor,
            bound.tokenizer,
            patch_size=14,
            vision_feature_select_strategy="default",
            image_token="<image>",
            num_additional_image_tokens=1,
        )
        ids = processor(text=text, images=images or None)["input_ids"]
        return len(ids[0]), 17 * len(images)  # the tower's positions, its class token among them
    grids = bound.image_processor(images=images)["image_grid_thw"] if images else []
    for grid in grids:
        text = text.replace("<|image_pad|>", "<|one|>" * (int(np.prod(grid)) // 4), 1)
    return len(bound.tokenizer(text.replace("<|one|>", "<|image_pad|>"))["input_ids"]), sum(
        int(np.prod(grid)) for grid in grids
    )


def test_bad_rows_stop_or_are_left_out_and_listed(tmp_path: Path) -> None:
    path = dialogues(tmp_path, 6)
    with open(path, "a") as file:
        file.write('{"conversations": [{"from": "human", "value": "<image>q"}, {"from": "gpt", "value": "a"}]}\n')
    with pytest.raises(DataError, match=r"data.jsonl, row 6: the text has 1 <image> marks for 0 pictures"):
        count_lengths(task_of(path), tmp_path / "stop", quiet=True)
    lengths = count_lengths(task_of(path, on_bad_row="skip"), tmp_path / "skip", quiet=True)
    assert lengths.fault_count == 1
    assert lengths.tokens[6] == 0
    assert "row 6" in lengths.faults[0]


def test_shards_hold_whole_dialogues_untouched_pictures_and_boundaries(tmp_path: Path) -> None:
    path = dialogues(tmp_path)
    manifest = packed_into(tmp_path, task_of(path), 120, bins_per_shard=2)
    assert manifest["samples"] == 12
    assert sum(shard["bins"] for shard in manifest["shards"]) == manifest["bins"]
    assert verify_shards(tmp_path / "shards") == []
    source = [json.loads(line) for line in Path(path).read_text().splitlines()]
    seen = []
    urls = [str(tmp_path / "shards" / shard["name"]) for shard in manifest["shards"]]
    for sample in webdataset.WebDataset(urls, shardshuffle=False):
        note = json.loads(sample["json"])
        pictures = [sample[key] for key in sorted(key for key in sample if key.endswith(".png"))]
        wanted = [name for held in note["samples"] for name in source[held["row"]]["image"]]
        assert pictures == [(tmp_path / name).read_bytes() for name in wanted]
        assert note["boundaries"] == [0, *np.cumsum([held["tokens"] for held in note["samples"]]).tolist()]
        assert note["tokens"] <= 120
        for held in note["samples"]:
            turns = source[held["row"]]["conversations"]
            assert [turn["content"] for turn in held["messages"]] == [turn["value"] for turn in turns], "all turns"
            assert held["id"] == f"r{held['row']}"
            seen.append(held["row"])
    assert sorted(seen) == list(range(12))


def test_a_bin_of_pictures_of_several_kinds_gives_each_sample_its_own(tmp_path: Path) -> None:
    rows = []
    for number in range(9):
        name = f"{number}.{('png', 'jpg', 'webp')[number % 3]}"
        Image.new("RGB", (56, 56), (20 * number, 0, 0)).save(tmp_path / name, quality=100)
        rows.append({"problem": "q", "answer": str(number), "images": [name]})
    packed_into(tmp_path, task_of(write_jsonl(tmp_path / "data.jsonl", rows)), 400)
    config = DataConfig(train=f"{tmp_path}/shards/*.tar", prompts_per_step=1, shuffle=False)
    loader = supervised_loader(config, family("llava"))
    batches = iter(loader)
    seen = set()
    for _ in range(len(loader)):
        batch = next(batches)
        for prompt in batch.prompts:
            (span,) = prompt.spans
            red = batch.media[span.media].image.decode().getpixel((28, 28))[0]
            assert abs(red - 20 * prompt.record["row"]) <= 3, "the picture is the row's own"
            seen.add(prompt.record["row"])
    loader.close()
    assert seen == set(range(9))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "parts" not in path.parts}


def test_packing_again_writes_the_same_bytes_and_heals_lost_shards(tmp_path: Path) -> None:
    task = task_of(dialogues(tmp_path))
    packed_into(tmp_path / "a", task, 120, bins_per_shard=2)
    packed_into(tmp_path / "b", task, 120, bins_per_shard=2)
    first = contents(tmp_path / "a")
    assert first == contents(tmp_path / "b")
    (tmp_path / "a" / "shards" / "shard-000001.tar").unlink()
    assert verify_shards(tmp_path / "a" / "shards") == ["shard-000001.tar"]
    packed_into(tmp_path / "a", task, 120, bins_per_shard=2)
    assert contents(tmp_path / "a") == first
    with pytest.raises(DataError, match=r"other settings \(bins_per_shard: 2, now 3\)"):
        packed_into(tmp_path / "a", task, 120, bins_per_shard=3)


def test_work_on_other_data_or_for_another_model_is_refused(tmp_path: Path) -> None:
    path = Path(dialogues(tmp_path))
    count_lengths(task_of(path.as_posix()), tmp_path / "out", quiet=True)
    count_lengths(task_of(path.as_posix()), tmp_path / "out", quiet=True)
    with pytest.raises(DataError, match=r"other settings \(chat_template|tokens_and_patches_of_sizes"):
        count_lengths(task_of(path.as_posix(), "qwen2_5_vl"), tmp_path / "out", quiet=True)
    path.write_text(path.read_text().replace("answer 3", "answer three and more"))
    with pytest.raises(
        DataError, match=r"holds work with other settings \(data_files.data.jsonl: .*remove that folder to begin anew"
    ):
        count_lengths(task_of(path.as_posix()), tmp_path / "out", quiet=True)


@register_format("deadly_for_a_test", override=True)
def deadly(row: Any, *, at: int, note: str) -> dict[str, Any]:
    """LLaVA rows, and a kill -9 of the process at the n-th row it reads, once for each n."""
    path = Path(note)
    calls = int(path.read_text()) if path.exists() else 0
    path.write_text(str(calls + 1))
    if calls + 1 == at:
        os.kill(os.getpid(), signal.SIGKILL)
    roles = {"human": "user", "gpt": "assistant"}
    turns = [{"role": roles[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]
    return {"id": row["id"], "messages": turns, "images": row["image"]}


def run_in_child(work: Callable[[], object]) -> int | None:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    return child.exitcode


@pytest.mark.parametrize("at", [1, 7, 13, 20])
def test_a_killed_run_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvlm.data.offline_packing.lengths._CHUNK", 4)
    path = dialogues(tmp_path)
    packed_into(tmp_path / "whole", task_of({"path": path, "format": "llava"}), 120, bins_per_shard=1)
    reads = tmp_path / "reads"
    task = task_of({"path": path, "format": {"name": "deadly_for_a_test", "at": at, "note": str(reads)}})
    work = functools.partial(packed_into, tmp_path / "killed", task, 120, bins_per_shard=1)
    assert run_in_child(work) == -signal.SIGKILL
    assert run_in_child(work) == 0
    assert int(reads.read_text()) < 24 + 12, "finished parts were not read again"
    killed, whole = contents(tmp_path / "killed"), contents(tmp_path / "whole")
    del killed["job.json"], whole["job.json"]  # names the format, which differs
    assert killed == whole
    assert not list((tmp_path / "killed").rglob("*.partial"))


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_packed_rows_give_what_padded_ones_give(tmp_path: Path, name: str) -> None:
    path = dialogues(tmp_path)
    packed_into(tmp_path, task_of(path, name), 160)
    policy = tiny.policy(name)
    config = DataConfig(train=f"{tmp_path}/shards/*.tar", prompts_per_step=2, shuffle=False)
    loader = supervised_loader(config, policy.family)
    batch = next(iter(loader))
    loader.close()
    assert sorted(set(batch.objects["bin"])) == [0, 1]
    lengths = Lengths.load(tmp_path / "lengths")
    for number in (0, 1):
        held = torch.tensor(batch.objects["bin"]) == number
        assert int(batch["attention_mask"][held].sum()) <= 160
    assert batch["attention_mask"].sum(1).tolist() == [
        int(lengths.tokens[prompt.record["row"]]) for prompt in batch.prompts
    ]
    assert len({prompt.uid for prompt in batch.prompts}) == len(batch)
    with torch.no_grad():
        packed = policy(policy.layout(batch, "packed")).logp
        padded = policy(policy.layout(batch, "padded")).logp
    assert torch.allclose(packed, padded, atol=1e-5)
    assert packed[batch["loss_mask"]].abs().min() > 0


def test_bins_are_shared_out_over_ranks(tmp_path: Path) -> None:
    packed_into(tmp_path, task_of(dialogues(tmp_path)), 120)
    config = DataConfig(train=f"{tmp_path}/shards/*.tar", prompts_per_step=4, shuffle=True)
    drawn = []
    for rank, world_size in ((0, 1), (0, 2), (1, 2)):
        loader = supervised_loader(config, family("llava"), rank=rank, world_size=world_size)
        drawn.append([prompt.uid for prompt in next(iter(loader)).prompts])
        loader.close()
    assert drawn[1] + drawn[2] == drawn[0]


def test_a_bin_that_was_packed_for_other_tokens_is_refused(tmp_path: Path) -> None:
    packed_into(tmp_path, task_of(dialogues(tmp_path), "qwen2_5_vl"), 400)
    config = DataConfig(train=f"{tmp_path}/shards/*.tar", max_pixels=28 * 28, prompts_per_step=1)
    batches = iter(supervised_loader(config, family("qwen2_5_vl")))
    with pytest.raises(DataError, match=r"when it was packed; train with the model and the pixel limits"):
        list(itertools.islice(batches, 10))  # not every bin has a picture that other limits make smaller


def test_bins_are_written_in_an_order_of_the_seed_each_once(tmp_path: Path) -> None:
    task = task_of(dialogues(tmp_path))
    packed_into(tmp_path, task, 120, bins_per_shard=2)
    orders = []
    for seed in (0, 1, 0):
        shards = ShardTask(task, str(tmp_path / "lengths"), str(tmp_path / "bins"), str(tmp_path / f"s{seed}"), seed)
        write_shards(shards, quiet=True)
        packed = open_sources(DataConfig(train=str(tmp_path / f"s{seed}" / "*.tar")), "train")[0]
        bins = [packed[place] for place in range(len(packed))]
        orders.append([[sample["row"] for sample in found["samples"]] for found in bins if found])
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_the_command_packs_in_steps_or_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer, processor = tiny.parts("llava")
    for part in (model.config, tokenizer, processor):
        part.save_pretrained(tmp_path / "model")
    path = dialogues(tmp_path)
    call = ["data", "pack", path, "--model", str(tmp_path / "model"), "--max-tokens", "120"]
    assert main([*call, "--out", str(tmp_path / "a")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bins"]["samples"] == 12
    assert 0 < report["bins"]["fill"] <= 1
    for step in ("lengths", "bins", "shards"):
        assert main([*call, "--out", str(tmp_path / "b"), "--step", step]) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert main([*call, "--out", str(tmp_path / "c"), "--step", "bins"]) == 1
    assert "run the lengths step first" in capsys.readouterr().err
    look = ["data", "check", f"{tmp_path}/a/shards/*.tar", "--model", str(tmp_path / "model")]
    assert main([*look, "--dialogues", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["formats"], found["rows"]) == ({"packed": report["bins"]["bins"]}, report["bins"]["bins"])
    assert found["tokens"]["max"] <= 120
    assert main(look) == 1
    assert "check it with --dialogues" in capsys.readouterr().out
    assert main([*call[:-1], "3", "--out", str(tmp_path / "d")]) == 1
    assert "of 12 rows 12 are over the budget of a bin" in capsys.readouterr().err
    with tarfile.open(tmp_path / "a" / "shards" / "shard-000000.tar") as tar:
        assert all(entry.mtime == 0 for entry in tar)


def test_over_long_samples_are_dropped_or_kept_in_bins_of_their_own(tmp_path: Path) -> None:
    task = task_of(dialogues(tmp_path))
    lengths = count_lengths(task, tmp_path / "lengths", quiet=True)
    limit = int(np.sort(lengths.tokens)[-3])
    for keep in (False, True):
        bins = pack(lengths.tokens, Budget(limit), keep_over_long=keep)
        report = save_bins(bins, tmp_path / "bins")
        assert report["over_long"] == 2
        assert report["samples"] == (12 if keep else 10)
    with pytest.raises(ConfigError, match="at least 1"):
        write_shards(ShardTask(task, "", "", ""), bins_per_shard=0)
