"""Embeddings of pictures and concepts in one space: read from files, or made by a CLIP-style model."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from rlvlm.data.files.parquet import cache_folder
from rlvlm.data.identity import check_unchanged, stamp
from rlvlm.data.jobs import Job, fingerprints, write_atomic
from rlvlm.data.media import Picture
from rlvlm.data.progress import Progress
from rlvlm.data.workers import Chunk, SourceTask, plan_chunks, run_chunks
from rlvlm.errors import ConfigError, DataError

_CHUNK = 4096  # pictures whose embeddings are one part of the job
_UNPACKED_ROWS = 4096  # of a parquet column at once

Floats = NDArray[np.floating[Any]]


class JoinedEmbeddings:
    """Embeddings of several files as one [N, D], each slice read when it is asked for."""

    def __init__(self, parts: Sequence[Floats]) -> None:
        self._parts, self._ends = list(parts), np.cumsum([len(part) for part in parts])
        self.shape, self.dtype = (int(self._ends[-1]), parts[0].shape[1]), parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Floats:
        start, end, _ = rows.indices(len(self))
        firsts = self._ends - [len(part) for part in self._parts]
        found = [
            part[max(start - first, 0) : end - first]
            for part, first, last in zip(self._parts, firsts.tolist(), self._ends.tolist(), strict=True)
            if first < end and start < last
        ]
        return np.concatenate(found) if found else np.zeros((0, self.shape[1]), self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return self[:].astype(dtype or self.dtype)


def read_embeddings(path: str, column: str = "embedding") -> Any:
    """[N, D] embeddings, memory-mapped: an ``.npy`` file, or a column of equally long lists of a parquet file.

    Args:
        path: a file, a pattern (``shards/*.npy``) or a folder, whose files are joined in the order of their names.

    Raises ``DataError`` for a missing file, another shape, or values that are no numbers.
    """
    parts = [_read_part(file, column) for file in _embedding_files(path)]
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1:
        raise DataError(f"the files of '{path}' hold embeddings of several lengths: {sorted(widths)}.")
    return parts[0] if len(parts) == 1 else JoinedEmbeddings(parts)


def _embedding_files(path: str) -> list[str]:
    if Path(path).is_file():
        return [path]
    pattern = f"{glob.escape(path)}/*" if Path(path).is_dir() else path
    found = sorted(name for name in glob.glob(pattern) if name.endswith((".npy", ".parquet")))
    if not found:
        raise DataError(f"embeddings '{path}' do not exist.")
    return found


def _read_part(path: str, column: str) -> Floats:
    array = _read_npy(path) if path.endswith(".npy") else _read_npy(str(_unpack_column(path, column)))
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
        raise DataError(
            f"'{path}' holds an array of shape {list(array.shape)} and {array.dtype}; embeddings are [N, D] floats."
        )
    return array


def _unpack_column(path: str, column: str) -> Path:
    """The column as an ``.npy`` file of the cache folder, written a few rows at a time: a column of 2^31 values is no Arrow array."""
    read = stamp(path)
    name = hashlib.blake2b(
        f"{os.path.realpath(path)},{read},{column}".encode(errors="backslashreplace"), digest_size=10
    )
    target = cache_folder() / "embeddings" / f"{name.hexdigest()}.npy"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with pq.ParquetFile(path) as file:
            write_atomic(target, lambda partial: _write_column(partial, file, path, column))
    except (OSError, KeyError, AttributeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"'{path}' holds no column '{column}' of lists of numbers ({error}).") from error
    check_unchanged(path, read)
    os.utime(target, ns=(read[2], read[2]))
    return target


def _write_column(target: Path, file: pq.ParquetFile, path: str, column: str) -> None:
    array, done = np.zeros((0, 0), np.float32), 0
    for batch in file.iter_batches(_UNPACKED_ROWS, columns=[column]):
        lists = batch.column(column)
        lengths = np.unique(lists.value_lengths().to_numpy(zero_copy_only=False))
        widths = {*lengths.tolist(), *([array.shape[1]] if done else ())}
        if len(widths) > 1:
            raise DataError(f"'{path}' holds embeddings of several lengths: {sorted(widths)[:4]}.")
        values = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1)
        if not done:
            shape = (file.metadata.num_rows, values.shape[1])
            array = np.lib.format.open_memmap(target, "w+", values.dtype, shape)
        array[done : done + len(values)] = values
        done += len(values)
    if not done:
        save_array(array, target)


def _read_npy(path: str) -> Floats:
    try:
        array: Floats = np.load(path, mmap_mode="r")
    except (ValueError, EOFError, OSError) as error:  # another file under that name, or one that was cut off
        raise DataError(f"'{path}' is no .npy file that can be read ({error}).") from error
    return array


class ClipModel:
    """A CLIP-style model of transformers with what it needs to read pictures and texts.

    Args:
        path: folder of ``save_pretrained``.
        device: where it runs.

    Raises ``ConfigError`` for a model without picture and text features.
    """

    def __init__(self, path: str, device: str = "cpu") -> None:
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        if not (Path(path) / "config.json").is_file():
            raise ConfigError(f"--clip '{path}' holds no config.json; give a folder written by save_pretrained.")
        self.model = AutoModel.from_pretrained(path).eval().to(device)
        if not (hasattr(self.model, "get_image_features") and hasattr(self.model, "get_text_features")):
            raise ConfigError(
                f"'{path}' is a {type(self.model).__name__}, which gives no picture and text features; give a CLIP-style model."
            )
        self.images, self.tokenizer = (
            AutoImageProcessor.from_pretrained(path, backend="pil"),
            AutoTokenizer.from_pretrained(path),
        )
        self.path, self.device = path, device

    def embed_pictures(self, pictures: Sequence[Any]) -> NDArray[np.float32]:
        """[n, D] embeddings of PIL pictures."""
        inputs = self.images(images=list(pictures), return_tensors="pt").to(self.device)
        return self._features(self.model.get_image_features, inputs)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[n, D] embeddings of texts.

        A model that is told by no attention mask what is padding (SigLIP) reads it, so its texts are padded to their full length.
        """
        padding = True if "attention_mask" in self.tokenizer.model_input_names else "max_length"
        inputs = self.tokenizer(list(texts), padding=padding, truncation=True, return_tensors="pt").to(self.device)
        return self._features(self.model.get_text_features, inputs)

    def _features(self, call: Callable[..., Any], inputs: Any) -> NDArray[np.float32]:
        with torch.inference_mode():
            out = call(**inputs)
        features = out if isinstance(out, torch.Tensor) else out.pooler_output
        array: NDArray[np.float32] = features.float().cpu().numpy()
        return array


def embed_texts(
    model: ClipModel, texts: Sequence[str], template: str = "{}", *, batch: int = 256, quiet: bool = False
) -> Floats:
    """[T, D] embeddings of concept names, each put into ``template`` (such as ``a photo of {}``)."""
    parts = []
    with Progress("concept embeddings", len(texts), unit="names", quiet=quiet) as progress:
        for start in range(0, len(texts), batch):
            parts.append(model.embed_texts([template.format(text) for text in texts[start : start + batch]]))
            progress.add(len(parts[-1]))
    return np.concatenate(parts)


@dataclass(frozen=True)
class _EmbedTask:
    source: SourceTask
    model: ClipModel
    batch: int


def embed_pictures(
    task: SourceTask, model: ClipModel, folder: str | Path, *, batch: int = 64, quiet: bool = False
) -> Floats:
    """[N, D] embeddings of each row's first picture, memory-mapped; NaN for rows without one.

    Goes on where a killed run stopped. A picture that can't be read raises ``DataError``, or is NaN with
    ``data.on_bad_row=skip``.
    """
    source = task.source()
    settings = {
        "step": "embeddings",
        "rows": len(source),
        "source": repr(task.config.train),
        "data_files": source.fingerprints(),
        "model": fingerprints([model.path]),
        "on_bad_row": task.config.on_bad_row,
    }
    job = Job(folder, settings)
    plan, pending = plan_chunks(job, len(source), _CHUNK, ".npy")
    before = len(source) - sum(chunk.end - chunk.start for chunk in pending)
    with Progress("picture embeddings", len(source), done=before, unit="pictures", quiet=quiet) as progress:
        run_chunks(_embed_chunk, _EmbedTask(task, model, batch), pending, workers=1, progress=progress)
    return join_parts(job, plan, "embeddings.npy")


def _embed_chunk(task: _EmbedTask, chunk: Chunk) -> None:
    source, config = task.source.source(), task.source.config
    limits = source.limits(config)
    parts: list[NDArray[np.float32]] = []
    for start in range(chunk.start, chunk.end, task.batch):
        held: dict[int, Any] = {}
        for index in range(start, min(start + task.batch, chunk.end)):
            try:
                record = source[index]
                if record is not None and record["images"]:
                    held[index - start] = Picture(record["images"][0], limits, source.origin(index)).decode()
            except DataError:
                if config.on_bad_row == "stop":
                    raise
        rows = min(start + task.batch, chunk.end) - start
        made = task.model.embed_pictures(list(held.values())) if held else np.zeros((0, _width(task.model)), np.float32)
        part = np.full((rows, made.shape[1]), np.nan, np.float32)
        part[list(held)] = made
        parts.append(part)
    write_atomic(chunk.target, lambda path: save_array(np.concatenate(parts), path))


def _width(model: ClipModel) -> int:
    return model.embed_texts(["a"]).shape[1]


def join_parts(job: Job, plan: Sequence[Chunk], name: str) -> Any:
    """The parts of a finished job as one memory-mapped array, written once."""
    target = job.folder / name
    if not target.exists():
        total = plan[-1].end if plan else 0
        first = np.load(plan[0].target) if plan else np.zeros((0, 0), np.float32)

        def write(path: Path) -> None:
            with open(path, "wb") as file:
                header = {
                    "descr": np.lib.format.dtype_to_descr(first.dtype),
                    "fortran_order": False,
                    "shape": (total, *first.shape[1:]),
                }
                np.lib.format.write_array_header_1_0(file, header)
                for chunk in plan:
                    file.write(np.ascontiguousarray(np.load(chunk.target)).tobytes())

        write_atomic(target, write)
    return np.load(target, mmap_mode="r")


def save_array(array: Any, path: Path) -> None:
    """``np.save`` to a path of any suffix."""
    with open(path, "wb") as file:
        np.save(file, array)
