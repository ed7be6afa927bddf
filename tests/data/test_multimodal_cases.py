"""Every multimodal case of the shared collection: what other projects got wrong with pictures."""

from __future__ import annotations

import base64
import io
import json
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from rlvlm.batch import Batch, Media, Prompt, Span
from rlvlm.data.media import Picture
from rlvlm.data.prompts import PromptEncoder, place_pictures
from rlvlm.data.records import picture_list
from rlvlm.errors import DataError
from rlvlm.models.families.qwen2_5_vl import Qwen2_5VL
from tests.data.helpers import family

CASES = [json.loads(line) for line in (Path(__file__).parent.parent / "cases" / "multimodal.jsonl").open()]


def of(*ops: str) -> Any:
    chosen = [case for case in CASES if case["input"]["op"] in ops]
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def build(spec: dict[str, Any]) -> Image.Image:
    mode, size = spec["mode"], tuple(spec["size"])
    if "color" in spec:
        return Image.new(mode, size, tuple(spec["color"]))
    if "palette" in spec:
        image = Image.new("P", size)
        image.putpalette([channel for colour in spec["palette"] for channel in colour])
        image.putdata(spec["indices"])
        if "transparency_index" in spec:
            image.info["transparency"] = spec["transparency_index"]
        return image
    if mode == "I;16":
        return Image.fromarray(np.array(spec["values"], np.uint16).reshape(size[1], size[0]))
    image = Image.new(mode, size)
    image.putdata(spec["values"] if "values" in spec else [tuple(pixel) for pixel in spec["pixels"]])
    return image


def encoded(image: Image.Image, spec: dict[str, Any]) -> bytes:
    """The picture as a file that holds its mode without loss."""
    extra: dict[str, Any] = {}
    if "exif_orientation" in spec:
        exif = Image.Exif()
        exif[0x0112] = spec["exif_orientation"]
        extra["exif"] = exif
    if "transparency_index" in spec:
        extra["transparency"] = spec["transparency_index"]
    buffer = io.BytesIO()
    image.save(buffer, spec.get("file_format", "TIFF" if spec["mode"] == "CMYK" else "PNG"), **extra)
    return buffer.getvalue()


def assert_pixels(image: Image.Image, case: dict[str, Any]) -> None:
    expected = case["expected"]
    assert image.mode == expected["mode"]
    assert list(image.size) == expected["size"]
    pixels = np.asarray(image).reshape(-1, 3).astype(int)
    wanted = np.array(expected["pixels"] if "pixels" in expected else [expected["all_pixels"]] * len(pixels))
    assert np.abs(pixels - wanted).max() <= case["tolerance"]


@of("load_image")
def test_pictures_of_any_mode_are_upright_rgb_on_white(case: dict[str, Any]) -> None:
    spec = case["input"]["image"]
    picture = Picture(encoded(build(spec), spec))
    assert list(picture.size) == case["expected"]["size"], "the size is right before anything is decoded"
    assert_pixels(picture.decode(), case)
    if "exif_orientation" not in spec:
        assert_pixels(Picture(build(spec)).decode(), case)


@of("load_image_source")
def test_pictures_come_from_any_source(case: dict[str, Any], tmp_path: Path) -> None:
    content = base64.b64decode(case["input"]["png_base64"])
    (tmp_path / "picture.png").write_bytes(content)
    text = case["input"]["png_base64"]
    source: Any = {
        "data_url": f"data:image/png;base64,{text}",
        "raw_base64": text,
        "struct_bytes": {"bytes": content, "path": None},
        "file_url": (tmp_path / "picture.png").as_uri(),
        "bytes": content,
        "text_that_is_no_image": case["input"].get("text"),
    }[case["input"]["source_kind"]]
    if case["expected"].get("behaviour"):
        with pytest.raises(DataError, match="row 3: 'The result is 4' is no picture"):
            Picture(source, origin="data.jsonl, row 3")
    else:
        assert_pixels(Picture(source).decode(), case)


