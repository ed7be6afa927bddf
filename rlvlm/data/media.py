"""Pictures as records hold them, decoded when they are used.

A picture comes as a path, a ``file://`` or ``data:`` URL, base64 text, bytes, ``{bytes, path}`` or a PIL image. A
:class:`Picture` knows its size from the header alone; its pixels are decoded once, upright, as RGB on white.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import io
import os
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from rlvlm.data.pixels import check_format, limit_size, open_picture, to_rgb, upright, upright_size
from rlvlm.errors import DataError

_BASE64_STARTS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "Qk", "SUkq", "TU0A")  # PNG JPEG GIF WEBP BMP TIFF TIFF
_SHORTEST_BASE64 = 32  # characters; no picture file is smaller than 24 bytes


@dataclass(frozen=True)
class PictureLimits:
    """Where pictures may lie and how large they are shown.

    Attributes:
        folder: relative paths start here, and no path leads outside it unless ``allow_outside``; ``None`` is for
            pictures named by the caller, who may name any.
        min_pixels, max_pixels: bounds on width times height after scaling.
        max_decode_pixels: a header that states more pixels is refused.
    """

    folder: str | None = None
    allow_outside: bool = False
    min_pixels: int | None = None
    max_pixels: int | None = None
    max_decode_pixels: int = 89_478_485


class Picture:
    """A handle on one picture of a record.

    Args:
        source: path, URL, base64 text, bytes, ``{bytes, path}`` or PIL image.
        limits: folder and sizes.
        origin: file and row, for messages.

    Every fault raises ``DataError`` naming ``origin``: at once when the source is no picture or lies outside the folder, at
    :attr:`size` when the header is bad or states too many pixels, at :meth:`decode` when the pixels are bad.
    """

    def __init__(self, source: Any, limits: PictureLimits | None = None, origin: str = "picture") -> None:
        self.limits, self.origin = limits or PictureLimits(), origin
        self._source = resolve(source, self.limits, origin)
        self._reset()

    def _reset(self) -> None:
        self._stored_size: tuple[int, int] | None = None
        self._decoded: Image.Image | None = None
        self._key: str | None = None
        self._lock = threading.Lock()

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), upright and within the pixel limits, from the header alone."""
        return limit_size(self.stored_size, self.limits.min_pixels, self.limits.max_pixels)

    @property
    def stored_size(self) -> tuple[int, int]:
        """(width, height), upright, before the pixel limits, from the header alone."""
        if self._stored_size is None:
            with self._opened() as image:
                self._stored_size = upright_size(image)
        return self._stored_size

    @property
    def key(self) -> str:
        """Hash of the content and of the limits that decide how it is shown."""
        if self._key is None:
            digest = hashlib.blake2b(f"{self.limits.min_pixels},{self.limits.max_pixels};".encode(), digest_size=16)
            if isinstance(self._source, Image.Image):
                image = self._source
                digest.update(f"{image.mode},{image.size},{image.info.get('transparency')}".encode())
                digest.update(bytes(image.getpalette() or ()) if image.mode in ("P", "PA") else b"")
                digest.update(image.tobytes())
            else:
                digest.update(self.content())
            self._key = digest.hexdigest()
        return self._key

    def decode(self) -> Image.Image:
        """The picture as RGB of :attr:`size`; decoded at the first call and kept with the handle."""
        with self._lock:
            if self._decoded is None:
                self._decoded = self._decode()
            return self._decoded

    def content(self) -> bytes:
        """The encoded file as it is stored; a PIL image is written as PNG."""
        if isinstance(self._source, bytes):
            return self._source
        if isinstance(self._source, Image.Image):
            buffer = io.BytesIO()
            self._source.save(buffer, "PNG")
            return buffer.getvalue()
        try:
            return Path(self._source).read_bytes()
        except OSError as error:
            raise DataError(f"{self.origin}: {self._named()} can't be read ({error.strerror or error}).") from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Image.Image]:
        if isinstance(self._source, Image.Image):
            self._check_pixels(self._source.size)
            try:
                check_format(self._source)
            except DataError as error:
                raise DataError(f"{self.origin}: {self._named()} is {error}.") from error
            yield self._source
            return
        stream = io.BytesIO(self._source) if isinstance(self._source, bytes) else self._source
        try:
            image = open_picture(stream)
        except Image.DecompressionBombError as error:
            raise DataError(f"{self.origin}: {self._named()} refused before decoding ({error}).") from error
        except Exception as error:  # Pillow's plug-ins raise errors of every kind on bad files
            raise DataError(
                f"{self.origin}: {self._named()} is no picture that can be read ({_told(error)})."
            ) from error
        with image:
            self._check_pixels(image.size)
            yield image

    def _check_pixels(self, size: tuple[int, int]) -> None:
        width, height = size
        if width * height > self.limits.max_decode_pixels:
            raise DataError(
                f"{self.origin}: {self._named()} of {width}x{height} = {width * height} pixels is refused before decoding; "
                f"data.max_decode_pixels allows {self.limits.max_decode_pixels}."
            )
        if width < 1 or height < 1:
            raise DataError(f"{self.origin}: {self._named()} of {width}x{height} has no pixels.")

    def _decode(self) -> Image.Image:
        with self._opened() as image:
            try:
                image.load()
                rgb = to_rgb(upright(image))
            except Image.DecompressionBombError as error:
                raise DataError(f"{self.origin}: {self._named()} refused while decoding ({error}).") from error
            except Exception as error:  # as above
                raise DataError(f"{self.origin}: {self._named()} can't be decoded ({_told(error)}).") from error
        size = limit_size(rgb.size, self.limits.min_pixels, self.limits.max_pixels)
        return rgb if size == rgb.size else rgb.resize(size, Image.Resampling.BICUBIC)

    def _named(self) -> str:
        if isinstance(self._source, str):
            return f"picture '{self._source}'"
        return f"picture of {len(self._source)} bytes" if isinstance(self._source, bytes) else "picture"

    def __getstate__(self) -> dict[str, Any]:  # pixels are decoded again where they are used; a lock does not pickle
        return {"limits": self.limits, "origin": self.origin, "_source": self._source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __repr__(self) -> str:
        return f"Picture({self._named()}, {self.origin})"


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


def resolve(source: Any, limits: PictureLimits, origin: str) -> str | bytes | Image.Image:
    """What a record's picture entry stands for: an absolute path inside the folder, encoded bytes, or a PIL image.

    Raises ``DataError`` for anything else, a missing file, and a path that leads outside the folder.
    """
    if isinstance(source, Mapping):
        content, path = source.get("bytes"), source.get("path")
        if content is None and path is None:
            raise DataError(
                f"{origin}: a picture mapping holds 'bytes' or 'path', got the keys {sorted(map(str, source))}."
            )
        return resolve(path if content is None else content, limits, origin)
    if isinstance(source, (bytes, bytearray, memoryview)):
        if not len(source):
            raise DataError(f"{origin}: the picture holds no bytes.")
        return bytes(source)
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, os.PathLike):
        return _inside(os.fspath(source), limits, origin)
    if isinstance(source, str):
        return _resolve_text(source.strip(), limits, origin)
    raise DataError(
        f"{origin}: a picture is a path, URL, base64 text, bytes, {{bytes, path}} or PIL image, got {type(source).__name__}."
    )


