"""``Batch``: the one object that roles pass on.

Rows are samples. ``tensors`` holds their fields (declared in ``fields.py``), ``objects`` their Python columns, and two
tables hold what rows share: ``prompts`` (one entry for each group) and ``media`` (each picture once). Rows point into the
tables, so nothing is stored once for each sample of a group, and the tables follow every split, concat and filter.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rlvlm.errors import FieldError, nearest
from rlvlm.fields import FIELDS, check_value, field_of, missing_field

Key = str | tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """Where a picture stands: ``length`` placeholder tokens from ``offset`` on in the expanded ids, of ``media[media]``."""

    media: int
    offset: int
    length: int


@dataclass(frozen=True, eq=False)
class Prompt:
    """One group's prompt.

    Attributes:
        uid: unique to this draw of the record; the key of its sampling noise.
        record: the columns of the record it came from.
        ids: [Lp] int64, expanded: as many placeholders as the picture has features. What the trainer sees.
        engine_ids: [Le] int64, unexpanded: one placeholder for each picture. What engines that expand themselves get.
        spans: its pictures in the order of their offsets.
    """

    uid: str
    record: Mapping[str, Any]
    ids: Tensor
    engine_ids: Tensor
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, eq=False)
class Media:
    """One picture: its content key, the size (width, height) that the model sees, its handle and its processed tensors."""

    key: str
    size: tuple[int, int]
    image: Any = None
    pixels: dict[str, Tensor] = field(default_factory=dict)


class Batch:
    """Samples as columns, with the tables of prompts and pictures that they share.

    Methods return a new Batch that shares storage; a Batch is never changed in place.

    Args:
        tensors: fields of B samples, checked against their declarations.
        objects: columns of Python objects, one for each row.
        prompts: the prompt table that ``group_ids`` points into.
        media: the picture table that spans point into.
        prompt_tensors: fields whose first dimension is P.
        meta: whatever describes the whole batch.

    Raises ``FieldError`` for an undeclared field, a wrong shape or dtype, columns of unequal length, or indices outside a table.
    """

    def __init__(
        self,
        tensors: Mapping[Any, Tensor] | TensorDict,
        *,
        objects: Mapping[str, Sequence[Any]] | None = None,
        prompts: Iterable[Prompt] = (),
        media: Iterable[Media] = (),
        prompt_tensors: Mapping[str, Tensor] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        flat = dict(_leaves(tensors))
        if not flat:
            raise FieldError("a batch needs at least one field of samples, such as 'group_ids'; got none.")
        size = next(iter(flat.values())).shape[0]
        self._set(
            TensorDict({}, batch_size=[size]),
            {name: list(column) for name, column in (objects or {}).items()},
            tuple(prompts),
            tuple(media),
            {},
            dict(meta or {}),
        )
        sizes = {"B": size, "P": len(self.prompts)}
        for key, value in (*flat.items(), *(prompt_tensors or {}).items()):
            sizes = self._assign(key, value, sizes)
        self._check_tables()

    def _set(
        self,
        tensors: TensorDict,
        objects: dict[str, list[Any]],
        prompts: tuple[Prompt, ...],
        media: tuple[Media, ...],
        prompt_tensors: dict[str, Tensor],
        meta: dict[str, Any],
    ) -> Batch:
        self.tensors, self.objects, self.meta = tensors, objects, meta
        self.prompts, self.media, self.prompt_tensors = prompts, media, prompt_tensors
        return self

    def _derive(self, **changes: Any) -> Batch:
        """A batch with some of the six parts replaced, unchecked: for parts made from checked ones."""
        parts = {
            "tensors": self.tensors,
            "objects": self.objects,
            "prompts": self.prompts,
            "media": self.media,
            "prompt_tensors": self.prompt_tensors,
            "meta": self.meta,
        }
        return Batch.__new__(Batch)._set(**{**parts, **changes})

    # ---------------------------------------------------------------- reading

    def __len__(self) -> int:
        return int(self.tensors.batch_size[0])

    @property
    def n_tokens(self) -> int:
        """L, the length of the token axis; 0 when no token field is there."""
        return next((v.shape[1] for k, v in _leaves(self.tensors) if "L" in field_of(k).dims), 0)

    @property
    def device(self) -> torch.device:
        """Where the fields are."""
        return next(value.device for _, value in _leaves(self.tensors))

    def __contains__(self, key: Key) -> bool:
        return key in self.prompt_tensors or self.tensors.get(key, None) is not None  # type: ignore[call-overload]

    def __getitem__(self, key: Key) -> Tensor:
        value = self.get(key)
        if value is None:
            raise missing_field(key)
        return value

    def get(self, key: Key, default: Tensor | None = None) -> Tensor | None:
        """The field, or ``default`` where the batch does not have it; an undeclared name raises ``FieldError``."""
        if isinstance(key, str) and key in self.prompt_tensors:
            return self.prompt_tensors[key]
        value = self.tensors.get(key, None)  # type: ignore[call-overload]
        if value is None and not (isinstance(key, tuple) or key in FIELDS):
            field_of(key)  # raises with the nearest name
        return default if value is None else value

    def keys(self) -> list[Key]:
        """Every field that is there, those of prompts included."""
        return [*(key for key, _ in _leaves(self.tensors)), *self.prompt_tensors]

    def require(self, *keys: Key) -> Batch:
        """Returns the batch itself, or raises ``FieldError`` naming the missing field, who writes it and what turns that on."""
        for key in keys:
            if key not in self:
                raise missing_field(key)
        return self

    def records(self) -> list[Mapping[str, Any]]:
        """The record of each row, by reference."""
        return [self.prompts[group].record for group in self["group_ids"].tolist()]

    def __repr__(self) -> str:
        head = f"Batch({len(self)} samples, {self.n_tokens} tokens, {len(self.prompts)} prompts, {len(self.media)} pictures)"
        lines = [_describe(key, value) for key, value in (*_leaves(self.tensors), *self.prompt_tensors.items())]
        if self.objects:
            lines.append("objects: " + ", ".join(self.objects))
        if self.meta:
            lines.append("meta: " + ", ".join(map(str, self.meta)))
        return "\n  ".join([head, *lines])

    # ---------------------------------------------------------------- columns

    def with_(self, fields: Mapping[Any, Tensor] | None = None, **more: Tensor) -> Batch:
        """A batch with fields added or replaced, each checked; a field derived from another is written with it."""
        new = self._derive(tensors=self.tensors.clone(recurse=False), prompt_tensors=dict(self.prompt_tensors))
        sizes = {"B": len(self), "P": len(self.prompts)}
        if self.n_tokens:
            sizes["L"] = self.n_tokens
        for key, value in {**(fields or {}), **more}.items():
            sizes = new._assign(key, value, sizes)
        return new

    def with_objects(self, **columns: Sequence[Any]) -> Batch:
        """A batch with Python columns added or replaced; each has one entry for each row."""
        for name, column in columns.items():
            if len(column) != len(self):
                raise FieldError(f"object column '{name}' has {len(column)} entries for {len(self)} samples.")
        return self._derive(objects={**self.objects, **{name: list(column) for name, column in columns.items()}})

    def with_meta(self, **entries: Any) -> Batch:
        """A batch with entries of ``meta`` added or replaced."""
        return self._derive(meta={**self.meta, **entries})

    def with_media(self, media: Sequence[Media]) -> Batch:
        """A batch whose picture table is another one of the same length; spans point into it as before."""
        if len(media) != len(self.media):
            raise FieldError(
                f"with_media takes one picture for each of the {len(self.media)} there are, got {len(media)}."
            )
        return self._derive(media=tuple(media))

    def select(self, *keys: Key) -> Batch:
        """Only these fields (and Python columns, by name); tables and meta stay."""
        fields = [key for key in keys if key not in self.objects]
        self.require(*fields)
        tensors = TensorDict({}, batch_size=[len(self)])
        for key in fields:
            if key not in self.prompt_tensors:
                tensors.set(key, self.tensors.get(key))  # type: ignore[arg-type, call-overload]
        return self._derive(
            tensors=tensors,
            objects={name: column for name, column in self.objects.items() if name in keys},
            prompt_tensors={name: value for name, value in self.prompt_tensors.items() if name in keys},
        )

    def drop(self, *keys: Key) -> Batch:
        """All fields and Python columns but these; a name that is not there raises ``FieldError``."""
        for key in keys:
            if key not in self and key not in self.objects:
                raise FieldError(
                    f"can't drop '{key}', which the batch has not{nearest(str(key), map(str, [*self.keys(), *self.objects]))}."
                )
        return self.select(*(key for key in (*self.keys(), *self.objects) if key not in keys))

    def rename(self, **names: str) -> Batch:
        """Renames fields or Python columns, ``rename(old="new")``; a field's new name must be declared alike."""
        kept = self.drop(*names)
        columns = {new: self.objects[old] for old, new in names.items() if old in self.objects}
        return kept.with_({new: self[old] for old, new in names.items() if old not in self.objects}).with_objects(
            **columns
        )

    def merge(self, other: Batch) -> Batch:
        """The columns of two batches of the same rows; a column that both have must be the same in both."""
        if len(self) != len(other):
            raise FieldError(f"merge takes batches of the same samples, got {len(self)} and {len(other)}.")
        if [p.uid for p in self.prompts] != [p.uid for p in other.prompts]:
            raise FieldError("merge takes batches of the same prompt table; use concat to join different samples.")
        for key in other.keys():
            if key in self and not torch.equal(self[key], other[key]):
                raise FieldError(f"merge got two different values of field {key!r}; drop one of them first.")
        added = {key: other[key] for key in other.keys() if key not in self}
        return self.with_(added).with_objects(**other.objects).with_meta(**other.meta)

    # ---------------------------------------------------------------- rows

    def index(self, rows: Tensor | Sequence[int]) -> Batch:
        """The rows of these indices in this order (repeats allowed); tables keep what is still pointed at."""
        picked = torch.as_tensor(rows, dtype=torch.int64, device=self.device)
        if picked.dim() != 1:
            raise FieldError(
                f"index takes one axis of row numbers, got shape {list(picked.shape)}; filter takes a mask."
            )
        if picked.numel() and (int(picked.max()) >= len(self) or int(picked.min()) < 0):
            raise FieldError(
                f"index takes row numbers from 0 to {len(self) - 1}, got {int(picked.min())} to {int(picked.max())}."
            )
        order = picked.tolist()
        objects = {name: [column[row] for row in order] for name, column in self.objects.items()}
        return self._derive(tensors=self.tensors[picked], objects=objects)._compact()

    def reorder(self, order: Tensor | Sequence[int]) -> Batch:
        """All rows in another order; ``order`` is a permutation, else ``FieldError``."""
        if sorted(torch.as_tensor(order).tolist()) != list(range(len(self))):
            raise FieldError(f"reorder takes a permutation of {len(self)} rows; index picks some of them.")
        return self.index(order)

    def filter(self, keep: Tensor) -> Batch:
        """The rows where the mask ``keep`` [B] is true."""
        if keep.dtype != torch.bool or list(keep.shape) != [len(self)]:
            raise FieldError(
                f"filter takes a bool mask of shape [{len(self)}], got {keep.dtype} of shape {list(keep.shape)}."
            )
        return self if bool(keep.all()) else self.index(keep.nonzero().squeeze(1))

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Consecutive pieces of these sizes, which add up to the number of samples."""
        if sum(sizes) != len(self):
            raise FieldError(f"split takes sizes that add up to {len(self)} samples, got {list(sizes)} = {sum(sizes)}.")
        starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
        return [self.index(torch.arange(a, b)) for a, b in itertools.pairwise(starts)]

    def chunk(self, n: int) -> list[Batch]:
        """At most ``n`` consecutive pieces of nearly equal size."""
        if n < 1:
            raise FieldError(f"chunk takes at least one piece, got {n}.")
        small, extra = divmod(len(self), min(n, max(len(self), 1)))
        return self.split([small + (i < extra) for i in range(min(n, max(len(self), 1)))])

    def repeat(self, n: int) -> Batch:
        """Each row ``n`` times, copies side by side; the tables do not grow."""
        return self.index(torch.arange(len(self)).repeat_interleave(n))

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """The rows of several batches with the same fields; prompts are joined by uid, pictures by key, tokens padded right."""
        if not batches:
            raise FieldError("concat takes at least one batch, got none.")
        first = batches[0]
        for other in batches[1:]:
            if set(other.keys()) != set(first.keys()) or set(other.objects) != set(first.objects):
                odd = {*map(str, first.keys()), *first.objects} ^ {*map(str, other.keys()), *other.objects}
                raise FieldError(f"concat takes batches with the same columns; only some have {sorted(odd)}.")
        return first if len(batches) == 1 else _concat(batches)

    def to(self, device: torch.device | str) -> Batch:
        """The fields, prompts and pictures' tensors on a device; what is there already is shared."""
        if self.device == torch.device(device):
            return self
        move = {name: value.to(device) for name, value in self.prompt_tensors.items()}
        media = tuple(dataclasses.replace(m, pixels={k: v.to(device) for k, v in m.pixels.items()}) for m in self.media)
        prompts = tuple(
            dataclasses.replace(p, ids=p.ids.to(device), engine_ids=p.engine_ids.to(device)) for p in self.prompts
        )
        return self._derive(tensors=self.tensors.to(device), prompt_tensors=move, media=media, prompts=prompts)

    # ---------------------------------------------------------------- inside

    def _assign(self, key: Key, value: Tensor, sizes: dict[str, int]) -> dict[str, int]:
        check_value(key, value, sizes)
        declared = field_of(key)
        if declared.dims[0] == "P":
            self.prompt_tensors[str(key)] = value
            return sizes
        source = declared.derived_from
        if source is not None and source in self:
            if not torch.allclose(value, self[source].sum(-1), rtol=1e-4, atol=1e-5):
                raise FieldError(f"field '{key}' is always the row sum of '{source}'; write '{source}' instead.")
            return sizes
        self.tensors.set(key, value)  # type: ignore[arg-type]
        for name, other in FIELDS.items():
            if other.derived_from == key:
                self.tensors.set(name, value.sum(-1))
        return {**sizes, **dict(zip(declared.dims, value.shape, strict=True))}

    def _check_tables(self) -> None:
        for name, column in self.objects.items():
            if len(column) != len(self):
                raise FieldError(f"object column '{name}' has {len(column)} entries for {len(self)} samples.")
        groups = self.tensors.get("group_ids", None)
        if (
            groups is not None
            and self.prompts
            and len(self)
            and not 0 <= int(groups.min()) <= int(groups.max()) < len(self.prompts)
        ):
            raise FieldError(
                f"group_ids run from {int(groups.min())} to {int(groups.max())}, but there are {len(self.prompts)} prompts."
            )
        for prompt in self.prompts:
            for span in prompt.spans:
                if not 0 <= span.media < len(self.media):
                    raise FieldError(
                        f"prompt '{prompt.uid}' points at picture {span.media}, but there are {len(self.media)}."
                    )

    def _compact(self) -> Batch:
        """Drops the prompts and pictures that no row points at, and renumbers."""
        if not self.prompts or "group_ids" not in self:
            return self
        used, groups = torch.unique(self["group_ids"], return_inverse=True)
        if len(used) == len(self.prompts):
            return self
        kept = used.tolist()
        prompts = [self.prompts[group] for group in kept]
        rows_spans = self.objects.get("spans", [])
        seen = {span.media for spans in (*(p.spans for p in prompts), *rows_spans) for span in spans}
        renumber = {old: new for new, old in enumerate(sorted(seen))}
        objects = self.objects
        if len(renumber) != len(self.media):
            prompts = [dataclasses.replace(p, spans=_moved(p.spans, renumber)) for p in prompts]
            if rows_spans:
                objects = {**objects, "spans": [_moved(spans, renumber) for spans in rows_spans]}
        tensors = self.tensors.clone(recurse=False).set("group_ids", groups)
        return self._derive(
            tensors=tensors,
            objects=objects,
            prompts=tuple(prompts),
            media=tuple(self.media[old] for old in renumber),
            prompt_tensors={name: value[used] for name, value in self.prompt_tensors.items()},
        )


