"""How a batch becomes the rows of one forward: padded, packed, or with each group's prompt shared.

Nothing here reads weights or pixels' content, and nothing loops over samples: rows are made with index tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvlm.batch import Batch, Span
from rlvlm.errors import ConfigError, DataError, nearest
from rlvlm.models.families.base import Family, SpanTable, segment_offsets
from rlvlm.models.rows import Pictures, Rows
from rlvlm.models.segments import segment_layout
from rlvlm.models.spans import gather_pictures, join_tables, pick_segments, span_table

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
    samples = _Samples.of(batch, family)
    samples.check_masks()
    samples.check_own_spans()
    samples.check_ids()
    return _padded(samples) if kind == "padded" else _flat(samples, share=kind == "shared")


@dataclass(frozen=True)
class _Samples:
    """A batch as the tensors that layouts are made of.

    Attributes:
        groups: [B] index into the prompts in use.
        prompt_lengths: [P] of the prompts in use, which are ``used`` of the table.
        prompt_ids: their ids, end to end.
        prompt_spans: their pictures.
        own_spans: pictures that rows hold beside their prompt's (observations of later turns), one entry a row.
        lengths: [B] tokens of each sample.
        judged: [N] rows and columns of the tokens in ``loss_mask``.
    """

    batch: Batch
    family: Family
    ids: Tensor
    mask: Tensor
    groups: Tensor
    used: list[int]
    prompt_lengths: Tensor
    prompt_ids: Tensor
    prompt_spans: SpanTable
    own_spans: list[tuple[Span, ...]]
    lengths: Tensor
    judged: tuple[Tensor, Tensor]

    @staticmethod
    def of(batch: Batch, family: Family) -> _Samples:
        distinct, groups = torch.unique(batch["group_ids"], return_inverse=True)
        used = distinct.tolist()
        ids = [batch.prompts[number].ids for number in used]
        mask = batch["attention_mask"]
        row, column = batch["loss_mask"].nonzero(as_tuple=True)
        return _Samples(
            batch,
            family,
            batch["input_ids"],
            mask,
            groups,
            used,
            torch.tensor([len(one) for one in ids], dtype=torch.int64, device=batch.device),
            torch.cat(ids).to(batch.device),
            span_table([batch.prompts[number].spans for number in used], batch, family),
            list(batch.objects.get("spans") or [()] * len(batch)),
            mask.sum(1),
            (row, column),
        )

    def name(self, row: int) -> str:
        """Words a sample for messages."""
        return f"sample {row} of prompt '{self.batch.prompts[self.used[int(self.groups[row])]].uid}'"

    def row_spans(self) -> SpanTable:
        """Pictures of whole rows, the prompt's and their own."""
        of_prompts = pick_segments(self.prompt_spans, self.groups, len(self.used))
        if not any(self.own_spans):
            return of_prompts
        return join_tables(of_prompts, span_table(self.own_spans, self.batch, self.family))

    def check_masks(self) -> None:
        """Raises ``DataError`` unless rows are right-padded and judged on what comes after their prompt."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device)
        own = self.prompt_lengths[self.groups]
        gaps = self.mask != (columns < self.lengths[:, None])
        self._refuse(gaps.any(1), "has attention_mask with gaps; rows are right-padded, tokens first")
        self._refuse(self.lengths < own, "is shorter than its prompt")
        row, column = self.judged
        self._refuse(column < own[row].clamp(min=1), "has loss_mask true inside its prompt", row)
        self._refuse(column >= self.lengths[row], "has loss_mask true on padding", row)

    def check_ids(self) -> None:
        """Raises ``DataError`` unless rows start with their prompt, hold placeholders where pictures are, and judge what can be sampled."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device)
        starts = self.prompt_lengths.cumsum(0) - self.prompt_lengths
        index = (starts[self.groups][:, None] + columns).clamp_(max=len(self.prompt_ids) - 1)
        differs = (self.prompt_ids[index] != self.ids) & (columns < self.prompt_lengths[self.groups][:, None])
        self._refuse(differs.any(1), "does not start with its prompt's ids; group_ids or the prompt table are wrong")
        self._check_placeholders()
        row, column = self.judged
        banned = torch.isin(self.ids[row, column], torch.tensor(self.family.banned_ids, device=self.ids.device))
        self._refuse(
            banned, "judges a token that stands for pictures, which can't be sampled; ban it in generation", row
        )

    def _check_placeholders(self) -> None:
        spans = self.row_spans()
        row = spans.segment.repeat_interleave(spans.length)
        column = spans.offset.repeat_interleave(spans.length) + segment_offsets(spans.length)
        fits = column < self.lengths[row]
        expected = torch.zeros_like(self.mask)
        expected[row[fits], column[fits]] = True
        found = (self.ids == self.family.placeholder_id) & self.mask
        wrong = (expected != found).any(1)
        wrong[row[~fits]] = True
        if bool(wrong.any()):
            number = int(wrong.nonzero()[0])
            tokens, features = int(found[number].sum()), int(spans.length[spans.segment == number].sum())
            what = (
                "stand elsewhere than its spans say"
                if tokens == features
                else f"but its pictures give {features} features"
            )
            raise DataError(
                f"{self.name(number)} holds {tokens} placeholder tokens, {'which ' if tokens == features else ''}{what}; "
                "encode prompts with this model's family and ban placeholders from sampling."
            )

    def check_own_spans(self) -> None:
        """Raises ``DataError`` for a row's own picture that stands inside its prompt."""
        for row, own in enumerate(self.own_spans):
            if own and min(span.offset for span in own) < int(self.prompt_lengths[self.groups[row]]):
                raise DataError(
                    f"{self.name(row)} has a span inside its prompt; rows hold only the pictures that come after it."
                )

    def _refuse(self, wrong: Tensor, what: str, rows: Tensor | None = None) -> None:
        if bool(wrong.any()):
            number = int(wrong.nonzero()[0])
            raise DataError(f"{self.name(number if rows is None else int(rows[number]))} {what}.")

    def rows_of(self, reads: Tensor, **rest: Any) -> Rows:
        """Rows that judge this batch's tokens."""
        row, column = self.judged
        heat = self.batch.get("temperature")
        plain = heat is None or bool((heat == 1).all())
        return Rows(
            reads=reads,
            targets=self.ids[row, column],
            judged=self.batch["loss_mask"],
            temperature=None if plain or heat is None else heat[row],
            **rest,
        )


