"""M-RoPE positions (Wang et al. 2024, arXiv:2409.12191) from where pictures stand, never from token ids."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvlm.models.families.base import SpanTable, segment_offsets


def mrope_positions(lengths: Tensor, spans: SpanTable) -> tuple[Tensor, Tensor]:
    """Positions (time, height, width) of S sequences laid end to end, and the position after each.

    Text counts up by one on all three axes. A picture of t x h x w tokens starts where the text before it stopped, spans
    its own grid, and the text after it goes on ``max(h, w)`` later.

    Args:
        lengths: [S] tokens of each sequence.
        spans: pictures with their grids in tokens.

    Returns:
        [3, T] positions with T = sum(lengths), and [S] next positions.
    """
    offsets = segment_offsets(lengths)
    if not len(spans.length):
        return offsets.expand(3, -1), lengths
    assert spans.grid is not None  # families with M-RoPE always give grids
    saved = spans.length - spans.grid[:, 1:].amax(1)  # positions that a picture takes fewer than it has tokens
    starts = lengths.cumsum(0) - lengths
    first = starts[spans.segment] + spans.offset
    jumps = torch.zeros(len(offsets) + 1, dtype=torch.int64, device=lengths.device)
    jumps.index_add_(0, first + spans.length, saved)  # text after a picture stands this much nearer
    total = jumps.cumsum(0)
    shift = total[:-1] - total[starts].repeat_interleave(lengths)  # counted from each sequence's own start
    # A picture that ends its sequence jumps at the next one's first token: that jump is this sequence's, not the next one's.
    ends = torch.zeros(len(lengths), dtype=torch.int64, device=lengths.device).index_add_(0, spans.segment, saved)
    text = offsets - shift
    within = segment_offsets(spans.length)
    height, width = (spans.grid[:, axis].repeat_interleave(spans.length) for axis in (1, 2))
    cells = torch.stack((within // (height * width), within // width % height, within % width))
    place = first.repeat_interleave(spans.length) + within
    positions = text.repeat(3, 1)
    positions[:, place] = text[first].repeat_interleave(spans.length) + cells
    return positions, lengths - ends
