"""Every multimodal case of the shared collection: what other projects got wrong with pictures.

A case about data is written into every kind of file that holds it, between two rows without fault, and read as a run reads
it: by the loader, whose batch is looked at. ``rlvlm data check`` must find what the loader finds.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import re
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from rlvlm.batch import Batch
from rlvlm.cli.main import main
from rlvlm.data.check import CheckReport, check_source
from rlvlm.data.config import DataConfig
from rlvlm.data.loader import Loader
from rlvlm.data.media import Picture
from rlvlm.data.sources import open_sources
from rlvlm.errors import DataError
from tests.data import every_file
from tests.data.helpers import family, png

Case = dict[str, Any]
Kind = tuple[str, str]
CASES = [json.loads(line) for line in (Path(__file__).parent.parent / "cases" / "multimodal.jsonl").open()]
GRID = "image_grid_thw"
BEFORE, AFTER = ({"problem": f"{when}?", "answer": when} for when in ("before", "after"))


# ---------------------------------------------------------------------- reading


class Read:
    """What the loader and the check make of a file with one row in question between two good ones.

    Attributes:
        batch: the held-out records as one batch.
        prompt: of the row in question; ``None`` where it was left out.
    """

    def __init__(self, kind: Kind, folder: Path, row: Mapping[str, Any], **settings: Any) -> None:
        self.config, self.family = config_of(kind, folder, [BEFORE, row, AFTER], **settings), family("qwen2_5_vl")
        loader = Loader(self.config, self.family, split="eval")
        (self.batch,) = loader
        loader.close()
        self.counts = dict(loader.counts)
        self.report = check(self.config)
        by_answer = {prompt.record["answer"]: prompt for prompt in self.batch.prompts}
        assert by_answer.keys() >= {"before", "after"}, "the rows beside it are read whatever it is"
        self.prompt = by_answer.get("x")

    def assert_refused(self, message: str, count: str = "bad_rows") -> None:
        """The row is left out, counted, and named by its number; with ``stop`` it ends the run in the same words."""
        assert (self.prompt, self.counts) == (None, {count: 1})
        assert (self.report.rows, self.report.usable, self.report.fault_count) == (3, 2, 1)
        assert re.search(rf"row 1: .*{message}", self.report.faults[0])
        if count == "bad_rows":  # a limit in tokens takes a model's folder
            assert told(self.config.eval) == (1, {"usable": 2, "faults": 1, "first_faults": self.report.faults})
        stopping = DataConfig(**{**vars(self.config), "on_bad_row": "stop", "over_long": "raise"})
        loader = Loader(stopping, self.family, split="eval")
        with pytest.raises(DataError, match=rf"row 1: .*{message}"):
            next(iter(loader))
        loader.close()

    def assert_read(self, pictures: int) -> None:
        """The row is a prompt with so many pictures, each with its span, its placeholders and its pixels."""
        assert self.prompt is not None
        assert self.counts == {}
        assert (self.report.usable, self.report.fault_count, self.report.picture_count) == (3, 0, pictures)
        assert len(self.prompt.spans) == pictures
        placeholders = self.prompt.ids == self.family.placeholder_id
        for span in self.prompt.spans:
            media = self.batch.media[span.media]
            assert placeholders[span.offset : span.offset + span.length].all()
            assert span.length == self.family.features(media.pixels)
        assert int(placeholders.sum()) == sum(span.length for span in self.prompt.spans)


def config_of(kind: Kind, folder: Path, rows: Sequence[Mapping[str, Any]], **settings: Any) -> DataConfig:
    settings = {"template": None, "on_bad_row": "skip", "prompts_per_step": len(rows), "prefetch": 0, **settings}
    return DataConfig(eval=every_file.write(kind, folder, rows), **settings)


def check(config: DataConfig) -> CheckReport:
    (source,) = open_sources(config, "eval")
    return check_source(source, config, family("qwen2_5_vl"), decode=True, progress=False)


def told(path: str) -> tuple[int, dict[str, Any]]:
    """Exit code of the command, and what it says of faults."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = main(["data", "check", path, "--decode", "--json", "--template", "as_is"])
    found = json.loads(shown.getvalue())
    return code, {name: found[name] for name in ("usable", "faults", "first_faults")}


def batch_of(kind: Kind, folder: Path, rows: Sequence[Mapping[str, Any]]) -> Batch:
    config = config_of(kind, folder, rows)
    loader = Loader(config, family("qwen2_5_vl"), split="eval")
    (batch,) = loader
    loader.close()
    assert len(batch) == len(rows) == check(config).usable
    return batch