def _padded(samples: _Samples) -> Rows:
    """One row for each sample, as transformers takes them: a 2-D mask and no layout."""
    count, width = samples.ids.shape
    spans = samples.row_spans()
    flat, _ = samples.family.positions(samples.lengths, spans)
    positions = flat.new_zeros((*flat.shape[:-1], count, width))
    positions[..., samples.mask] = flat
    row, column = samples.judged
    first = spans.segment * width + spans.offset
    return samples.rows_of(
        row * width + column - 1,
        ids=samples.ids,
        positions=positions,
        attention_mask=samples.mask,
        pictures=gather_pictures(spans, first, samples.batch, samples.family, True, samples.name),
    )


def _flat(samples: _Samples, share: bool) -> Rows:
    """One row of stems (prompts, or whole samples), then branches (responses)."""
    stems = _Stems.of(samples, share)
    own = samples.prompt_lengths[samples.groups]
    columns = torch.arange(samples.ids.shape[1], device=own.device)
    branch = samples.mask & stems.shared[:, None] & (columns >= own[:, None])
    branch_lengths = (samples.lengths - own)[stems.shared]
    stem_of = stems.of_group[samples.groups[stems.shared]]

    spans = stems.spans(samples)
    stem_positions, after = samples.family.positions(stems.lengths, spans)
    branch_positions = after[stem_of].repeat_interleave(branch_lengths) + segment_offsets(branch_lengths)
    positions = torch.cat((stem_positions, branch_positions.expand(*stem_positions.shape[:-1], -1)), -1)
    first = (stems.lengths.cumsum(0) - stems.lengths)[spans.segment] + spans.offset
    return samples.rows_of(
        _reads(samples, stems, branch),
        ids=torch.cat((stems.ids, samples.ids[branch]))[None],
        positions=positions.unsqueeze(-2),
        layout=segment_layout(stems.lengths, branch_lengths, stem_of),
        pictures=gather_pictures(spans, first, samples.batch, samples.family, False, stems.namer(samples)),
    )


