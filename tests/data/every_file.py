"""One set of rows as every kind of file that the library reads, and every way in which such a file holds a picture."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

Rows = Sequence[Mapping[str, Any]]


_STARTS = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpeg", b"II*\0": ".tiff", b"MM\0*": ".tiff"}


def suffix(content: bytes) -> str:
    """What a picture file of this content is called, told from its first bytes alone: it may be broken behind them."""
    return next(name for start, name in _STARTS.items() if content.startswith(start))


# ---------------------------------------------------------------------- pictures


def as_path(content: bytes, folder: Path) -> str:
    """Beside the data file, or in a folder there."""
    number = len(list(folder.glob("pictures/*")))
    name = Path("pictures", f"{number}{suffix(content)}")
    (folder / "pictures").mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return str(name)


def as_base64(content: bytes, _: Path) -> str:
    return base64.b64encode(content).decode()


def as_data_url(content: bytes, _: Path) -> str:
    return f"data:image/{suffix(content)[1:]};base64,{base64.b64encode(content).decode()}"


FORMS: dict[str, Callable[[bytes, Path], Any]] = {
    "path": as_path,
    "file_url": lambda content, folder: (folder / as_path(content, folder)).as_uri(),
    "raw_base64": as_base64,
    "data_url": as_data_url,
    "bytes": lambda content, _: content,
    "struct_bytes": lambda content, _: {"bytes": content, "path": None},
    "struct_path": lambda content, folder: {"bytes": None, "path": as_path(content, folder)},
    "member": lambda content, _: content,
}
"""A picture's content as a row's entry; ``member`` is a file of its own inside a tar."""

TEXTS = ("path", "file_url", "raw_base64", "data_url")
BINARY = ("bytes", "struct_bytes", "struct_path")


# ---------------------------------------------------------------------- files


def jsonl(rows: Rows, folder: Path) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def json_array(rows: Rows, folder: Path) -> str:
    path = folder / "rows.json"
    path.write_text(json.dumps(list(rows), indent=1), encoding="utf-8")
    return str(path)


def split_of_folder(rows: Rows, folder: Path) -> str:
    """A folder with files of two splits."""
    (folder / "train-00000.jsonl").write_text(json.dumps({"problem": "of another split"}) + "\n", encoding="utf-8")
    Path(jsonl(rows, folder)).rename(folder / "test-00000.jsonl")
    return f"{folder}@test"


def parquet(rows: Rows, folder: Path) -> str:
    path = folder / "rows.parquet"
    pq.write_table(table(rows), path, row_group_size=2)
    return str(path)


def arrow(rows: Rows, folder: Path) -> str:
    path, content = folder / "rows.arrow", table(rows)
    with pa.ipc.new_stream(str(path), content.schema) as writer:
        writer.write_table(content, max_chunksize=2)
    return str(path)


def saved(rows: Rows, folder: Path) -> str:
    """A folder as ``datasets`` saves it; its pictures lie beside it."""
    datasets.Dataset(table(rows)).save_to_disk(folder / "saved")
    if (folder / "pictures").exists():
        (folder / "pictures").rename(folder / "saved" / "pictures")
    return str(folder / "saved")


def table(rows: Rows) -> pa.Table:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return pa.Table.from_pydict({name: [row.get(name) for row in rows] for name in columns})


def tar(rows: Rows, folder: Path) -> str:
    """Samples of WebDataset: a ``json`` member, and a member for each picture that is given as bytes."""
    path = folder / "rows.tar"
    with tarfile.open(path, "w") as file:
        for number, row in enumerate(rows):
            held = {name: value for name, value in row.items() if not _is_members(value)}
            add_member(file, f"{number:05d}.json", json.dumps(held).encode())
            for name, value in row.items():
                pictures = (value if isinstance(value, list) else [value]) if name not in held else []
                for place, content in enumerate(pictures):
                    add_member(file, f"{number:05d}.{place}{suffix(content)}", content)
    return str(path)


def _is_members(value: Any) -> bool:
    return isinstance(value, bytes) or (isinstance(value, list) and bool(value) and isinstance(value[0], bytes))


def add_member(file: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    file.addfile(entry, io.BytesIO(content))


CONTAINERS: dict[str, tuple[Callable[[Rows, Path], str], tuple[str, ...]]] = {
    "jsonl": (jsonl, TEXTS),
    "json": (json_array, ("path", "data_url")),
    "folder": (split_of_folder, ("path", "raw_base64")),
    "parquet": (parquet, TEXTS + BINARY),
    "arrow": (arrow, ("path", "bytes", "struct_bytes")),
    "saved": (saved, ("path", "bytes", "struct_bytes")),
    "tar": (tar, ("member", "data_url", "raw_base64")),
}
"""Files, and the forms of pictures that each holds."""

KINDS = [(container, form) for container, (_, forms) in CONTAINERS.items() for form in forms]


def write(kind: tuple[str, str], folder: Path, rows: Rows) -> str:
    """Rows whose pictures are bytes, in columns ``image`` or ``images``, as a file of this kind; gives the source's path."""
    container, form = kind
    formed = [{name: _formed(value, form, folder) for name, value in row.items()} for row in rows]
    return CONTAINERS[container][0](formed, folder)


def _formed(value: Any, form: str, folder: Path) -> Any:
    if isinstance(value, list):
        return [_formed(one, form, folder) for one in value]
    return FORMS[form](value, folder) if isinstance(value, bytes) else value