def one_bit_png(side: int) -> bytes:
    """A black 1-bit PNG, written by hand since Pillow takes seconds over so many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((side // 8 + 1) * side), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@of("load_image_file")
def test_broken_and_monstrous_files_are_one_bad_record(case: dict[str, Any], tmp_path: Path) -> None:
    if "JPEG" in case["input"]["make"]:
        noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "JPEG", quality=90)
        content = buffer.getvalue()[: int(len(buffer.getvalue()) * 0.6)]
    else:
        content = one_bit_png(30000)
    before, started = psutil.Process().memory_info().rss, time.perf_counter()
    with pytest.raises(DataError):
        Picture(content, origin="row 0").decode()
    limits = case["input"].get("limits", {})
    assert time.perf_counter() - started < limits.get("max_seconds", 20)
    assert psutil.Process().memory_info().rss - before < limits.get("max_rss_mb", 2000) * 2**20


@of("qwen_target_size")
def test_target_sizes_are_whole_tokens(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = case["input"]
    qwen = family("qwen2_5_vl")
    limits = {"shortest_edge": given["min_pixels"], "longest_edge": given["max_pixels"]}
    monkeypatch.setattr(qwen.image_processor, "size", limits)
    assert qwen._patch * qwen._merge == given["factor"]
    size = tuple(given["size_wh"])
    if case["expected"].get("behaviour"):
        with pytest.raises(DataError):
            qwen.image_tokens(size)
        return
    width, height = qwen.target_size(size)
    if "size_wh" in case["expected"]:
        assert [width, height] == case["expected"]["size_wh"]
        assert qwen.image_tokens(size) == case["expected"]["image_tokens"]
    assert width % given["factor"] == 0
    assert height % given["factor"] == 0
    assert min(width, height) >= given["factor"]
    assert (height, width) == smart_resize(size[1], size[0], given["factor"], given["min_pixels"], given["max_pixels"])


@of("check_sample")
def test_marks_and_pictures_are_counted(case: dict[str, Any]) -> None:
    given = case["input"]
    pictures = picture_list(given.get("image_field", ["picture"] * given["num_images"]))
    messages = [{"role": "user", "content": given["text"]}]
    if case["expected"].get("behaviour"):
        with pytest.raises(
            DataError, match=rf"{given['text'].count('<image>')} <image> marks for {len(pictures)} pictures"
        ):
            place_pictures(messages, len(pictures))
        return
    assert len(pictures) == case["expected"]["num_images"]
    assert place_pictures(messages, len(pictures)) == messages
    assert ("<image>" not in given["text"]) == case["expected"].get("text_only", False)


@of("prompt_length_limit")
def test_a_prompt_over_the_limit_is_refused_not_cut(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = case["input"]
    kinds = {kind: sum(n for k, n in given["tokens"] if k == kind) for kind, _ in given["tokens"]}
    _, rows, columns = given["image_grid_thw"][0]
    qwen = family("qwen2_5_vl")
    monkeypatch.setattr(qwen.image_processor, "size", {"shortest_edge": 3136, "longest_edge": 12845056})
    picture = Picture(Image.new("RGB", (columns * 14, rows * 14)))
    text = "<|image_pad|>".join("x" * count for kind, count in given["tokens"] if kind == "T")
    plain = [{"role": "user", "content": text.replace("<|image_pad|>", "<image>")}]
    tokens = len(PromptEncoder(qwen)(plain, [picture])[0])
    assert tokens > kinds["T"] + kinds["I"] > given["max_prompt_length"], (
        "text, picture and the chat template's own tokens"
    )
    with pytest.raises(DataError, match=rf"{tokens} tokens \({kinds['I']} of them pictures\).* allows 300"):
        PromptEncoder(qwen, given["max_prompt_length"])(plain, [picture])


def batch_of_grids(per_sample: list[list[list[int]]], merge: int) -> tuple[Batch, list[torch.Tensor]]:
    """A batch whose pictures have these grids; their patch rows are numbered through the batch."""
    media, prompts, row = [], [], 0
    for sample, grids in enumerate(per_sample):
        spans, offset = [], 0
        for grid in grids:
            patches = int(np.prod(grid))
            pixels = torch.arange(row, row + patches)[:, None]
            spans.append(Span(len(media), offset, patches // merge**2))
            offset += spans[-1].length
            media.append(
                Media(f"{len(media)}", (1, 1), None, {"pixel_values": pixels, "image_grid_thw": torch.tensor([grid])})
            )
            row += patches
        ids = torch.zeros(offset + 1, dtype=torch.int64)
        prompts.append(Prompt(str(sample), {}, ids, ids, tuple(spans)))
    return Batch({"group_ids": torch.arange(len(prompts))}, prompts=prompts, media=media), [
        m.pixels["pixel_values"] for m in media
    ]


@of("split_pixel_values")
def test_each_sample_keeps_its_own_patch_rows(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    batch, _ = batch_of_grids(given["image_grid_thw_per_sample"], given["spatial_merge_size"])
    at_patch = at_grid = 0
    for sample, piece in enumerate(batch.split([1] * len(batch))):
        rows = [int(row) for picture in piece.media for row in picture.pixels["pixel_values"].flatten()]
        first, last = expected["patch_rows_per_sample"][sample]
        assert rows == list(range(first, last))
        at_patch += len(rows)
        assert [at_grid, at_grid + len(piece.media)] == expected["grid_rows_per_sample"][sample]
        at_grid += len(piece.media)
        assert sum(span.length for span in piece.prompts[0].spans) == expected["image_tokens_per_sample"][sample]
        features = [Qwen2_5VL.features(family("qwen2_5_vl"), picture.pixels) for picture in piece.media]
        assert features == [span.length for span in piece.prompts[0].spans]
    assert at_patch == len([row for picture in batch.media for row in picture.pixels["pixel_values"]])


@of("repeat_for_group")
def test_a_group_reads_its_sample_s_own_pixels_and_copies_none(case: dict[str, Any]) -> None:
    given = case["input"]
    batch, pixels = batch_of_grids(given["image_grid_thw_per_sample"], 2)
    group = batch.repeat(given["group_size"])
    seen = [
        int(row)
        for sample in group["group_ids"].tolist()
        for span in group.prompts[sample].spans
        for row in group.media[span.media].pixels["pixel_values"].flatten()
    ]
    assert seen == case["expected"]["pixel_row_index"]
    assert len(group.media) == len(pixels), "the table holds each picture once"
    assert all(a.pixels["pixel_values"] is b for a, b in zip(group.media, pixels, strict=True))


def test_every_case_is_tested() -> None:
    tested = {
        mark.args[1][0]["input"]["op"]
        for function in list(globals().values())
        for mark in getattr(function, "pytestmark", [])
    }
    assert {case["input"]["op"] for case in CASES} == tested