def assert_pictured(read: Read, case: Case) -> None:
    """The batch's picture has the case's size and colours, and its pixel rows are those of such a picture."""
    read.assert_read(1)
    assert read.prompt is not None
    media, expected = read.batch.media[read.prompt.spans[0].media], case["expected"]
    image = media.image.decode()
    assert (image.mode, list(image.size)) == (expected["mode"], expected["size"])
    assert read.report.sizes == {tuple(expected["size"]): 1}
    wanted = np.array(
        expected["pixels"] if "pixels" in expected else [expected["all_pixels"]] * image.width * image.height
    ).reshape(image.height, image.width, 3)
    assert np.abs(np.asarray(image).astype(int) - wanted).max() <= case["tolerance"]
    rows = read.family.process(Image.fromarray(wanted.astype(np.uint8)))["pixel_values"]
    scale = 2 / 255 / min(read.family.image_processor.image_std)  # resizing overshoots a little
    torch.testing.assert_close(media.pixels["pixel_values"], rows, rtol=0, atol=scale * case["tolerance"] + 1e-6)


# ---------------------------------------------------------------------- pictures


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


@functools.cache
def one_bit_png(side: int) -> bytes:
    """A black 1-bit PNG, written by hand since Pillow takes seconds over so many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((side // 8 + 1) * side), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def cut_jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(
        buffer, "JPEG", quality=90
    )
    return buffer.getvalue()[: int(len(buffer.getvalue()) * 0.6)]


@functools.cache
def of_grid(columns: int, rows: int, seed: int) -> bytes:
    """A picture of random pixels, of so many patches."""
    noise = np.random.default_rng(seed).integers(0, 256, (rows * 14, columns * 14, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def of_grids(per_sample: list[list[list[int]]]) -> list[dict[str, Any]]:
    """Rows whose pictures have these grids, no two of them alike."""
    seeds = iter(range(100))
    return [
        {"problem": f"Number {n}?", "answer": str(n), "images": [of_grid(w, h, next(seeds)) for _, h, w in grids]}
        for n, grids in enumerate(per_sample)
    ]


# ---------------------------------------------------------------------- operations


def load_image(case: Case, kind: Kind, folder: Path) -> None:
    """Pictures of any mode are upright, RGB, on white; their size is right before anything is decoded."""
    spec = case["input"]["image"]
    content = encoded(build(spec), spec)
    assert list(Picture(content).size) == case["expected"]["size"]
    assert_pictured(Read(kind, folder, {"problem": "What?", "answer": "x", "images": [content]}), case)


def load_image_source(case: Case, kind: Kind, folder: Path) -> None:
    """The case's source, in every file that holds such a one; ``kinds_of`` picks them."""
    if case["expected"].get("behaviour"):
        text = case["input"]["text"]
        for row in ({"images": [text]}, {"image": text}):
            read = Read(kind, folder, {"problem": "What?", "answer": "x", **row})
            read.assert_refused(f"'{text}' is no picture")
        return
    content = base64.b64decode(case["input"]["png_base64"])
    assert_pictured(Read(kind, folder, {"problem": "What?", "answer": "x", "images": [content]}), case)


def load_image_file(case: Case, kind: Kind, folder: Path) -> None:
    """Broken and monstrous files are one bad record, within the case's time and memory."""
    cut = "JPEG" in case["input"]["make"]
    content = cut_jpeg() if cut else one_bit_png(30000)
    before, started = psutil.Process().memory_info().rss, time.perf_counter()
    read = Read(kind, folder, {"problem": "What?", "answer": "x", "images": [content]})
    read.assert_refused("can't be decoded" if cut else "refused before decoding")
    limits = case["input"].get("limits", {})
    assert time.perf_counter() - started < limits.get("max_seconds", 20)
    assert psutil.Process().memory_info().rss - before < limits.get("max_rss_mb", 2000) * 2**20


def check_sample(case: Case, kind: Kind, folder: Path) -> None:
    """Marks and pictures are counted; one picture that stands alone in its column is one."""
    given, expected = case["input"], case["expected"]
    pictures = [png((56, 56), (n, 0, 0)) for n in range(given["num_images"])]
    alone = {"image": pictures[0] if pictures else None} if "image_field" in given else {"images": pictures}
    read = Read(kind, folder, {"problem": given["text"], "answer": "x", **alone})
    if expected.get("behaviour"):
        read.assert_refused(f"{given['text'].count('<image>')} <image> marks for {len(pictures)} pictures")
        return
    read.assert_read(expected["num_images"])
    assert (not read.batch.media) == expected.get("text_only", False)


def prompt_length_limit(case: Case, kind: Kind, folder: Path) -> None:
    """A prompt over the limit is left out or refused, never cut."""
    given = case["input"]
    kinds = {kind: sum(n for k, n in given["tokens"] if k == kind) for kind, _ in given["tokens"]}
    _, rows, columns = given["image_grid_thw"][0]
    text = "<image>".join("x" * count for mark, count in given["tokens"] if mark == "T")
    row = {"problem": text, "answer": "x", "images": [png((columns * 14, rows * 14))]}
    (folder / "whole").mkdir()
    whole = Read(kind, folder / "whole", row)
    whole.assert_read(1)
    assert whole.prompt is not None
    assert [span.length for span in whole.prompt.spans] == [kinds["I"]]
    tokens = len(whole.prompt.ids)
    assert tokens > kinds["T"] + kinds["I"] > given["max_prompt_length"], "the chat template has tokens of its own"
    limited = Read(kind, folder, row, max_prompt_tokens=given["max_prompt_length"])
    limited.assert_refused(rf"{tokens} tokens \({kinds['I']} of them pictures\).* allows 300", "over_long")


