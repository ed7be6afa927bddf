"""Pictures of a record as rewards get them: handles, PIL images, bytes or paths."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvlm.errors import DataError, RewardError


def first_handle(images: Any, rule: str) -> Any:
    """The handle of a row's first picture; none raises ``RewardError``."""
    handles = [images] if images is not None and not isinstance(images, (list, tuple)) else images
    if not handles:
        raise RewardError(f"reward '{rule}' reads a picture, and the record has none.")
    return handles[0]


def decode(handle: Any) -> Any:
    """A picture as an RGB PIL image; what is no picture raises ``RewardError``."""
    from rlvlm.data.pixels import open_picture

    try:
        if hasattr(handle, "decode") and not isinstance(handle, (bytes, bytearray)):
            return handle.decode()
        if isinstance(handle, (bytes, bytearray)):
            return open_picture(io.BytesIO(handle)).convert("RGB")
        if isinstance(handle, (str, Path)):
            return open_picture(str(handle)).convert("RGB")
        return handle.convert("RGB")
    except (DataError, OSError, ValueError, AttributeError, SyntaxError) as error:
        raise RewardError(f"a picture can't be read ({type(error).__name__}: {error}).") from error


def data_url(handle: Any) -> str:
    """A picture as a ``data:`` URL of a PNG file."""
    buffer = io.BytesIO()
    decode(handle).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def distinct(handles: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Each picture once, and for every handle its place among them: the samples of a group share one handle."""
    places: dict[Any, int] = {}
    kept: list[Any] = []
    for handle in handles:
        key = handle if isinstance(handle, (str, bytes)) else id(handle)
        if key not in places:
            places[key] = len(kept)
            kept.append(handle)
    return kept, [places[handle if isinstance(handle, (str, bytes)) else id(handle)] for handle in handles]
