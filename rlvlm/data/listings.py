"""Other libraries' lists of data sets, named for what they are with the sources that read the same data here.

LLaMA-Factory keeps a ``dataset_info.json``, VLM-R1 a YAML of ``datasets``; neither holds a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from rlvlm.errors import DataError

_LARGEST = 64 << 20  # bytes of a file that is parsed whole to see what it is
_PLACES = ("file_name", "hf_hub_url", "ms_hub_url", "script_url", "cloud_file_name")
_COLUMNS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "history": "history",
    "messages": "messages",
    "system": "system",
    "images": "images",
}
"""LLaMA-Factory's names of columns, and ours."""
_DEFAULTS = {"prompt": "instruction", "query": "input", "response": "output"}
_SHOWN = 4


def refuse_no_rows(path: str) -> None:
    """Raises ``DataError`` for a file of one JSON object that is no row: a list of data sets, or rows under a key.

    A file of JSON lines under the name ``.json`` passes.
    """
    if os.path.getsize(path) > _LARGEST or _reads_as_lines(path):
        return
    try:
        with open(path, encoding="utf-8-sig") as file:
            value = json.load(file)
    except (ValueError, RecursionError):
        return  # read line by line, each line says what is wrong with it
    if is_dataset_info(value):
        raise DataError(_of_dataset_info(path, value))
    rows = next(
        (name for name, held in value.items() if isinstance(held, list) and held and isinstance(held[0], dict)), None
    )
    remedy = (
        f"write the list under '{rows}' to a file of its own"
        if rows
        else "write the rows as an array, or one to a line"
    )
    raise DataError(f"{path}: the file is one JSON object with the keys {list(value)[:8]}, not rows; {remedy}.")


def _reads_as_lines(path: str) -> bool:
    """Whether the first line is a JSON object of its own and no list of data sets."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        line = next((line for line in file if line.strip()), "")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not is_dataset_info(value)


def is_dataset_info(value: Any) -> bool:
    """Whether this is the content of a LLaMA-Factory ``dataset_info.json``."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(entry, Mapping) and any(name in entry for name in _PLACES) for entry in value.values())
    )


def _of_dataset_info(path: str, value: Mapping[str, Mapping[str, Any]]) -> str:
    shown = [f"{name}: {_flow(_entry(path, entry))}" for name, entry in list(value.items())[:_SHOWN]]
    more = f" (and {len(value) - _SHOWN} more)" if len(value) > _SHOWN else ""
    return (
        f"{path} is LLaMA-Factory's list of data sets and holds no rows; name the data set's own file as the source: "
        f"{'; '.join(shown)}{more}."
    )


def _entry(path: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The source that reads what an entry of ``dataset_info.json`` names."""
    if "file_name" in entry:
        place = os.path.join(os.path.dirname(path), str(entry["file_name"]))
    else:
        place = f"{next(entry[name] for name in _PLACES if name in entry)}@{entry.get('split', 'train')}"
    given = entry.get("columns") if isinstance(entry.get("columns"), Mapping) else {}
    columns = {
        _COLUMNS[theirs]: str(name)
        for theirs, name in (given or {}).items()
        if theirs in _COLUMNS and name not in (_COLUMNS[theirs], _DEFAULTS.get(theirs))
    }
    if entry.get("formatting") == "sharegpt" and columns.get("messages") == "conversations":
        del columns["messages"]  # told as conversations anyway
    return {"path": place, **({"columns": columns} if columns else {})}


def refuse_listing(path: str) -> None:
    """Raises ``DataError`` for a YAML file, which holds no rows; of VLM-R1's ``datasets`` with the sources to name instead."""
    from omegaconf import OmegaConf

    try:
        value: Any = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # its parsers raise of several kinds; a file that can't be parsed holds no rows either
        raise DataError(
            f"{path}: a YAML file is no data file ({type(error).__name__}); name the rows' own file."
        ) from error
    listed = value.get("datasets") if isinstance(value, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) and "json_path" in one for one in listed):
        raise DataError(f"{path}: a YAML file holds no rows; name the rows' own file (.json, .jsonl, .parquet, .tar).")
    entries = [_flow(_of_sampling(one)) for one in listed]
    raise DataError(
        f"{path} is VLM-R1's list of data sets and holds no rows; name their files as sources, with image_folder where the pictures "
        f"lie elsewhere: [{', '.join(entries)}]."
    )


def _of_sampling(entry: Mapping[str, Any]) -> dict[str, Any]:
    kind, _, count = str(entry.get("sampling_strategy", "all")).partition(":")
    return {"path": str(entry["json_path"]), **({"limit": int(count)} if kind == "first" and count.isdigit() else {})}


def _flow(entry: Mapping[str, Any]) -> str:
    """A mapping as YAML writes it on one line."""
    inner = (f"{name}: {_flow(value) if isinstance(value, Mapping) else value}" for name, value in entry.items())
    return f"{{{', '.join(inner)}}}"
