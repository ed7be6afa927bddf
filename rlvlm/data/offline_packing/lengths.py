"""Step 1 of offline packing: tokens and vision patches of each sample, from its text and its pictures' headers.

No pixels are decoded. The count is that of the very ids that training will see, since the same function makes both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlvlm.data.dialogues import dialogue_of
from rlvlm.data.jobs import Job, write_atomic
from rlvlm.data.media import Picture
from rlvlm.data.progress import Progress
from rlvlm.data.workers import Chunk, SourceTask, plan_chunks, run_chunks
from rlvlm.errors import DataError

_CHUNK = 1000
_FAULTS_KEPT = 10
_TEXT = "How many of the 1,234 pictures show α-β? 图中有多少？"  # a tokenizer and
_SIZES = ((640, 480), (300, 900), (1920, 1080))  # a processor are known by what they make of these


@dataclass(frozen=True)
class Lengths:
    """Costs of a source's rows, memory-mapped.

    Attributes:
        tokens, patches: [N] int32; a row that is left out (by ``where``, or as a bad one) has 0 tokens.
        faults: the first ten bad rows, each with file and row, and how many there are.
    """

    tokens: NDArray[np.int32]
    patches: NDArray[np.int32]
    faults: list[str]
    fault_count: int

    @classmethod
    def load(cls, folder: str | Path) -> Lengths:
        """What :func:`count_lengths` wrote into a folder."""
        note = Path(folder) / "lengths.json"
        if not note.exists():
            raise DataError(f"'{folder}' holds no finished lengths; run the lengths step first.")
        said = json.loads(note.read_text(encoding="utf-8"))
        tokens = np.load(Path(folder) / "tokens.npy", mmap_mode="r")
        patches = np.load(Path(folder) / "patches.npy", mmap_mode="r")
        return cls(tokens, patches, said["first_faults"], said["faults"])


def count_lengths(task: SourceTask, folder: str | Path, *, workers: int = 1, quiet: bool = False) -> Lengths:
    """Counts every row of the source and writes ``tokens.npy``, ``patches.npy`` and ``lengths.json``.

    Goes on where a killed run stopped. A bad row raises ``DataError`` naming file and row, or is left out and counted
    where ``data.on_bad_row`` is ``skip``.
    """
    source = task.source()
    settings = {"step": "lengths", "rows": len(source), **describe(task)}
    job = Job(folder, settings)
    total = len(source)
    plan, pending = plan_chunks(job, total, _CHUNK, ".npy")
    before = total - sum(chunk.end - chunk.start for chunk in pending)
    with Progress("lengths", total, done=before, quiet=quiet) as progress:
        run_chunks(_count_chunk, task, pending, workers=workers, progress=progress)
    _merge(job, plan, total)
    return Lengths.load(folder)


def describe(task: SourceTask) -> dict[str, object]:
    """What decides a row's cost: the source, the templates, the pictures' limits and the model's tokens."""
    config, family = task.config, task.family()
    return {
        "source": repr(config.train),
        "data_files": task.source().fingerprints(),
        "template": config.template,
        "system": config.system,
        "columns": dict(config.columns),
        "pixels": [config.min_pixels, config.max_pixels],
        "on_bad_row": config.on_bad_row,
        "vocabulary": len(family.tokenizer),
        "tokens_of_a_text": list(family.tokenizer(_TEXT)["input_ids"]),
        "chat_template": family.tokenizer.chat_template,
        "tokens_and_patches_of_sizes": [[family.image_tokens(size), family.patches(size)] for size in _SIZES],
        "seed": task.seed,
    }


def _count_chunk(task: SourceTask, chunk: Chunk) -> None:
    source, config, family = task.source(), task.config, task.family()
    limits = source.limits(config)
    costs = np.zeros((chunk.end - chunk.start, 2), np.int32)
    faults = []
    for place, index in enumerate(range(chunk.start, chunk.end)):
        origin = source.origin(index)
        try:
            record = source[index]
            if record is None:
                continue
            pictures = [Picture(image, limits, origin) for image in record["images"]]
            dialogue = dialogue_of(record, pictures, family, source.config.template or config.template, config.system)
            costs[place] = len(dialogue.ids), sum(family.patches(picture.size) for picture in pictures)
        except DataError as error:
            message = str(error) if str(error).startswith(origin) else f"{origin}: {error}"
            if config.on_bad_row == "stop":
                raise DataError(message) from error
            costs[place] = 0
            faults.append(message)
    if faults:
        note = chunk.target.with_suffix(".json")
        write_atomic(note, json.dumps({"count": len(faults), "first": faults[:_FAULTS_KEPT]}).encode())
    write_atomic(chunk.target, lambda path: _save(path, costs))


def _save(path: Path, array: NDArray[np.int32]) -> None:
    with open(path, "wb") as file:
        np.save(file, array)


def _merge(job: Job, plan: list[Chunk], total: int) -> None:
    note = job.folder / "lengths.json"
    if note.exists():
        return
    tokens, patches = np.zeros(total, np.int32), np.zeros(total, np.int32)
    first: list[str] = []
    count = 0
    for chunk in plan:
        part = np.load(job.part(chunk.number, ".npy"))
        tokens[chunk.start : chunk.end], patches[chunk.start : chunk.end] = part[:, 0], part[:, 1]
        faults = job.part(chunk.number, ".json")
        if faults.exists():
            said = json.loads(faults.read_text(encoding="utf-8"))
            first, count = first + said["first"], count + said["count"]
    write_atomic(job.folder / "tokens.npy", lambda path: _save(path, tokens))
    write_atomic(job.folder / "patches.npy", lambda path: _save(path, patches))
    summary = {
        "rows": total,
        "counted": int((tokens > 0).sum()),
        "tokens": int(tokens.sum(dtype=np.int64)),
        "patches": int(patches.sum(dtype=np.int64)),
        "faults": count,
        "first_faults": first[:_FAULTS_KEPT],
    }
    write_atomic(note, json.dumps(summary, indent=1).encode())
