"""Step 3 of offline packing: each bin as one sample of a WebDataset tar, pictures untouched, dialogues whole.

A sample holds its pictures as ``000.jpg``, ``001.png``, … and a JSON with its ``samples`` (messages of all turns, number of
pictures, cost, row) and their ``boundaries`` in tokens. Equal input gives equal bytes.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlvlm.data.dialogues import dialogue_turns, tools_of
from rlvlm.data.jobs import Job, file_hash, write_atomic
from rlvlm.data.media import Picture
from rlvlm.data.offline_packing.bins import Bins, Budget
from rlvlm.data.offline_packing.lengths import Lengths, describe
from rlvlm.data.order import shuffled
from rlvlm.data.progress import Progress
from rlvlm.data.prompts import template_of
from rlvlm.data.workers import Chunk, SourceTask, plan_chunks, run_chunks
from rlvlm.errors import ConfigError, DataError

_MAGIC = (
    (b"\x89PNG", "png"),
    (b"\xff\xd8", "jpg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
)


@dataclass(frozen=True)
class ShardTask:
    """What a process needs to write shards; it opens the source and the arrays itself.

    ``seed`` shuffles the bins: those found first hold the longest samples, so in their own order the lengths of training data would fall.
    """

    source: SourceTask
    lengths: str
    bins: str
    folder: str
    seed: int = 0


def save_bins(bins: Bins, folder: str | Path) -> dict[str, Any]:
    """Writes ``samples.npy``, ``offsets.npy``, ``over_long.npy`` and ``bins.json``, the report, which it returns."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in ("samples", "offsets", "over_long"):
        write_atomic(Path(folder) / f"{name}.npy", partial(_save_array, getattr(bins, name)))
    report = {
        "max_tokens": bins.budget.tokens,
        "max_patches": bins.budget.patches,
        "bins": len(bins),
        "samples": len(bins.samples),
        "tokens": bins.tokens,
        "patches": bins.patches,
        "fill": bins.fill,
        "lower_bound": bins.lower_bound,
        "waste": bins.packed / bins.lower_bound - 1 if bins.lower_bound else 0.0,
        "over_long": len(bins.over_long),
        "over_long_kept": bins.kept_over_long,
        "first_over_long_rows": bins.over_long[:10].tolist(),
    }
    write_atomic(Path(folder) / "bins.json", json.dumps(report, indent=1).encode())
    return report


def _save_array(array: Any, path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, array)


def load_bins(folder: str | Path) -> Bins:
    """What :func:`save_bins` wrote, memory-mapped."""
    note = Path(folder) / "bins.json"
    if not note.exists():
        raise DataError(f"'{folder}' holds no finished bins; run the bins step first.")
    said = json.loads(note.read_text(encoding="utf-8"))
    samples, offsets, over_long = (
        np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ("samples", "offsets", "over_long")
    )
    budget = Budget(said["max_tokens"], said["max_patches"])
    return Bins(samples, offsets, over_long, said["tokens"], budget, said["over_long_kept"], said["patches"])


def write_shards(
    task: ShardTask, *, bins_per_shard: int = 256, workers: int = 1, quiet: bool = False
) -> dict[str, Any]:
    """Writes ``shard-000000.tar``, … and ``manifest.json`` with their hashes; goes on where a killed run stopped.

    Returns the manifest. Raises ``DataError`` naming file and row for a picture that can't be read.
    """
    if bins_per_shard < 1:
        raise ConfigError(f"bins_per_shard is at least 1, got {bins_per_shard}.")
    bins = load_bins(task.bins)
    settings = {
        "step": "shards",
        "bins_per_shard": bins_per_shard,
        "seed": task.seed,
        "bins": [file_hash(Path(task.bins) / f"{name}.npy") for name in ("samples", "offsets")],
        **describe(task.source),
    }
    job = Job(task.folder, settings)
    plan, pending = plan_chunks(job, len(bins), bins_per_shard, ".json")
    gone = [chunk for chunk in plan if chunk not in pending and not _shard(task, chunk.number).exists()]
    before = len(bins) - sum(chunk.end - chunk.start for chunk in (*pending, *gone))
    with Progress("shards", len(bins), done=before, unit="bins", quiet=quiet) as progress:
        run_chunks(
            _write_shard, task, sorted([*pending, *gone], key=lambda c: c.number), workers=workers, progress=progress
        )
    shards = [json.loads(chunk.target.read_text(encoding="utf-8")) for chunk in plan]
    manifest = {
        "max_tokens": bins.budget.tokens,
        "max_patches": bins.budget.patches,
        **{name: sum(shard[name] for shard in shards) for name in ("bins", "samples", "tokens", "patches", "bytes")},
        "fill": bins.fill,
        "shards": shards,
    }
    write_atomic(Path(task.folder) / "manifest.json", json.dumps(manifest, indent=1).encode())
    return manifest


