"""``Loader``: batches of prompts (or of dialogues) from the data's sources, with an exact position to resume from."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rlvlm.batch import Batch, Prompt
from rlvlm.data.config import DataConfig
from rlvlm.data.media import Picture
from rlvlm.data.media_table import MediaTable, PixelCache
from rlvlm.data.order import Mixture
from rlvlm.data.prompts import (
    Encoding,
    Messages,
    OverLongError,
    PromptEncoder,
    PromptFamily,
    move_spans,
    template_of,
    to_messages,
)
from rlvlm.data.records import PICTURE_COLUMNS, is_filled
from rlvlm.data.sources import Source, open_sources
from rlvlm.errors import DataError

_LOG = logging.getLogger("rlvlm.data")
_FAULTS_LOGGED = 10


@dataclass(frozen=True)
class Item:
    """One record ready for a batch; ``encoded`` is what its assembler made of it."""

    uid: str
    record: Mapping[str, Any]
    pictures: Sequence[Picture]
    encoded: Any


@dataclass(frozen=True)
class _Made:
    """A batch (``None`` at the end of held-out records), the position behind it, and what was passed over up to it."""

    batch: Batch | None
    state: dict[str, Any]
    counts: Counter[str]


class Assembler(Protocol):
    """Makes batches of one kind: encodes a record when it is drawn, and joins the records of a step."""

    def encode(
        self, record: Mapping[str, Any], pictures: Sequence[Picture], template: str | None
    ) -> tuple[Mapping[str, Any], Any]:
        """The record as it goes into the batch, and its encoding by its own template, else ``template``.

        Raises ``DataError`` if unusable, ``OverLongError`` if too long.
        """
        ...

    def assemble(self, items: Sequence[Item], places: Sequence[Sequence[int]], table: MediaTable) -> Batch:
        """One batch; ``places`` are each item's pictures in the table."""
        ...


def as_prompt(record: Mapping[str, Any], template: str | None, system: str | None) -> tuple[Messages, dict[str, Any]]:
    """A record's messages by its own template, else ``template``, and the columns that rewards read.

    A dialogue's last answer is the column ``answer``, unless the record has one.
    """
    if "samples" in record:
        raise DataError(
            "the row is a packed bin, which supervised stages read; check it with --dialogues, or give prompts one to a row."
        )
    messages, answer = to_messages(record, template_of(record, template), system)
    columns = {name: value for name, value in record.items() if name not in PICTURE_COLUMNS}
    columns.setdefault("problem", messages[-1]["content"])
    if not is_filled(columns.get("answer")) and answer is not None:
        columns["answer"] = answer
    return messages, columns


class PromptAssembler:
    """Prompts for a policy to answer: one row and one entry of the prompt table for each record."""

    def __init__(self, config: DataConfig, family: PromptFamily) -> None:
        self._config = config
        self._encoder = PromptEncoder(family, config.max_prompt_tokens)

    def encode(
        self, record: Mapping[str, Any], pictures: Sequence[Picture], template: str | None
    ) -> tuple[Mapping[str, Any], Encoding]:
        """Messages by the template, then token ids; a dialogue's last answer becomes the record's ``answer``."""
        messages, columns = as_prompt(record, template, self._config.system)
        return columns, self._encoder(messages, pictures)

    def assemble(self, items: Sequence[Item], places: Sequence[Sequence[int]], table: MediaTable) -> Batch:
        """A batch with ``group_ids`` = 0 … P-1 and nothing stored for each token."""
        prompts = []
        for item, media in zip(items, places, strict=True):
            ids, engine_ids, spans = item.encoded
            prompts.append(Prompt(item.uid, item.record, ids, engine_ids, move_spans(spans, media)))
        return Batch({"group_ids": torch.arange(len(prompts))}, prompts=prompts, media=table.media)


