"""How a batch becomes the rows of one forward: padded, packed, or with each group's prompt shared.

Nothing here reads weights or pixels' content, and nothing loops over samples: rows are made with index tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvlm.batch import Batch
from rlvlm.errors import ConfigError, DataError, nearest
from rlvlm.models.families.base import Family, SpanTable, segment_offsets
from rlvlm.models.rows import Pictures, Rows
from rlvlm.models.segments import segment_layout
from rlvlm.models.spans import check_placeholders, gather_pictures, join_tables, pick_segments, span_table

LAYOUTS = ("shared", "packed", "padded")


def build_rows(batch: Batch, family: Family, kind: str) -> Rows:
    """Rows of a batch in the layout ``kind``: shared, packed or padded.

    Shared rows hold each group's prompt once, then its responses; a row with pictures of its own (observations) stands
    whole beside them. Packed rows hold whole samples side by side. Padded rows are the slow reference: one row for each
    sample, every picture encoded for every sample.

    Raises ``ConfigError`` for an unknown layout, and ``DataError`` naming the sample where placeholders and pictures, or a row
    and its prompt, don't agree.
    """
    if kind not in LAYOUTS:
        raise ConfigError(f"a layout is one of {', '.join(LAYOUTS)}, got '{kind}'{nearest(kind, LAYOUTS)}.")
    batch.require("input_ids", "attention_mask", "loss_mask", "group_ids")
    if not len(batch):
        return _stand_in(batch, family)
    samples = _Samples.of(batch)
    samples.check()
    return _padded(samples, family) if kind == "padded" else _flat(samples, family, share=kind == "shared")


@dataclass(frozen=True)
class _Samples:
    """A batch as the tensors that layouts are made of.

    Attributes:
        groups: [B] index into the prompts in use.
        prompt_lengths: [P] of the prompts in use, which are ``used`` of the table.
        lengths: [B] tokens of each sample.
        judged: [N] rows and columns of the tokens in ``loss_mask``.
    """

    batch: Batch
    ids: Tensor
    mask: Tensor
    groups: Tensor
    used: list[int]
    prompt_lengths: Tensor
    prompt_ids: Tensor
    lengths: Tensor
    judged: tuple[Tensor, Tensor]

    @staticmethod
    def of(batch: Batch) -> _Samples:
        used, groups = torch.unique(batch["group_ids"], return_inverse=True)
        ids = [batch.prompts[number].ids for number in used.tolist()]
        lengths = torch.tensor([len(one) for one in ids], dtype=torch.int64, device=batch.device)
        mask = batch["attention_mask"]
        row, column = batch["loss_mask"].nonzero(as_tuple=True)
        prompt_ids = torch.cat(ids).to(batch.device)
        return _Samples(
            batch, batch["input_ids"], mask, groups, used.tolist(), lengths, prompt_ids, mask.sum(1), (row, column)
        )

    def name(self, row: int) -> str:
        """Words a sample for messages."""
        return f"sample {row} of prompt '{self.batch.prompts[self.used[int(self.groups[row])]].uid}'"

    def check(self) -> None:
        """Raises ``DataError`` unless each row starts with its prompt, is right-padded, and is judged after its prompt only."""
        width = self.ids.shape[1]
        columns = torch.arange(width, device=self.ids.device)
        own = self.prompt_lengths[self.groups]
        self._refuse(
            (self.mask != (columns < self.lengths[:, None])).any(1),
            "has attention_mask with gaps; rows are right-padded, tokens first",
        )
        self._refuse(self.lengths < own, "is shorter than its prompt")
        starts = self.prompt_lengths.cumsum(0) - self.prompt_lengths
        index = (starts[self.groups][:, None] + columns).clamp_(max=len(self.prompt_ids) - 1)
        differs = (self.prompt_ids[index] != self.ids) & (columns < own[:, None])
        self._refuse(differs.any(1), "does not start with its prompt's ids; group_ids or the prompt table are wrong")
        row, column = self.judged
        early = column < own[row].clamp(min=1)
        outside = ~self.mask[row, column]
        for wrong, what in ((early, "inside its prompt"), (outside, "on padding")):
            if bool(wrong.any()):
                raise DataError(
                    f"{self.name(int(row[wrong][0]))} has loss_mask true {what}; only response tokens are judged."
                )

    def _refuse(self, wrong: Tensor, what: str) -> None:
        if bool(wrong.any()):
            raise DataError(f"{self.name(int(wrong.nonzero()[0]))} {what}.")

    def row_spans(self) -> list[tuple]:
        """Pictures that rows hold beside their prompts' (observations of later turns)."""
        spans = self.batch.objects.get("spans") or [()] * len(self.batch)
        for row, own in enumerate(spans):
            if own and min(span.offset for span in own) < int(self.prompt_lengths[self.groups[row]]):
                raise DataError(
                    f"{self.name(row)} has a span inside its prompt; rows hold only the pictures that come after it."
                )
        return list(spans)

    def prompt_table(self, family: Family) -> SpanTable:
        """Pictures of the prompts in use."""
        return span_table([self.batch.prompts[number].spans for number in self.used], self.batch, family)

    def rows_of(self, reads: Tensor, **rest: object) -> Rows:
        """Rows that judge this batch's tokens."""
        row, column = self.judged
        heat = self.batch.get("temperature")
        plain = heat is None or bool((heat == 1).all())
        return Rows(
            reads=reads,
            targets=self.ids[row, column],
            judged=self.batch["loss_mask"],
            temperature=None if plain or heat is None else heat[row],
            **rest,  # type: ignore[arg-type]
        )


