"""Captions of the drawn shapes: what a connector is trained on before questions are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvlm.data.sources import register_source
from rlvlm.data.toys.answers import stream
from rlvlm.data.toys.shapes import COLOURS, draw_shapes
from rlvlm.ranges import at_least, check_ranges


class CaptionRecords(Sequence[Mapping[str, Any]]):
    """Records ``{caption, images}``: "2 red, 0 green, 1 blue." under a picture.

    Args:
        size: number of records.
        seed: of the drawings.
        split: drawings of different splits differ.
    """

    def __init__(self, size: int, seed: int, split: str) -> None:
        self.size, self.seed, self.split = size, seed, split
        check_ranges("shape_captions", self, at_least(0, "size"))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(index)
        picture, colours = draw_shapes(stream(self.seed, f"{self.split} captions", index))
        said = ", ".join(f"{colours.count(colour)} {colour}" for colour in COLOURS)
        return {"caption": f"{said}.", "images": [picture]}


@register_source("shape_captions")
def shape_captions(seed: int, split: str, *, size: int = 65536) -> CaptionRecords:
    """Drawn 42×42 pictures of shapes with captions: "2 red, 0 green, 1 blue."."""
    return CaptionRecords(size, seed, split)