def reward_details(batch: Batch) -> dict[str, Tensor]:
    """The numbers that reward rules told beside their scores, [B] each by ``rule.key``, and by ``key`` where one rule has it.

    NaN for a row for which a rule told none. They stand in the Python column ``reward_details``, ``{rule: {key: number}}`` for
    each row.
    """
    told: list[Mapping[str, Mapping[str, float]]] = batch.objects.get("reward_details", [])
    rules_of: dict[str, dict[str, None]] = {}
    for row in told:
        for rule, numbers in row.items():
            for key in numbers:
                rules_of.setdefault(key, {})[rule] = None
    found = {}
    for key, rules in rules_of.items():
        for rule in rules:
            column = [row.get(rule, {}).get(key, math.nan) for row in told]
            found[f"{rule}.{key}"] = torch.tensor(column, dtype=torch.float32, device=batch.device)
        if len(rules) == 1:
            found[key] = found[f"{next(iter(rules))}.{key}"]
    return found


def _leaves(tensors: Mapping[Any, Tensor] | TensorDict) -> Iterator[tuple[Key, Tensor]]:
    items: Any = (
        tensors.items(include_nested=True, leaves_only=True) if isinstance(tensors, TensorDict) else tensors.items()
    )
    yield from items


def _moved(spans: Iterable[Span], renumber: Mapping[int, int]) -> tuple[Span, ...]:
    return tuple(dataclasses.replace(span, media=renumber[span.media]) for span in spans)