def _padded(samples: _Samples, family: Family) -> Rows:
    """One row for each sample, as transformers takes them: a 2-D mask and no layout."""
    count, width = samples.ids.shape
    prompts = pick_segments(samples.prompt_table(family), samples.groups, len(samples.used))
    spans = join_tables(prompts, span_table(samples.row_spans(), samples.batch, family))
    flat, _ = family.positions(samples.lengths, spans)
    positions = flat.new_zeros((*flat.shape[:-1], count, width))
    positions[..., samples.mask] = flat
    first = spans.segment * width + spans.offset
    is_placeholder = (samples.ids == family.placeholder_id) & samples.mask
    _check(samples, spans, is_placeholder.sum(1), is_placeholder.flatten(), first, samples.name)
    row, column = samples.judged
    return samples.rows_of(
        row * width + column - 1,
        ids=samples.ids,
        positions=positions,
        attention_mask=samples.mask,
        pictures=gather_pictures(spans, first, samples.batch, family, True, samples.name),
    )


def _flat(samples: _Samples, family: Family, share: bool) -> Rows:
    """One row of stems (prompts, or whole samples), then branches (responses)."""
    ids, mask, groups, device = samples.ids, samples.mask, samples.groups, samples.ids.device
    row_spans = samples.row_spans()
    shared = torch.tensor([share and not own for own in row_spans], device=device)
    whole = (~shared).nonzero().squeeze(1)
    prompts, stem_of_group = _stems(samples, groups[shared])
    own = samples.prompt_lengths[groups]
    branch = mask & shared[:, None] & (torch.arange(ids.shape[1], device=device) >= own[:, None])
    whole_mask = mask & ~shared[:, None]

    stem_lengths = torch.cat((prompts.lengths, samples.lengths[whole]))
    branch_lengths = (samples.lengths - own)[shared]
    stem_of = stem_of_group[groups[shared]]
    row_ids = torch.cat((prompts.ids, ids[whole_mask], ids[branch]))

    table = samples.prompt_table(family)
    spans = pick_segments(table, torch.cat((prompts.numbers, groups[whole])), len(samples.used))
    extra = span_table([row_spans[number] for number in whole.tolist()], samples.batch, family)
    spans = join_tables(spans, extra, shift=len(prompts.lengths))
    stem_positions, after = family.positions(stem_lengths, spans)
    branch_positions = after[stem_of].repeat_interleave(branch_lengths) + segment_offsets(branch_lengths)
    positions = torch.cat((stem_positions, branch_positions.expand(*stem_positions.shape[:-1], -1)), -1)

    def name(segment: int) -> str:
        if segment < len(prompts.numbers):
            return f"prompt '{samples.batch.prompts[samples.used[int(prompts.numbers[segment])]].uid}'"
        return samples.name(int(whole[segment - len(prompts.numbers)]))

    starts = stem_lengths.cumsum(0) - stem_lengths
    first = starts[spans.segment] + spans.offset
    _check_flat(samples, family, row_ids, stem_lengths, spans, first, branch, name)
    return samples.rows_of(
        _reads(samples, shared, whole_mask, branch, prompts, stem_lengths, stem_of_group),
        ids=row_ids[None],
        positions=positions.unsqueeze(-2),
        layout=segment_layout(stem_lengths, branch_lengths, stem_of),
        pictures=gather_pictures(spans, first, samples.batch, family, False, name),
    )