@dataclass(frozen=True)
class _Stems:
    """What stands first in a row: prompts that are shared, then whole samples.

    Attributes:
        shared: [B] samples that go on from a shared prompt.
        whole: the other samples' rows.
        prompts: the shared prompts' numbers among those in use.
        of_group: [P] the stem of each prompt in use; 0 where it is none.
        lengths: tokens of each stem.
        ids: the stems' ids, end to end.
    """

    shared: Tensor
    whole: Tensor
    prompts: Tensor
    of_group: Tensor
    lengths: Tensor
    ids: Tensor

    @staticmethod
    def of(samples: _Samples, share: bool) -> _Stems:
        device = samples.ids.device
        shared = torch.tensor([share and not own for own in samples.own_spans], device=device)
        whole = (~shared).nonzero().squeeze(1)
        prompts = torch.unique(samples.groups[shared])
        of_group = torch.zeros(len(samples.used), dtype=torch.int64, device=device)
        of_group[prompts] = torch.arange(len(prompts), device=device)
        lengths = samples.prompt_lengths[prompts]
        starts = (samples.prompt_lengths.cumsum(0) - samples.prompt_lengths)[prompts]
        prompt_ids = samples.prompt_ids[starts.repeat_interleave(lengths) + segment_offsets(lengths)]
        whole_ids = samples.ids[whole][samples.mask[whole]]
        lengths = torch.cat((lengths, samples.lengths[whole]))
        return _Stems(shared, whole, prompts, of_group, lengths, torch.cat((prompt_ids, whole_ids)))

    def spans(self, samples: _Samples) -> SpanTable:
        """The stems' pictures."""
        of_prompts = torch.cat((self.prompts, samples.groups[self.whole]))
        table = pick_segments(samples.prompt_spans, of_prompts, len(samples.used))
        own = [samples.own_spans[row] for row in self.whole.tolist()]
        if not any(own):
            return table
        return join_tables(table, span_table(own, samples.batch, samples.family), shift=len(self.prompts))

    def namer(self, samples: _Samples) -> Callable[[int], str]:
        """Words a stem for messages."""

        def name(stem: int) -> str:
            if stem >= len(self.prompts):
                return samples.name(int(self.whole[stem - len(self.prompts)]))
            return f"prompt '{samples.batch.prompts[samples.used[int(self.prompts[stem])]].uid}'"

        return name


def _reads(samples: _Samples, stems: _Stems, branch: Tensor) -> Tensor:
    """[N] where the state stands that predicts each judged token: one token before it, or at the end of its stem."""
    place = torch.zeros_like(samples.ids)  # of each token in the row
    ends = stems.lengths.cumsum(0)
    count = len(stems.ids)
    begin = count - int(stems.lengths[len(stems.prompts) :].sum())
    whole = samples.mask & ~stems.shared[:, None]
    place[whole] = torch.arange(begin, count, device=place.device)
    place[branch] = torch.arange(count, count + int(branch.sum()), device=place.device)
    row, column = samples.judged
    groups = samples.groups[row]
    opens = stems.shared[row] & (column == samples.prompt_lengths[groups])  # the first token of a response
    return torch.where(opens, ends[stems.of_group[groups]] - 1, place[row, column - 1])


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