def _describe(key: Key, value: Tensor) -> str:
    name = key if isinstance(key, str) else "/".join(key)
    return f"{name:<18} {str(value.dtype).removeprefix('torch.'):<8} [{', '.join(map(str, value.shape))}]"


@dataclass
class _Tables:
    """Prompts joined by uid and pictures by key, while batches are concatenated."""

    prompts: list[Prompt] = field(default_factory=list)
    media: list[Media] = field(default_factory=list)
    origins: list[tuple[int, int]] = field(default_factory=list)  # of each prompt: (batch, index in its table)
    _prompt_of: dict[str, int] = field(default_factory=dict)
    _media_of: dict[str, int] = field(default_factory=dict)

    def add(self, number: int, batch: Batch) -> tuple[list[int], dict[int, int]]:
        """Takes in a batch's tables; returns the new number of each of its prompts and pictures."""
        moved = {}
        for old, picture in enumerate(batch.media):
            if picture.key not in self._media_of:
                self._media_of[picture.key] = len(self.media)
                self.media.append(picture)
            moved[old] = self._media_of[picture.key]
        renumbered = []
        for old, prompt in enumerate(batch.prompts):
            if prompt.uid not in self._prompt_of:
                self._prompt_of[prompt.uid] = len(self.prompts)
                self.prompts.append(dataclasses.replace(prompt, spans=_moved(prompt.spans, moved)))
                self.origins.append((number, old))
            renumbered.append(self._prompt_of[prompt.uid])
        return renumbered, moved