@dataclass(frozen=True)
class _Prompts:
    """Prompts that are stems: their numbers among those in use, their lengths, and their ids laid end to end."""

    numbers: Tensor
    lengths: Tensor
    ids: Tensor


def _stems(samples: _Samples, groups: Tensor) -> tuple[_Prompts, Tensor]:
    """The prompts of these groups as stems, and the stem of each prompt in use (0 where it is none)."""
    numbers = torch.unique(groups)
    stem_of_group = torch.zeros(len(samples.used), dtype=torch.int64, device=groups.device)
    stem_of_group[numbers] = torch.arange(len(numbers), device=groups.device)
    lengths = samples.prompt_lengths[numbers]
    if len(numbers) == len(samples.used):
        return _Prompts(numbers, lengths, samples.prompt_ids), stem_of_group
    starts = samples.prompt_lengths.cumsum(0) - samples.prompt_lengths
    index = starts[numbers].repeat_interleave(lengths) + segment_offsets(lengths)
    return _Prompts(numbers, lengths, samples.prompt_ids[index]), stem_of_group


def _reads(
    samples: _Samples,
    shared: Tensor,
    whole: Tensor,
    branch: Tensor,
    prompts: _Prompts,
    stem_lengths: Tensor,
    stem_of_group: Tensor,
) -> Tensor:
    """[N] where the state stands that predicts each judged token: one token before it, or at the end of its stem."""
    place = torch.zeros_like(samples.ids)  # of each token in the row
    begin = int(prompts.lengths.sum())
    count = int(stem_lengths.sum())
    place[whole] = torch.arange(begin, count, device=place.device)
    place[branch] = torch.arange(count, count + int(branch.sum()), device=place.device)
    row, column = samples.judged
    before = place[row, column - 1]
    if not len(prompts.lengths):
        return before
    ends = stem_lengths.cumsum(0) - 1
    groups = samples.groups[row]
    opens = shared[row] & (column == samples.prompt_lengths[groups])  # the first token of a response
    return torch.where(opens, ends[stem_of_group[groups]], before)


def _check(
    samples: _Samples,
    spans: SpanTable,
    counts: Tensor,
    is_placeholder: Tensor,
    first: Tensor,
    name: Callable[[int], str],
) -> None:
    width = int(spans.length.max()) if len(spans.length) else 0
    steps = torch.arange(width, device=first.device)
    inside = steps < spans.length[:, None]
    at = (first[:, None] + steps).clamp_(max=len(is_placeholder) - 1)
    check_placeholders(spans, counts, (is_placeholder[at] & inside).sum(1), name)


def _check_flat(
    samples: _Samples,
    family: Family,
    row_ids: Tensor,
    stem_lengths: Tensor,
    spans: SpanTable,
    first: Tensor,
    branch: Tensor,
    name: Callable[[int], str],
) -> None:
    """Placeholders stand in stems, as many as their pictures' tokens, and in no branch."""
    is_placeholder = row_ids == family.placeholder_id
    count = int(stem_lengths.sum())
    if bool(is_placeholder[count:].any()):
        row = int((branch & (samples.ids == family.placeholder_id)).any(1).nonzero()[0])
        found = int(((samples.ids[row] == family.placeholder_id) & branch[row]).sum())
        raise DataError(
            f"{samples.name(row)} holds {found} placeholder tokens in its response, where 0 pictures give 0 features; "
            "ban placeholder ids from sampling."
        )
    number = torch.arange(len(stem_lengths), device=row_ids.device).repeat_interleave(stem_lengths)
    counts = torch.zeros_like(stem_lengths).index_add_(0, number, is_placeholder[:count].long())
    _check(samples, spans, counts, is_placeholder, first, name)


def _stand_in(batch: Batch, family: Family) -> Rows:
    """One token that nobody reads: a rank without samples still makes every call that the others make."""
    device = batch.device
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    spans = SpanTable(nothing, nothing, nothing, nothing, nothing.reshape(0, 3))
    positions, _ = family.positions(torch.ones(1, dtype=torch.int64, device=device), spans)
    blank = {name: value.to(device) for name, value in family.blank().items()}
    return Rows(
        ids=torch.zeros(1, 1, dtype=torch.int64, device=device),
        positions=positions.unsqueeze(-2),
        reads=nothing,
        targets=nothing,
        judged=batch["loss_mask"],
        attention_mask=torch.ones(1, 1, dtype=torch.bool, device=device),
        pictures=Pictures(blank, nothing),
    )
