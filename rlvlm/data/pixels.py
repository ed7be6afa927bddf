"""Pixels as models take them: upright, 8-bit RGB on white, within the limits."""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from rlvlm.errors import DataError

_FORMATS = ("PNG", "JPEG", "MPO", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "TGA")
"""Pillow's names of the formats that are read. Others are not even tried: EPS would run Ghostscript, and few of the rest are pictures."""
PICTURE_FORMATS = ("PNG", "JPEG", "GIF", "WebP", "BMP", "TIFF", "PPM", "JPEG 2000", "AVIF", "ICO", "TGA")
"""The same as people call them."""
Image.init()  # once, at import: the first picture would wait for it
_KNOWN_FORMATS = tuple(name for name in _FORMATS if name in Image.OPEN)  # that this build of Pillow has
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_VIDEO_SUFFIXES = {".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".flv", ".wmv", ".mpg", ".mpeg", ".ogv", ".3gp"}
_VIDEO_SUFFIXES |= {".mp3", ".wav", ".flac", ".ogg", ".m4a", ".aac"}  # and sound
_BAND = 1 << 20  # pixels converted at once
_LONGEST_NAME = 4096  # characters
_ALPHA_MODES = {"RGBA", "LA", "PA", "RGBa", "La"}


def is_video_name(name: str) -> bool:
    """Whether a path (or a bare ``.suffix``) ends as files of video or sound do."""
    return len(name) <= _LONGEST_NAME and os.path.splitext(f"x{name}")[1].lower() in _VIDEO_SUFFIXES


def is_picture_name(name: str) -> bool:
    """Whether a path (or a bare ``.suffix``) ends as files of a picture format that is read."""
    if len(name) > _LONGEST_NAME:
        return False
    suffix = os.path.splitext(f"x{name}")[1].lower()
    return Image.registered_extensions().get(suffix) in _FORMATS


def open_picture(stream: str | BinaryIO) -> Image.Image:
    """``Image.open`` of the formats that are read and of no others; the pixels are not decoded yet.

    Raises ``DataError`` for another format, and what Pillow raises for a file that can't be read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own warning of large pictures: callers check the size themselves
        try:
            return Image.open(stream, formats=_KNOWN_FORMATS)
        except Image.UnidentifiedImageError as error:
            raise DataError(f"no {', '.join(PICTURE_FORMATS)} file") from error


def check_format(image: Image.Image) -> None:
    """Raises ``DataError`` for an opened file of a format that is not read, whose pixels may take another program to decode."""
    if isinstance(image, ImageFile.ImageFile) and image.format not in _FORMATS:
        raise DataError(f"of format {image.format}; {', '.join(PICTURE_FORMATS)} are read")


def is_picture(content: bytes) -> bool:
    """Whether bytes begin as a picture file of a format that is read, whatever it is called."""
    try:
        open_picture(io.BytesIO(content)).close()
    except Exception:  # Pillow's plug-ins raise of every kind on bytes that are no picture of theirs
        return False
    return True


def to_rgb(image: Image.Image) -> Image.Image:
    """Any PIL mode as RGB: transparency lies on white, 16-bit grey is scaled (not clipped), palettes give colours.

    Float pixels are read as 0..1 when none is larger, else as 0..255.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode.startswith(("I", "F")):
        return _deep_grey(image).convert("RGB")
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, rgba).convert("RGB")
    return image.convert("RGB")


def _deep_grey(image: Image.Image) -> Image.Image:
    """Grey of 16 bits, 32 bits or floats in 8 bits, a band of rows at a time: a large picture in float64 takes gigabytes."""
    width, height = image.size
    rows = max(1, _BAND // max(1, width))
    tops = [_top(np.asarray(image.crop((0, row, width, min(row + rows, height))))) for row in range(0, height, rows)]
    top, grey = max(tops, default=1.0), np.empty((height, width), np.uint8)
    for row in range(0, height, rows):
        values = np.asarray(image.crop((0, row, width, min(row + rows, height))), dtype=np.float64)
        scaled = np.nan_to_num(values / top, nan=0.0, posinf=1.0, neginf=0.0)
        grey[row : row + rows] = np.clip(scaled, 0.0, 1.0) * 255.0 + 0.5
    return Image.fromarray(grey)


def _top(values: NDArray[Any]) -> float:
    """What is white: 65535 of whole numbers; of floats 1 where none is larger, else 255."""
    if not np.issubdtype(values.dtype, np.floating):
        return 65535.0
    return 255.0 if bool((values > 1.0).any()) else 1.0


def limit_size(size: tuple[int, int], min_pixels: int | None, max_pixels: int | None) -> tuple[int, int]:
    """(width, height) scaled to hold ``min_pixels <= width * height <= max_pixels``; sides keep their ratio and are at least 1."""
    width, height = size
    if min_pixels and width * height < min_pixels:
        scale = math.sqrt(min_pixels / (width * height))
        width, height = math.ceil(width * scale), math.ceil(height * scale)
    if max_pixels and width * height > max_pixels:
        scale = math.sqrt(max_pixels / (width * height))
        width, height = max(1, int(width * scale)), max(1, int(height * scale))
        if width * height > max_pixels:  # one side was floored to 1
            width, height = min(width, max_pixels), min(height, max_pixels)
    return width, height


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) after the turn that the picture's EXIF asks for; reads no pixels."""
    width, height = image.size
    return (height, width) if orientation(image) in (5, 6, 7, 8) else (width, height)


def upright(image: Image.Image) -> Image.Image:
    """The picture turned as its EXIF asks; the same object when it asks for nothing."""
    turn = _TURNS.get(orientation(image))
    return image if turn is None else image.transpose(turn)


def orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8 (1 where none or nonsense is stated), without decoding pixels."""
    try:
        stated = _exif(image).get(_ORIENTATION, 1)
    except Exception:  # a broken EXIF block, which Pillow answers with errors of every kind, turns nothing
        return 1
    return stated if isinstance(stated, int) and 1 <= stated <= 8 else 1


def _exif(image: Image.Image) -> Image.Exif:
    if image.format != "PNG" or "exif" in image.info:
        return image.getexif()
    exif = Image.Exif()  # Pillow would decode the pixels to look for a chunk behind them
    stream = getattr(image, "fp", None)
    raw = None if stream is None else _late_png_exif(stream)
    if raw is not None:
        exif.load(raw)
    return exif


def _late_png_exif(stream: BinaryIO) -> bytes | None:
    """The eXIf chunk of a PNG, which may stand after the pixels; skips from chunk to chunk and restores the position."""
    place = stream.tell()
    try:
        stream.seek(8)
        while len(head := stream.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            if kind == b"eXIf":
                return b"Exif\0\0" + stream.read(length)
            if kind == b"IEND":
                return None
            stream.seek(length + 4, 1)
        return None
    finally:
        stream.seek(place)