def _concat(batches: Sequence[Batch]) -> Batch:
    tables = _Tables()
    groups: list[Tensor] = []
    spans: list[tuple[Span, ...]] = []
    for number, batch in enumerate(batches):
        renumbered, moved = tables.add(number, batch)
        if "group_ids" in batch:
            lookup = torch.tensor(renumbered, dtype=torch.int64, device=batch.device)
            groups.append(lookup[batch["group_ids"]] if renumbered else batch["group_ids"])
        spans.extend(_moved(row, moved) for row in batch.objects.get("spans", []))
    length = max(batch.n_tokens for batch in batches)
    first = batches[0]
    tensors = TensorDict({}, batch_size=[sum(map(len, batches))])
    for key in (key for key in first.keys() if key not in first.prompt_tensors):
        tensors.set(key, torch.cat([_padded(key, batch[key], length) for batch in batches]))  # type: ignore[arg-type]
    if groups:
        tensors.set("group_ids", torch.cat(groups))
    objects = {name: [row for batch in batches for row in batch.objects[name]] for name in first.objects}
    if spans:
        objects["spans"] = spans
    return first._derive(
        tensors=tensors,
        objects=objects,
        prompts=tuple(tables.prompts),
        media=tuple(tables.media),
        prompt_tensors={
            name: torch.stack([batches[number].prompt_tensors[name][old] for number, old in tables.origins])
            for name in first.prompt_tensors
        },
        meta={key: value for batch in reversed(batches) for key, value in batch.meta.items()},
    )


def _padded(key: Key, value: Tensor, length: int) -> Tensor:
    declared = field_of(key)
    if "L" not in declared.dims or value.shape[1] == length:
        return value
    return torch.nn.functional.pad(value, (0, length - value.shape[1]), value=declared.pad)
