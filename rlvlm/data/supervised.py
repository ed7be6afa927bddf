"""Batches of dialogues for supervised training: a row for each dialogue, loss on the assistant's turns alone.

Dialogues come one by one, or in the bins that ``rlvlm data pack`` filled: then a step's batch holds whole bins, and a train
engine whose ``token_budget`` is a bin's budget lays each out as one packed row, samples apart in attention and positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from rlvlm.batch import Batch, Prompt
from rlvlm.data.config import DataConfig
from rlvlm.data.dialogues import Dialogue, dialogue_turns, encode_dialogue, tools_of
from rlvlm.data.loader import Item, Loader
from rlvlm.data.media import Picture
from rlvlm.data.media_table import MediaTable
from rlvlm.data.prompts import PromptFamily, check_length, move_spans, template_of, turns_key
from rlvlm.data.records import PICTURE_COLUMNS
from rlvlm.errors import DataError

_DIALOGUES_KEPT = 4096


@dataclass(frozen=True)
class Row:
    """One dialogue on its way into a batch: name, record, tokens, and which of its item's pictures are its own."""

    uid: str
    record: Mapping[str, Any]
    dialogue: Dialogue
    pictures: slice


def supervised_rows(rows: Sequence[Row], places: Sequence[Sequence[int]], table: MediaTable) -> Batch:
    """Dialogues as rows of a batch, each a group of its own, right-padded.

    The part before the first answer is the row's prompt, with its pictures; pictures of later turns stand in the row's own
    ``spans``. Fields: ``input_ids``, ``attention_mask``, ``loss_mask``, ``turn_ids`` [B, L] and ``group_ids`` [B].

    Args:
        places: of each row, its pictures' places in the table.
    """
    prompts, later = [], []
    for row, media in zip(rows, places, strict=True):
        dialogue = row.dialogue
        spans = move_spans(dialogue.spans, media)
        first = tuple(span for span in spans if span.offset < dialogue.prompt_length)
        later.append(spans[len(first) :])
        prompts.append(Prompt(row.uid, row.record, dialogue.ids[: dialogue.prompt_length], dialogue.engine_ids, first))
    dialogues = [row.dialogue for row in rows]
    lengths = torch.tensor([len(dialogue.ids) for dialogue in dialogues])
    fields = {
        "input_ids": pad_sequence([dialogue.ids for dialogue in dialogues], batch_first=True),
        "attention_mask": torch.arange(int(lengths.max())) < lengths[:, None],
        "loss_mask": pad_sequence([dialogue.loss_mask for dialogue in dialogues], batch_first=True),
        "turn_ids": pad_sequence([dialogue.turn_ids for dialogue in dialogues], batch_first=True, padding_value=-1),
        "group_ids": torch.arange(len(dialogues)),
    }
    objects = {"spans": later} if any(later) else None
    return Batch(fields, objects=objects, prompts=prompts, media=table.media)


class DialogueAssembler:
    """Dialogues to learn from; ``max_prompt_tokens`` bounds each whole dialogue."""

    def __init__(self, config: DataConfig, family: PromptFamily) -> None:
        self._config, self._family = config, family
        self._kept: dict[Any, Dialogue] = {}  # small data comes again, epoch after epoch

    def encode(
        self, record: Mapping[str, Any], pictures: Sequence[Picture], template: str | None
    ) -> tuple[Mapping[str, Any], list[Row]]:
        """The record without its pictures, and its rows: one, or as many as a bin holds samples."""
        samples = record.get("samples")
        if samples is None:
            whole = slice(0, len(pictures))
            return _columns(record), [self._row("", record, pictures, whole, template)]
        rows, start = [], 0
        for number, sample in enumerate(samples):
            own = slice(start, start + int(sample["pictures"]))
            held = {**sample, "images": pictures[own]}
            row = self._row(f"#{number}", held, pictures[own], own, template)
            if len(row.dialogue.ids) != sample["tokens"]:
                raise DataError(
                    f"sample {number} of the bin has {len(row.dialogue.ids)} tokens, and had {sample['tokens']} when it was packed; "
                    "train with the model and the pixel limits that it was packed for."
                )
            rows.append(row)
            start = own.stop
        if start != len(pictures):
            raise DataError(
                f"the bin's samples name {start} pictures, and it holds {len(pictures)}; it was packed otherwise."
            )
        return _columns({name: value for name, value in record.items() if name != "samples"}), rows

    def _row(
        self, suffix: str, record: Mapping[str, Any], pictures: Sequence[Picture], own: slice, template: str | None
    ) -> Row:
        chosen = template_of(record, template)
        turns = dialogue_turns(record, chosen, self._config.system)
        tools = tools_of(record)
        key = (turns_key(turns), repr(tools), tuple(picture.size for picture in pictures))
        dialogue = self._kept.get(key)
        if dialogue is None:
            dialogue = encode_dialogue(turns, pictures, self._family, tools)
            if len(self._kept) < _DIALOGUES_KEPT:
                self._kept[key] = dialogue
        check_length(len(dialogue.ids), self._config.max_prompt_tokens, dialogue.spans)
        return Row(suffix, _columns(record), dialogue, own)

    def assemble(self, items: Sequence[Item], places: Sequence[Sequence[int]], table: MediaTable) -> Batch:
        """One row for each dialogue of the items; ``bin`` says which item it came with, where bins are read."""
        rows, of_row, bins = [], [], []
        for number, (item, media) in enumerate(zip(items, places, strict=True)):
            for row in item.encoded:
                rows.append(Row(item.uid + row.uid, row.record, row.dialogue, row.pictures))
                of_row.append(media[row.pictures])
                bins.append(number)
        batch = supervised_rows(rows, of_row, table)
        packed = any(item.encoded[0].uid for item in items)
        return batch.with_objects(bin=bins) if packed else batch


def _columns(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in PICTURE_COLUMNS}


def supervised_loader(config: DataConfig, family: PromptFamily, seed: int = 0, **options: Any) -> Loader:
    """A :class:`~rlvlm.data.loader.Loader` of dialogues: ``prompts_per_step`` dialogues, or bins, a batch."""
    return Loader(config, family, seed, assembler=DialogueAssembler(config, family), **options)
