"""The K nearest concepts of each picture by cosine, exactly, in chunks, with memory that grows with neither."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlvlm.data.concept_balance.embeddings import Floats, join_parts, save_array
from rlvlm.data.concept_balance.vocabulary import Vocabulary
from rlvlm.data.jobs import Job, write_atomic
from rlvlm.data.progress import Progress
from rlvlm.data.workers import Chunk, plan_chunks, run_chunks
from rlvlm.errors import ConfigError, DataError

_PICTURES = 1 << 14  # pictures whose result is one part of the job
_ROWS, _COLUMNS = 2048, 4096  # of one product of pictures and concept names


@dataclass(frozen=True)
class _NearestTask:
    pictures: Floats
    names: Tensor
    vocabulary: Vocabulary
    k: int
    index: Any = None


def nearest_concepts(
    pictures: Floats,
    names: Floats,
    vocabulary: Vocabulary,
    k: int,
    folder: str | Path,
    *,
    faiss: bool = False,
    quiet: bool = False,
) -> NDArray[np.int32]:
    """[N, k] the nearest concepts of each picture, nearest first, memory-mapped; -1 for pictures without an embedding.

    Args:
        pictures: [N, D], any norm; rows with NaN, and zeros alone, are pictures without an embedding.
        names: [T, D] embeddings of the vocabulary's names; a concept is as near as the nearest of its names.
        faiss: search by a flat faiss index; for vocabularies with one name a concept.

    Goes on where a killed run stopped. Raises ``DataError`` for shapes that don't fit.
    """
    _check(pictures, names, vocabulary, k)
    unit = torch.from_numpy(np.array(names, np.float32))
    unusable = (~unit.isfinite().all(dim=1) | ~unit.any(dim=1)).nonzero().flatten().tolist()
    if unusable:
        raise DataError(
            f"the embedding of concept name '{vocabulary.texts[unusable[0]]}' (row {unusable[0]}) is NaN, infinite or all zeros, as "
            f"{len(unusable)} of {len(unit)} are; embed these names again or take them out of the vocabulary."
        )
    unit = unit / unit.norm(dim=1, keepdim=True).clamp_min(1e-12)
    task = _NearestTask(pictures, unit, vocabulary, k, _faiss_index(unit, vocabulary) if faiss else None)
    settings = {
        "step": "nearest",
        "pictures": list(pictures.shape),
        "k": k,
        "faiss": faiss,
        "names": _digest(unit.numpy(), vocabulary.starts),
        "pictures_hash": _digest(
            *(pictures[start : start + _PICTURES] for start in range(0, len(pictures), _PICTURES))
        ),
    }
    job = Job(folder, settings)
    plan, pending = plan_chunks(job, len(pictures), _PICTURES, ".npy")
    before = len(pictures) - sum(chunk.end - chunk.start for chunk in pending)
    with Progress("nearest concepts", len(pictures), done=before, unit="pictures", quiet=quiet) as progress:
        run_chunks(_search_chunk, task, pending, workers=1, progress=progress)
    found: NDArray[np.int32] = join_parts(job, plan, "nearest.npy")
    return found


def _check(pictures: Floats, names: Floats, vocabulary: Vocabulary, k: int) -> None:
    if pictures.shape[1] != names.shape[1]:
        raise DataError(
            f"pictures have {pictures.shape[1]} dimensions and concepts {names.shape[1]}; both come from one model."
        )
    if len(names) != len(vocabulary.texts):
        raise DataError(
            f"there are {len(names)} concept embeddings for {len(vocabulary.texts)} names of the vocabulary."
        )
    if not 1 <= k <= len(vocabulary.concepts):
        raise DataError(f"top_k is between 1 and the {len(vocabulary.concepts)} concepts, got {k}.")


def _digest(*arrays: Any) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _search_chunk(task: _NearestTask, chunk: Chunk) -> None:
    found = np.full((chunk.end - chunk.start, task.k), -1, np.int32)
    for start in range(chunk.start, chunk.end, _ROWS):
        block = np.array(task.pictures[start : min(start + _ROWS, chunk.end)], np.float32)
        known = np.isfinite(block).all(1) & block.any(1)
        nearest = (
            _search_faiss(task, block[known])
            if task.index is not None
            else _search(task, torch.from_numpy(block[known]))
        )
        found[start - chunk.start : start - chunk.start + len(block)][known] = nearest
    write_atomic(chunk.target, lambda path: save_array(found, path))


def _search(task: _NearestTask, pictures: Tensor) -> NDArray[np.int32]:
    """Keeps the best k so far; of later concepts only those that beat the k-th are looked at, which soon are few."""
    best = torch.full((len(pictures), task.k), -torch.inf)
    concepts = torch.full((len(pictures), task.k), -1, dtype=torch.int64)
    for first, near in _similarities(task, pictures):
        rows, columns = (near > best[:, -1:]).nonzero(as_tuple=True)
        if len(rows) > near.shape[1] * len(pictures) // 4:  # the first chunk: everything beats nothing
            least = near.topk(min(task.k, near.shape[1]), dim=1).values[:, -1:]
            rows, columns = (near >= least).nonzero(
                as_tuple=True
            )  # all that are equal to the k-th: the smaller concept wins
        best, concepts = _merge(best, concepts, rows, near[rows, columns], columns + first)
    return concepts.numpy().astype(np.int32)


def _similarities(task: _NearestTask, pictures: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Chunks of concepts: the number of the first, and [n, m] how near each is."""
    if task.vocabulary.one_name_each:
        for start in range(0, len(task.names), _COLUMNS):
            yield start, pictures @ task.names[start : start + _COLUMNS].T
        return
    ends = np.append(task.vocabulary.starts[1:], len(task.names))
    first = 0
    while first < len(ends):
        begin = int(task.vocabulary.starts[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + _COLUMNS, side="right")))
        near = (pictures @ task.names[begin : int(ends[last - 1])].T).numpy()
        yield first, torch.from_numpy(np.maximum.reduceat(near, task.vocabulary.starts[first:last] - begin, axis=1))
        first = last


def _merge(best: Tensor, concepts: Tensor, rows: Tensor, values: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """The best k of each row from those held and those found; equal ones by the smaller concept."""
    count, k = best.shape
    all_rows = torch.cat([torch.arange(count).repeat_interleave(k), rows])
    all_values = torch.cat([best.flatten(), values])
    all_concepts = torch.cat([concepts.flatten(), found])
    order = torch.from_numpy(np.lexsort((all_concepts.numpy(), -all_values.numpy(), all_rows.numpy())))
    sizes = torch.bincount(all_rows, minlength=count)
    picked = order[(sizes.cumsum(0) - sizes)[:, None] + torch.arange(k)]
    return all_values[picked], all_concepts[picked]


def _faiss_index(names: Tensor, vocabulary: Vocabulary) -> Any:
    if not vocabulary.one_name_each:
        raise ConfigError(
            "faiss searches names, not concepts with several of them; leave --faiss out for such a vocabulary."
        )
    try:
        faiss = importlib.import_module("faiss")
    except ImportError as error:
        raise ConfigError("--faiss takes the faiss library: pip install faiss-cpu.") from error
    index = faiss.IndexFlatIP(names.shape[1])
    index.add(names.numpy())
    return index


def _search_faiss(task: _NearestTask, pictures: NDArray[np.float32]) -> NDArray[np.int32]:
    if not len(pictures):
        return np.zeros((0, task.k), np.int32)
    _, found = task.index.search(np.ascontiguousarray(pictures), task.k)
    return np.asarray(found, np.int32)
