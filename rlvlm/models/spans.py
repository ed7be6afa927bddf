"""Where pictures stand in the sequences of a forward, as index tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlvlm.batch import Batch, Span
from rlvlm.errors import DataError
from rlvlm.models.families.base import Family, Pixels, SpanTable, segment_offsets
from rlvlm.models.rows import Pictures


def span_table(spans: Sequence[Sequence[Span]], batch: Batch, family: Family) -> SpanTable:
    """The pictures of some sequences, one list of spans for each, in the order of their offsets."""
    rows = [
        (segment, span.offset, span.length, span.media)
        for segment, own in enumerate(spans)
        for span in sorted(own, key=lambda span: span.offset)
    ]
    table = torch.tensor(rows, dtype=torch.int64, device=batch.device).reshape(-1, 4)
    segment, offset, length, media = table.unbind(1)
    grids = [family.grid(family.pixels(batch.media[number])) for number in media.tolist()]
    known = [grid for grid in grids if grid is not None]
    grid = torch.tensor(known, dtype=torch.int64, device=batch.device).reshape(-1, 3) if known or not grids else None
    return SpanTable(segment, offset, length, media, grid)


def pick_segments(table: SpanTable, segments: Tensor, count: int) -> SpanTable:
    """The pictures of the sequences ``segments`` [S] (repeats allowed) out of ``count``, renumbered 0 to S - 1."""
    sizes = torch.zeros(count, dtype=torch.int64, device=segments.device)
    sizes.index_add_(0, table.segment, torch.ones_like(table.segment))
    starts = sizes.cumsum(0) - sizes
    picked = sizes[segments]
    index = starts[segments].repeat_interleave(picked) + segment_offsets(picked)
    number = torch.arange(len(segments), device=segments.device).repeat_interleave(picked)
    grid = None if table.grid is None else table.grid[index]
    return SpanTable(number, table.offset[index], table.length[index], table.media[index], grid)


def join_tables(first: SpanTable, second: SpanTable, shift: int = 0) -> SpanTable:
    """Both tables in the order of their tokens, the second's sequences counted from ``shift`` on."""
    if not len(second.segment):
        return first
    segment = torch.cat((first.segment, second.segment + shift))
    offset = torch.cat((first.offset, second.offset))
    order = (segment * (int(offset.max()) + 1) + offset).argsort()
    both = (first.grid, second.grid)
    grid = None if both[0] is None or both[1] is None else torch.cat((both[0], both[1]))[order]
    joined = (torch.cat((getattr(first, name), getattr(second, name)))[order] for name in ("length", "media"))
    length, media = joined
    return SpanTable(segment[order], offset[order], length, media, grid)


def gather_pictures(
    table: SpanTable, first: Tensor, batch: Batch, family: Family, again: bool, name_of: Callable[[int], str]
) -> Pictures:
    """The pictures of a forward with the slots of their features.

    Args:
        first: [K] flat position in the rows of each picture's first placeholder.
        again: encode a picture once for each place where it stands, not once in all.

    Raises ``DataError`` where a picture gives another number of features than it has placeholders.
    """
    if not len(table.segment):
        blank = {name: value.to(batch.device) for name, value in family.blank().items()}
        return Pictures(blank, torch.zeros(0, dtype=torch.int64, device=batch.device))
    within = segment_offsets(table.length)
    slots = first.repeat_interleave(table.length) + within
    used, place = (
        (table.media, torch.arange(len(table.media), device=batch.device)) if again else _first_uses(table.media)
    )
    pixels = [family.pixels(batch.media[number]) for number in used.tolist()]
    sizes = torch.tensor([family.features(one) for one in pixels], device=batch.device)
    wrong = (sizes[place] != table.length).nonzero()
    if len(wrong):
        picture = int(wrong[0])
        raise DataError(
            f"{name_of(int(table.segment[picture]))} has {int(table.length[picture])} placeholder tokens for a picture "
            f"that gives {int(sizes[place[picture]])} features; encode the prompt with this model's family and pixel limits."
        )
    in_order = len(used) == len(table.media)
    starts = sizes.cumsum(0) - sizes
    sources = None if in_order else starts[place].repeat_interleave(table.length) + within
    joined = {name: value.to(batch.device) for name, value in join_pixels(pixels).items()}
    return Pictures(joined, slots, sources)


def join_pixels(pixels: Sequence[Pixels]) -> Pixels:
    """Several pictures' processed tensors as one."""
    if len(pixels) == 1:
        return dict(pixels[0])
    return {name: torch.cat([one[name] for one in pixels]) for name in pixels[0]}


def _first_uses(media: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct pictures in the order in which they first occur, and the place of each occurrence among them."""
    distinct, inverse = torch.unique(media, return_inverse=True)
    count = len(media)
    first = torch.full((len(distinct),), count, device=media.device)
    first.scatter_reduce_(0, inverse, torch.arange(count, device=media.device), "amin")
    order = first.argsort()
    return distinct[order], order.argsort()[inverse]
