"""Batches as files: safetensors for tensors, parquet for Python columns and pictures, JSON for the tables; no pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvlm.batch import Batch, Media, Prompt, Span
from rlvlm.data.media import Picture
from rlvlm.errors import DataError, RlvlmError

FORMAT = 1
TENSORS, COLUMNS, PICTURES, TABLES = "tensors.safetensors", "columns.parquet", "pictures.parquet", "tables.json"


def save_batch(batch: Batch, folder: str | Path) -> None:
    """Writes a batch into a folder: fields, Python columns, both tables, pictures as their encoded files, and ``meta``.

    Raises ``DataError`` for a column, record or ``meta`` entry that JSON can't hold, naming it.
    """
    path = Path(folder)
    names = [name for name in batch.objects if name != "spans"]
    tables = {
        "format": FORMAT,
        "meta": batch.meta,
        "prompts": [
            {"uid": p.uid, "record": dict(p.record), "spans": [_span(span) for span in p.spans]} for p in batch.prompts
        ],
        "media": [{"key": m.key, "size": list(m.size)} for m in batch.media],
        "spans": [[_span(span) for span in row] for row in batch.objects["spans"]]
        if "spans" in batch.objects
        else None,
        "columns": names,
    }
    text = _json(tables, "the batch's tables")
    columns = {name: [_json(v, f"column '{name}'") for v in batch.objects[name]] for name in names}
    path.mkdir(parents=True, exist_ok=True)
    (path / TABLES).write_text(text, encoding="utf-8")
    pq.write_table(pa.table(dict(columns)), path / COLUMNS)
    pictures = [_encoded(m.image) for m in batch.media]
    pq.write_table(pa.table({"picture": pa.array(pictures, pa.binary())}), path / PICTURES)
    save_file(_tensors(batch), path / TENSORS)


def load_batch(folder: str | Path) -> Batch:
    """Reads what :func:`save_batch` wrote.

    Raises ``DataError`` naming the file that is missing, damaged or of another version, or the folder where its files do not fit together.
    """
    path = Path(folder)
    if not (path / TABLES).is_file():
        raise DataError(f"'{path}' holds no saved batch (there is no {TABLES}).")
    tables = _read(path / TABLES, lambda file: json.loads(file.read_text(encoding="utf-8")))
    found = tables.get("format") if isinstance(tables, dict) else None
    if found != FORMAT:
        raise DataError(f"'{path / TABLES}' is of format {found!r}; this version reads format {FORMAT}.")
    tensors = _read(path / TENSORS, load_file)
    columns = _read(path / COLUMNS, pq.read_table)
    pictures = _read(path / PICTURES, lambda file: pq.read_table(file)["picture"].to_pylist())
    try:
        return _batch_of(tables, tensors, columns, pictures, path)
    except (RlvlmError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"the files of '{path}' do not fit together ({type(error).__name__}: {error}).") from error


def _read(file: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(file)
    except FileNotFoundError as error:
        raise DataError(f"'{file}', a part of a saved batch, is missing.") from error
    except (OSError, ValueError, LookupError, RecursionError, MemoryError, SafetensorError, pa.ArrowException) as error:
        raise DataError(
            f"'{file}', a part of a saved batch, can't be read ({type(error).__name__}: {str(error)[:200]}); save the batch again."
        ) from error


def _batch_of(tables: Any, tensors: Mapping[str, Tensor], columns: Any, pictures: list[Any], path: Path) -> Batch:
    objects: dict[str, list[Any]] = {
        name: [json.loads(value) for value in columns[name].to_pylist()] for name in tables["columns"]
    }
    if tables["spans"] is not None:
        objects["spans"] = [tuple(Span(*span) for span in row) for row in tables["spans"]]
    groups: dict[str, dict[str, Tensor]] = {"field": {}, "prompt": {}, "ids": {}, "engine_ids": {}, "pixels": {}}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(":")
        groups[group][rest] = tensor
    return Batch(
        {_key(name): tensor for name, tensor in groups["field"].items()},
        objects=objects,
        prompts=[
            Prompt(
                entry["uid"],
                entry["record"],
                groups["ids"][str(number)],
                groups["engine_ids"][str(number)],
                tuple(Span(*span) for span in entry["spans"]),
            )
            for number, entry in enumerate(tables["prompts"])
        ],
        media=[
            Media(
                entry["key"],
                (entry["size"][0], entry["size"][1]),
                None if picture is None else Picture(picture, origin=f"picture {number} of '{path}'"),
                _pixels_of(groups["pixels"], number),
            )
            for number, (entry, picture) in enumerate(zip(tables["media"], pictures, strict=True))
        ],
        prompt_tensors=groups["prompt"],
        meta=tables["meta"],
    )


def _tensors(batch: Batch) -> dict[str, Tensor]:
    fields = {f"field:{_name(key)}": batch[key] for key in batch.keys() if key not in batch.prompt_tensors}
    prompts = {f"prompt:{name}": value for name, value in batch.prompt_tensors.items()}
    ids = {f"ids:{number}": prompt.ids for number, prompt in enumerate(batch.prompts)}
    engine_ids = {f"engine_ids:{number}": prompt.engine_ids for number, prompt in enumerate(batch.prompts)}
    pixels = {f"pixels:{n}/{name}": value for n, m in enumerate(batch.media) for name, value in m.pixels.items()}
    every = {**fields, **prompts, **ids, **engine_ids, **pixels}
    return {
        name: value.detach().to("cpu", copy=True).contiguous() for name, value in every.items()
    }  # no shared storage


def _pixels_of(pixels: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    head = f"{number}/"
    return {name.removeprefix(head): value for name, value in pixels.items() if name.startswith(head)}


def _encoded(image: Any) -> bytes | None:
    if image is None:
        return None
    handle = image if isinstance(image, Picture) else Picture(image)
    return handle.content()


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as error:
        raise DataError(f"{what} can't be saved as JSON ({error}); drop it or turn it into plain values.") from error


def _span(span: Span) -> list[int]:
    return [span.media, span.offset, span.length]


def _name(key: Any) -> str:
    return key if isinstance(key, str) else "/".join(key)


def _key(name: str) -> Any:
    return tuple(name.split("/", 1)) if "/" in name else name
