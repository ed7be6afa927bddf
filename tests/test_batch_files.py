"""Batches as files: what comes back is what was saved."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from rlvlm.batch import Batch, Media, Prompt, Span
from rlvlm.batch_files import load_batch, save_batch
from rlvlm.data.media import Picture
from rlvlm.errors import DataError


def make() -> Batch:
    picture = Picture(Image.new("RGB", (6, 4), (10, 200, 30)))
    media = [Media("a", (6, 4), picture, {"pixel_values": torch.rand(2, 3)}), Media("b", (2, 2), None, {})]
    prompts = [
        Prompt("p0", {"answer": "é", "n": [1, 2]}, torch.arange(3), torch.arange(1), (Span(0, 1, 2),)),
        Prompt("p1", {"answer": None}, torch.arange(2), torch.arange(2)),
    ]
    return Batch(
        {
            "input_ids": torch.arange(6).reshape(2, 3),
            "loss_mask": torch.tensor([[False, True, True], [False, False, True]]),
            "group_ids": torch.tensor([1, 0]),
            ("scores_by_rule", "format"): torch.tensor([0.5, 1.0]),
        },
        objects={"completions": ["x\ud800".encode("utf-8", "replace").decode(), "y"], "spans": [(), (Span(1, 2, 1),)]},
        prompts=prompts,
        media=media,
        prompt_tensors={"greedy_rewards": torch.tensor([0.25, 1.0])},
        meta={"step": 4, "metrics": {"sum/x": 1.0}},
    )


def test_a_saved_batch_comes_back_whole(tmp_path):
    batch = make()
    save_batch(batch, tmp_path / "b")
    again = load_batch(tmp_path / "b")
    assert set(again.keys()) == set(batch.keys())
    for key in batch.keys():
        assert torch.equal(again[key], batch[key])
        assert again[key].dtype == batch[key].dtype
    assert again.objects == batch.objects
    assert again.meta == batch.meta
    for mine, theirs in zip(again.prompts, batch.prompts, strict=True):
        assert (mine.uid, dict(mine.record), mine.spans) == (theirs.uid, dict(theirs.record), theirs.spans)
        assert torch.equal(mine.ids, theirs.ids)
    assert again.media[0].image.decode().getpixel((1, 1)) == (10, 200, 30)
    assert torch.equal(again.media[0].pixels["pixel_values"], batch.media[0].pixels["pixel_values"])
    assert (again.media[1].image, again.media[1].pixels) == (None, {})
    assert not list((tmp_path / "b").glob("*.p*k*l*"))


def test_what_json_cannot_hold_is_named(tmp_path):
    with pytest.raises(DataError, match=r"column 'things' can't be saved as JSON"):
        save_batch(make().with_objects(things=[object(), object()]), tmp_path / "b")
    assert not (tmp_path / "b").exists(), "nothing is written of a batch that can't be saved"
    with pytest.raises(DataError, match="holds no saved batch"):
        load_batch(tmp_path / "nowhere")


FILES = ("tensors.safetensors", "columns.parquet", "pictures.parquet", "tables.json")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_off_overwritten_or_missing_is_named(tmp_path, name):
    for fault in ("cut", "zeros", "text", "other", "missing"):
        folder = tmp_path / fault
        save_batch(make(), folder)
        content = (folder / name).read_bytes()
        if fault == "missing":
            (folder / name).unlink()
        else:
            bad = {"cut": content[: len(content) // 2], "zeros": bytes(64), "text": b"{]", "other": b"[1]"}[fault]
            (folder / name).write_bytes(bad)
        with pytest.raises(DataError, match=name if fault != "other" else "saved batch|format"):
            load_batch(folder)


def _fault_of(folder):
    try:
        load_batch(folder)
    except DataError as error:
        return str(error)
    return str(folder)


def test_any_single_wrong_byte_of_a_table_gives_an_error_that_names_it_or_a_batch(tmp_path):
    save_batch(make(), tmp_path / "b")
    content = (tmp_path / "b" / "tables.json").read_bytes()
    for place in range(0, len(content), 3):
        (tmp_path / "b" / "tables.json").write_bytes(content[:place] + b"[" + content[place + 1 :])
        assert str(tmp_path / "b") in _fault_of(tmp_path / "b")


def test_files_of_two_batches_do_not_fit_together(tmp_path):
    save_batch(make(), tmp_path / "a")
    save_batch(make().index([0]), tmp_path / "b")
    (tmp_path / "a" / "columns.parquet").write_bytes((tmp_path / "b" / "columns.parquet").read_bytes())
    with pytest.raises(DataError, match="do not fit together"):
        load_batch(tmp_path / "a")
