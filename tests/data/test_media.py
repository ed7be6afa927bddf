"""Pictures: where they may lie, how large they are shown, what their handle costs."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image

from rlvlm.data import pixels
from rlvlm.data.config import DataConfig
from rlvlm.data.media import Picture, PictureLimits
from rlvlm.data.pixels import is_picture, is_picture_name, limit_size, to_rgb
from rlvlm.errors import ConfigError, DataError
from tests.data.helpers import png


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "pictures"
    inner.mkdir()
    (inner / "in.png").write_bytes(png())
    (tmp_path / "out.png").write_bytes(png())
    return inner


@pytest.mark.parametrize("make", [
    lambda inner: "../out.png",
    lambda inner: "./deep/../../out.png",
    lambda inner: str(inner.parent / "out.png"),
    lambda inner: (inner.parent / "out.png").as_uri(),
    lambda inner: {"path": "../out.png", "bytes": None},
    lambda inner: Path("../out.png"),
    lambda inner: "link.png",
    lambda inner: "linked_folder/out.png",
    lambda inner: "/etc/passwd",
])  # fmt: skip
def test_no_path_leads_outside_the_folder(folder: Path, make: Any) -> None:
    os.symlink(folder.parent / "out.png", folder / "link.png")
    os.symlink(folder.parent, folder / "linked_folder")
    with pytest.raises(DataError, match=r"row 7: picture path .* leads outside the folder .*data.allow_outside"):
        Picture(make(folder), PictureLimits(str(folder)), "a.jsonl, row 7")


def test_a_folder_whose_name_begins_alike_is_outside(folder: Path) -> None:
    twin = folder.parent / "pictures2"
    twin.mkdir()
    (twin / "x.png").write_bytes(png())
    with pytest.raises(DataError, match="outside"):
        Picture("../pictures2/x.png", PictureLimits(str(folder)))


def test_paths_inside_are_read_and_outside_ones_when_allowed(folder: Path) -> None:
    os.symlink(folder / "in.png", folder / "inner_link.png")
    for path in ("in.png", str(folder / "in.png"), "./in.png", "inner_link.png"):
        assert Picture(path, PictureLimits(str(folder))).size == (56, 56)
    assert Picture("../out.png", PictureLimits(str(folder), allow_outside=True)).size == (56, 56)


@pytest.mark.parametrize(("source", "message"), [
    ("missing.png", "is no picture: neither a file"),
    ("", "is no picture"),
    ("a\0b.png", "is no picture"),
    ("x" * 5000, "is no picture"),
    (b"", "no bytes"),
    ({}, "'bytes' or 'path'"),
    ({"bytes": None, "path": None}, "'bytes' or 'path'"),
    (17, "got int"),
    (["in.png"], "got list"),
    ("https://example.com/cat.png", "not fetched from the network"),
    ("data:image/png;base64", "data URL reads"),
    ("data:image/png,rawtext", "data URL reads"),
    ("data:image/png;base64,@@@@", "base64 text is broken"),
    ("iVBORw0KGgo" + "!" * 40, "base64 text is broken"),
])  # fmt: skip
def test_what_is_no_picture_says_so(folder: Path, source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Picture(source, PictureLimits(str(folder)), "row 1")


@pytest.mark.parametrize(
    "content", [b"not a picture", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", png()[:40], b"GIF89a", b"<svg/>"]
)
def test_bytes_that_are_no_picture_are_a_data_error(content: bytes) -> None:
    with pytest.raises(DataError, match="row 9"):
        Picture(content, origin="row 9").decode()


def test_a_device_or_folder_is_no_picture(folder: Path) -> None:
    for path in (".", "/dev/zero"):
        with pytest.raises(DataError):
            Picture(path, PictureLimits(str(folder), allow_outside=True))


def test_a_header_over_the_limit_is_refused_before_decoding() -> None:
    picture = Picture(png((100, 100)), PictureLimits(max_decode_pixels=9999), "row 2")
    with pytest.raises(
        DataError, match=r"row 2: .*100x100 = 10000 pixels is refused.*data.max_decode_pixels allows 9999"
    ):
        _ = picture.size


@given(st.tuples(st.integers(1, 4000), st.integers(1, 4000)), st.integers(1, 10**6), st.integers(1, 10**6))
def test_limited_sizes_stay_within_bounds(size: tuple[int, int], one: int, two: int) -> None:
    low, high = sorted((one, two))
    width, height = limit_size(size, None, high)
    assert 1 <= width * height <= high or size[0] * size[1] <= high
    width, height = limit_size(size, low, None)
    assert width * height >= low
    assert limit_size(size, None, None) == size
    assert limit_size(size, low, high)[0] * limit_size(size, low, high)[1] <= max(high, size[0] * size[1])


def test_decoded_pictures_have_the_size_that_was_told_before() -> None:
    for size, limits in (
        ((100, 50), PictureLimits(max_pixels=800)),
        ((10, 5), PictureLimits(min_pixels=800)),
        ((10, 5), None),
    ):
        picture = Picture(png(size), limits)
        assert picture.size == picture.decode().size
    assert Picture(png((100, 50)), PictureLimits(max_pixels=800)).size == (40, 20)


def test_sizes_come_from_the_header_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(png((30, 20)))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("pixels were decoded"))
    assert Picture(str(tmp_path / "a.png")).size == (30, 20)


def test_an_orientation_behind_the_pixels_is_seen_in_the_header_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    plain = png((30, 20))
    raw = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(raw)) + b"eXIf" + raw + struct.pack(">I", zlib.crc32(b"eXIf" + raw))
    end = plain.index(b"IEND") - 4
    picture = Picture(plain[:end] + chunk + plain[end:])
    assert picture.size == (20, 30)
    assert picture.decode().size == (20, 30)


def stated(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


@pytest.mark.parametrize(
    "exif", [stated(0), stated(9), b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0garbage"]
)
def test_a_nonsense_orientation_turns_nothing(exif: bytes) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (30, 20)).save(buffer, "JPEG", exif=exif)
    assert Picture(buffer.getvalue()).decode().size == (30, 20)


def test_decoding_happens_once_and_is_not_pickled() -> None:
    picture = Picture(png())
    assert picture.decode() is picture.decode()
    assert len(pickle.dumps(picture)) < len(png()) + 600
    assert pickle.loads(pickle.dumps(picture)).decode().tobytes() == picture.decode().tobytes()


def test_the_key_tells_content_and_limits_apart_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    by_path, by_bytes = Picture(str(tmp_path / "a.png")), Picture(png(), origin="elsewhere")
    assert by_path.key == by_bytes.key
    assert by_path.key != Picture(png(colour=(1, 2, 3))).key
    assert by_path.key != Picture(png(), PictureLimits(max_pixels=100)).key
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    assert Picture(red).key == Picture(red.copy()).key != Picture(blue).key


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) print\nshowpage\n%%EOF\n"


def test_eps_never_starts_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *of, **also: pytest.fail("Ghostscript was started"))
    (tmp_path / "a.png").write_bytes(EPS)
    assert not is_picture(EPS)
    assert not is_picture_name("a.eps")
    for source in (EPS, str(tmp_path / "a.png"), Image.open(io.BytesIO(EPS))):
        picture = Picture(source)
        for read in (picture.decode, lambda picture=picture: picture.size):
            with pytest.raises(DataError, match=r"PNG, JPEG, .* (file|are read)"):
                read()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO"])
def test_formats_that_are_read(kind: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), (200, 30, 30)).save(buffer, kind)
    assert is_picture(buffer.getvalue())
    assert Picture(buffer.getvalue()).decode().size == (32, 32)


@pytest.mark.parametrize("kind", ["PSD", "FITS", "PCX", "SGI", "MSP", "XBM", "DDS", "IM", "SPIDER"])
def test_formats_that_are_not_meant_are_never_opened(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    Image.init()
    factory, _ = Image.OPEN[kind]
    monkeypatch.setitem(Image.OPEN, kind, (lambda *of: tried.append(kind) or factory(*of), None))
    with pytest.raises(DataError):
        _ = Picture(b"no such picture, whatever it is called").size
    assert not tried


def test_the_default_bound_refuses_a_hundred_megapixels_before_decoding_and_none_above_pillows_own_can_be_set() -> None:
    buffer = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(buffer, "PNG")
    with pytest.raises(DataError, match=r"data.max_decode_pixels allows 89478485"):
        _ = Picture(buffer.getvalue()).size
    assert Picture(buffer.getvalue(), PictureLimits(max_decode_pixels=100_000_000)).size == (10_000, 10_000)
    with pytest.raises(ConfigError, match=r"max_decode_pixels.*between 1 and 178956970"):
        DataConfig(max_decode_pixels=178_956_971)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_deep_grey_by_bands_is_what_it_is_at_once(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (37, 11)).astype(dtype)
    if dtype is np.float32:
        values = values / 256
        values[3, 3] = np.nan
    image = Image.fromarray(values)
    whole = np.asarray(to_rgb(image))
    monkeypatch.setattr(pixels, "_BAND", 20)
    assert (np.asarray(to_rgb(image)) == whole).all()
    top = 255 if dtype is np.float32 else 65535
    expected = np.floor(np.clip(np.nan_to_num(values.astype(np.float64)) / top, 0, 1) * 255 + 0.5)
    assert (whole[..., 0] == expected).all()