class Loader:
    """Batches of ``prompts_per_step`` prompts; over all ranks together, each rank is given its slice.

    Training records come without end, shuffled anew each epoch; held-out ones (``split="eval"``) once in order at
    every ``iter``, whatever the weights of their sources. Unusable, over-long and filtered-out records are passed
    over as the config says and counted in :attr:`counts`; the next ones take their place, so that batches are full.
    Only a picture whose header is good and whose pixels are not makes the batch that it was drawn for one shorter.

    Args:
        config: the data's settings.
        family: the model family: tokenizer, sizes and pixels.
        seed: decides the order, and what sources that make their records make.
        split: ``train`` or ``eval``.
        rank, world_size: this process's share of each batch; the records drawn do not depend on them.
        assembler: what batches are made of; prompts by default.
        sources: opened sources instead of the config's.

    Raises ``ConfigError`` without sources, and ``DataError`` for bad data, naming file and row.
    """

    def __init__(
        self,
        config: DataConfig,
        family: PromptFamily,
        seed: int = 0,
        *,
        split: str = "train",
        rank: int = 0,
        world_size: int = 1,
        assembler: Assembler | None = None,
        sources: Sequence[Source] | None = None,
    ) -> None:
        self.config, self.family, self.split = config, family, split
        self.rank, self.world_size = rank, world_size
        self.sources = list(open_sources(config, split, seed) if sources is None else sources)
        if not self.sources:
            raise DataError(f"data.{split} names no source; set it to a path, a source's name, or a list of them.")
        weights = [source.config.weight for source in self.sources]
        shuffle = config.shuffle and split == "train"
        mixed = [weight for weight in weights if weight is not None] if split == "train" else []
        self._order = Mixture([len(source) for source in self.sources], mixed or None, shuffle=shuffle, seed=seed)
        self._endless = split == "train"
        self._assembler: Assembler = PromptAssembler(config, family) if assembler is None else assembler
        self._cache = PixelCache(config.cache_mb << 20)
        self._limits = [source.limits(config) for source in self.sources]
        self.counts: Counter[str] = Counter()
        self._tally: Counter[str] = Counter()  # runs ahead of counts by the batches that wait
        self._start = self._order.state_dict()
        self._state = self._start
        self._resumed = False
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[_Made]] = deque()

    def __len__(self) -> int:
        """Records in one epoch, before filters."""
        return self._order.total

    @property
    def epoch(self) -> float:
        """How often the records were gone through, as of the last batch given out."""
        return sum(self._state["taken"]) / self._order.total

    def __iter__(self) -> Iterator[Batch]:
        if not self._endless and not self._resumed:
            self._go_to(self._start)
        self._resumed = False
        while True:
            made = self._next()
            self.counts = made.counts
            if made.batch is None:
                return
            self._state = made.state  # before the batch is used: a checkpoint written after the step goes on behind it
            yield made.batch

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch given out; what was prepared ahead does not count."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a saved position, on any number of ranks; ``DataError`` if the data or the seed is another."""
        self._go_to(state)
        self._resumed = True

    def close(self) -> None:
        """Ends the thread that prepares batches."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._ahead.clear()

    def _go_to(self, state: Mapping[str, Any]) -> None:
        self.close()
        self._order.load_state_dict(state)
        self._state = dict(state)

    def _next(self) -> _Made:
        if self.config.prefetch == 0:
            return self._make()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="rlvlm-data")
        while len(self._ahead) < 1 + self.config.prefetch:
            self._ahead.append(self._pool.submit(self._make))
        return self._ahead.popleft().result()

    def _make(self) -> _Made:
        before = Counter(self._tally)
        while True:
            items = self._collect()
            if not items:
                return _Made(None, self._order.state_dict(), Counter(self._tally))
            mine = _slice_of(items, self.rank, self.world_size)
            batch = self._assemble(mine)
            if batch is not None:
                break
        passed_over = self._tally - before
        metrics = {f"sum/data/{name}": float(count) for name, count in passed_over.items()}
        batch = batch.with_meta(epoch=self._order.epoch, metrics={**batch.meta.get("metrics", {}), **metrics})
        return _Made(batch, self._order.state_dict(), Counter(self._tally))

    def _collect(self) -> list[Item]:
        items: list[Item] = []
        fruitless = 0
        while len(items) < self.config.prompts_per_step:
            if not self._endless and self._order.drawn >= self._order.total:
                break
            item = self._draw()
            fruitless = 0 if item is not None else fruitless + 1
            if item is not None:
                items.append(item)
            elif fruitless >= self._order.total:
                raise DataError(
                    f"not one of the {fruitless} records drawn is usable ({dict(self._tally)}); check 'where', the limits and the file "
                    "(rlvlm data check FILE)."
                )
        return items

    def _draw(self) -> Item | None:
        draw = self._order.draw()
        source = self.sources[draw.source]
        origin = source.origin(draw.index)
        try:
            record = source[draw.index]
            if record is None:
                self._tally["filtered_out"] += 1
                return None
            limits = self._limits[draw.source]
            pictures = [Picture(image, limits, origin) for image in record["images"]]
            template = source.config.template or self.config.template
            columns, encoded = self._assembler.encode(record, pictures, template)
        except DataError as error:
            self._fault(error, origin)
            return None
        uid = f"{self.split}.{draw.source}:{source.row(draw.index)}.{source.first + draw.index}@{draw.epoch}"
        return Item(uid, columns, pictures, encoded)

    def _fault(self, error: DataError, origin: str) -> None:
        over_long = isinstance(error, OverLongError)
        kind, choice = ("over_long", self.config.over_long) if over_long else ("bad_rows", self.config.on_bad_row)
        message = str(error) if str(error).startswith(origin) else f"{origin}: {error}"
        if choice in ("stop", "raise"):
            raise type(error)(message) from error
        self._tally[kind] += 1
        if self._tally[kind] <= _FAULTS_LOGGED:
            _LOG.warning("left out: %s", message)

    def _assemble(self, items: Sequence[Item]) -> Batch | None:
        table = MediaTable(self.family, self._cache)
        kept, places = [], []
        for item in items:
            try:
                places.append(table.add(item.pictures))
            except DataError as error:  # pixels that can't be decoded behind a header that can
                self._fault(error, item.pictures[0].origin)
            else:
                kept.append(item)
        if not kept:
            return None
        table.process()
        return self._assembler.assemble(kept, places, table)


def row_of(uid: str) -> int:
    """The number, in its file, of the record that a loader's prompt was made from."""
    return int(uid.partition(":")[2].partition(".")[0])


def _slice_of(items: Sequence[Item], rank: int, world_size: int) -> Sequence[Item]:
    return items[len(items) * rank // world_size : len(items) * (rank + 1) // world_size]
