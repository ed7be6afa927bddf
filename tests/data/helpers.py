"""Records, pictures and families that the data's tests share."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from tests import tiny


@functools.lru_cache(maxsize=4)
def family(name: str = "qwen2_5_vl") -> Any:
    """A family of a tiny model, bound to its tokenizer and image processor."""
    return tiny.policy(name).family


def png(size: tuple[int, int] = (56, 56), colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    """A one-coloured PNG."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def counting_rows(folder: Path, count: int, side: int = 56) -> list[dict[str, Any]]:
    """Flat records with a picture file each."""
    rows = []
    for number in range(count):
        (folder / f"{number}.png").write_bytes(png((side, side), (number % 256, 0, 0)))
        rows.append({"problem": f"Question {number}?", "answer": str(number), "images": [f"{number}.png"]})
    return rows