def _resolve_text(text: str, limits: PictureLimits, origin: str) -> str | bytes:
    scheme = text[:8].lower()
    if scheme.startswith("data:"):
        head, comma, body = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise DataError(f"{origin}: a data URL reads 'data:image/…;base64,…', got '{text[:40]}'.")
        return _from_base64(body, origin)
    if scheme.startswith(("http:/", "https:/")):
        raise DataError(
            f"{origin}: pictures are not fetched from the network, got '{text[:80]}'; download it and give its path."
        )
    if scheme.startswith("file:"):
        return _inside(urllib.request.url2pathname(urllib.parse.urlparse(text).path), limits, origin)
    if len(text) >= _SHORTEST_BASE64 and text.startswith(_BASE64_STARTS) and "." not in text:
        return _from_base64(text, origin)
    return _inside(text, limits, origin)


def _from_base64(text: str, origin: str) -> bytes:
    compact = "".join(text.split()).replace("-", "+").replace("_", "/")
    try:
        content = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{origin}: the picture's base64 text is broken ({error}).") from error
    if not content:
        raise DataError(f"{origin}: the picture holds no bytes.")
    return content


def _inside(path: str, limits: PictureLimits, origin: str) -> str:
    shown = path if len(path) <= 120 else path[:117] + "…"
    try:
        real = os.path.realpath(os.path.join(limits.folder or "", path))
        found = os.path.isfile(real)
    except (OSError, ValueError):  # a name too long, or one with a zero byte
        real, found = "", False
    if limits.folder is not None and not limits.allow_outside and real:
        folder = os.path.realpath(limits.folder)
        if os.path.commonpath([folder, real]) != folder:
            raise DataError(
                f"{origin}: picture path '{shown}' leads outside the folder '{limits.folder}'; "
                "move the picture in, set data.image_folder, or set data.allow_outside=true."
            )
    if not found:
        raise DataError(
            f"{origin}: '{shown}' is no picture: neither a file in '{limits.folder or os.getcwd()}' nor base64 nor a data URL."
        )
    return real