def split_pixel_values(case: Case, kind: Kind, folder: Path) -> None:
    """Each piece of a batch holds its own samples' patch rows, grids and spans."""
    given, expected = case["input"], case["expected"]
    batch = batch_of(kind, folder, of_grids(given["image_grid_thw_per_sample"]))
    rows, grids = (torch.cat([media.pixels[name] for media in batch.media]) for name in ("pixel_values", GRID))
    for sample, piece in enumerate(batch.split([1] * len(batch))):
        (prompt,) = piece.prompts
        assert prompt.record["answer"] == str(sample)
        for name, whole, ranges in (("pixel_values", rows, "patch_rows"), (GRID, grids, "grid_rows")):
            first, last = expected[f"{ranges}_per_sample"][sample]
            own = [media.pixels[name] for media in piece.media]
            assert torch.equal(torch.cat([*own, whole[:0]]), whole[first:last])
        assert [piece.media[span.media].pixels[GRID].tolist() for span in prompt.spans] == [
            [grid] for grid in given["image_grid_thw_per_sample"][sample]
        ]
        tokens = int((prompt.ids == family("qwen2_5_vl").placeholder_id).sum())
        assert tokens == sum(span.length for span in prompt.spans) == expected["image_tokens_per_sample"][sample]
    assert len(rows) == expected["patch_rows_per_sample"][-1][1]


def repeat_for_group(case: Case, kind: Kind, folder: Path) -> None:
    """A group reads its sample's own pixels, and copies none."""
    given = case["input"]
    batch = batch_of(kind, folder, of_grids(given["image_grid_thw_per_sample"]))
    group = batch.repeat(given["group_size"])
    rows = torch.cat([media.pixels["pixel_values"] for media in batch.media])
    seen = [
        group.media[span.media].pixels["pixel_values"]
        for number in group["group_ids"].tolist()
        for span in group.prompts[number].spans
    ]
    assert torch.equal(torch.cat(seen), rows[case["expected"]["pixel_row_index"]])
    assert len(torch.unique(rows, dim=0)) == len(rows), "rows can be told apart"
    assert all(a is b for a, b in zip(group.media, batch.media, strict=True)), "the table holds each picture once"


def qwen_target_size(case: Case, limits: dict[str, int]) -> None:
    """Target sizes are whole tokens, as the image processor's own."""
    given, qwen = case["input"], family("qwen2_5_vl")
    limits.update(shortest_edge=given["min_pixels"], longest_edge=given["max_pixels"])
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


# ---------------------------------------------------------------------- the table

OPERATIONS: dict[str, Callable[[Case, Kind, Path], None]] = {
    operation.__name__: operation
    for operation in (
        load_image,
        load_image_source,
        load_image_file,
        check_sample,
        prompt_length_limit,
        split_pixel_values,
        repeat_for_group,
    )
}
SIZES = {qwen_target_size.__name__: qwen_target_size}
"""Operations that read no file."""


def kinds_of(case: Case) -> list[Kind]:
    """The kinds of file that a case can be written into."""
    given = case["input"]
    if given["op"] in SIZES:
        return [("none", "none")]
    form = given.get("source_kind")
    if form == "text_that_is_no_image":
        return [(container, "path") for container in every_file.CONTAINERS]
    forms = ("bytes", "member") if form == "bytes" else (form,)
    return [kind for kind in every_file.KINDS if form is None or kind[1] in forms]


TABLE = [
    pytest.param(case, kind, id=f"{case['id']}-{'-'.join(dict.fromkeys(kind))}")
    for case in CASES
    for kind in kinds_of(case)
]


@pytest.mark.parametrize(("case", "kind"), TABLE)
def test_what_was_reported_of_another_library(
    case: Case, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"shortest_edge": 28 * 28, "longest_edge": 12845056}
    monkeypatch.setattr(family("qwen2_5_vl").image_processor, "size", limits)
    monkeypatch.setenv("RLVLM_CACHE", str(tmp_path / "cache"))
    operation = case["input"]["op"]
    if operation in SIZES:
        SIZES[operation](case, limits)
    else:
        OPERATIONS[operation](case, kind, tmp_path)


def test_every_case_is_tested_in_every_kind_of_file() -> None:
    assert {case["input"]["op"] for case in CASES} == OPERATIONS.keys() | SIZES.keys()
    assert all(kinds_of(case) for case in CASES)
    assert {kind for case in CASES for kind in kinds_of(case)} >= set(every_file.KINDS)