def verify_shards(folder: str | Path) -> list[str]:
    """Names of the shards that are missing or whose content is not what the manifest says."""
    note = Path(folder) / "manifest.json"
    if not note.exists():
        raise DataError(f"'{folder}' holds no manifest.json; its shards are not finished.")
    shards = json.loads(note.read_text(encoding="utf-8"))["shards"]
    return [
        shard["name"]
        for shard in shards
        if not (Path(folder) / shard["name"]).exists() or file_hash(Path(folder) / shard["name"]) != shard["sha256"]
    ]


def _shard(task: ShardTask, number: int) -> Path:
    return Path(task.folder) / f"shard-{number:06d}.tar"


def _write_shard(task: ShardTask, chunk: Chunk) -> None:
    target = _shard(task, chunk.number)
    bins, lengths = load_bins(task.bins), Lengths.load(task.lengths)
    totals = {"bins": chunk.end - chunk.start, "samples": 0, "tokens": 0, "patches": 0}

    def write(path: Path) -> None:
        with open(path, "wb") as file:
            sink = _tar_writer(file)
            for place in range(chunk.start, chunk.end):
                rows = bins[shuffled(place, len(bins), f"shards,{task.seed}")].tolist()
                entry, costs = _bin_entry(task.source, place, rows, lengths)
                sink.write(entry)
                for name, value in costs.items():
                    totals[name] += value
            sink.close()

    write_atomic(target, write)
    note = {"name": target.name, **totals, "bytes": target.stat().st_size, "sha256": file_hash(target)}
    write_atomic(chunk.target, json.dumps(note, sort_keys=True).encode())


def _tar_writer(file: Any) -> Any:
    try:
        webdataset = importlib.import_module("webdataset")
    except ImportError as error:
        raise ConfigError("writing shards takes the webdataset library: pip install 'rlvlm[data]'.") from error
    return webdataset.TarWriter(file, user="", group="", mtime=0.0, encoder=False)


def _bin_entry(
    task: SourceTask, number: int, rows: list[int], lengths: Lengths
) -> tuple[dict[str, Any], dict[str, int]]:
    """A bin as a WebDataset sample, and its samples, tokens and patches."""
    source, config = task.source(), task.config
    limits = source.limits(config)
    entry: dict[str, Any] = {"__key__": f"{number:09d}"}
    samples, boundaries, pictures_so_far = [], [0], 0
    for index in rows:
        record = source[index]
        origin = source.origin(index)
        if record is None:
            raise DataError(f"{origin}: the row was counted and is now left out by 'where'; count the lengths again.")
        pictures = [Picture(image, limits, origin) for image in record["images"]]
        for picture in pictures:
            content = picture.content()
            entry[f"{pictures_so_far:03d}.{_kind(content)}"] = content
            pictures_so_far += 1
        tokens = int(lengths.tokens[index])
        boundaries.append(boundaries[-1] + tokens)
        samples.append(_sample(record, source.row(index), len(pictures), tokens, int(lengths.patches[index]), task))
    patches = sum(sample["patches"] for sample in samples)
    note = {"boundaries": boundaries, "patches": patches, "samples": samples, "tokens": boundaries[-1]}
    entry["json"] = json.dumps(note, ensure_ascii=False, sort_keys=True).encode()
    return entry, {"samples": len(rows), "tokens": boundaries[-1], "patches": patches}


def _sample(
    record: Mapping[str, Any], row: int, pictures: int, tokens: int, patches: int, task: SourceTask
) -> dict[str, Any]:
    template = template_of(record, task.source().config.template or task.config.template)
    turns = dialogue_turns(record, template, task.config.system)
    named: dict[str, Any] = {"id": record["id"]} if isinstance(record.get("id"), (str, int)) else {}
    if tools := tools_of(record):
        named["tools"] = tools
    return {"messages": turns, "patches": patches, "pictures": pictures, "row": row, "tokens": tokens, **named}


def _kind(content: bytes) -> str:
    """A picture file's extension, by how it begins."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return next((name for magic, name in _MAGIC if content.startswith(magic)), "ppm")
