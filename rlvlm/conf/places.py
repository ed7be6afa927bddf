"""What a recipe names that must be on this machine, or on a hub: models, data files, folders, prompt templates.

Every sentence says what to do when the thing is not there, since a run would stop at it after a directory was made.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvlm.data.config import SourceConfig, read_sources
from rlvlm.pipelines.config import Stage

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DATA_FILE = re.compile(r"\.(jsonl?|ndjson|parquet|arrow|tar|csv|tsv|txt|zip|gz)$", re.IGNORECASE)
LOOKED_AT = 16
"""Records of a source that are read to see what its rows bring along."""


def is_there(path: str) -> bool:
    """Whether a file, a folder (``folder@split``) or a pattern leads to anything on this machine; hubs are not asked."""
    return any(Path(one).exists() for one in (path, path.rpartition("@")[0] or path)) or bool(glob.glob(path))


def is_hub_data(path: str) -> bool:
    """Whether a data path that is not on this machine is read from the hub: ``owner/name@split``."""
    base, _, split = path.rpartition("@")
    return bool(split) and _HUB_NAME.fullmatch(base) is not None


def is_hub_name(path: str) -> bool:
    """Whether a path reads like ``owner/name`` of the hub: two words, the second without the suffix of a data file."""
    return _HUB_NAME.fullmatch(path) is not None and not _DATA_FILE.search(path)


def model_problem(path: str) -> str | None:
    """Why the model of ``model.path`` can't be loaded: it is not there, or of a family that the library has not."""
    config = Path(path).expanduser() / "config.json"
    if config.is_file():
        return _family_problem(path, config)
    if Path(path).expanduser().exists():
        return f"model.path '{path}' holds no config.json; give a folder written by save_pretrained."
    return f"model.path '{path}' is not on this machine{_how_to_get(path)}; {_families(path)}."


def _how_to_get(path: str) -> str:
    if _HUB_NAME.fullmatch(path) is None:
        return "; give the folder of a model"
    local = f"models/{path.rpartition('/')[2]}"
    named = f"<owner>/{path.rpartition('/')[2]}" if path.startswith(("models/", "runs/", "data/")) else path
    return (
        f" (names of the Hugging Face hub are not read); if it is a model of the hub, download it with "
        f"'hf download {named} --local-dir {local}' and set model.path={local}"
    )


def _families(path: str) -> str:
    from rlvlm.models.families.names import family_names, looks_unknown

    known = ", ".join(family_names())
    if looks_unknown(Path(path).name):
        return (
            f"by its name it is of none of the families that the library has ({known}), so that it could not run either"
        )
    return f"families that can run: {known}"


def _family_problem(path: str, config: Path) -> str | None:
    from rlvlm.errors import nearest
    from rlvlm.models.families.base import FAMILIES

    try:
        kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        return f"'{config}' is no JSON object; copy the model's folder again."
    if kind in FAMILIES.names():
        return None
    return f"model.path '{path}' holds a model of type '{kind}', whose family the library has not{nearest(str(kind), FAMILIES.names())}."


def data_problem(path: str, key: str) -> tuple[str, bool]:
    """What to say of a data path that is not on this machine, and whether it is only a note (the run will download it)."""
    if not is_hub_data(path):
        hub = (
            f"; if it is a data set of the Hugging Face hub, name its split: {path}@train" if is_hub_name(path) else ""
        )
        return f"{key} '{path}' is not on this machine{hub or '; give a file or folder that is'}.", False
    if importlib.util.find_spec("datasets") is None:
        return (
            f"{key} '{path}' is a data set of the Hugging Face hub, which takes the datasets library: pip install 'rlvlm[data]'.",
            False,
        )
    return (
        f"{key} '{path}' is a data set of the Hugging Face hub; it is downloaded when the run starts, so its records were not looked at.",
        True,
    )


def folder_problems(stage: Stage) -> Iterator[str]:
    """Folders of pictures and files of picked rows that are not there."""
    if stage.data.image_folder is not None and not Path(stage.data.image_folder).is_dir():
        yield f"data.image_folder '{stage.data.image_folder}' is no folder on this machine."
    for split in ("train", "eval"):
        for source in read_sources(getattr(stage.data, split), f"data.{split}"):
            named = source.path or source.name
            if source.image_folder is not None and not Path(source.image_folder).is_dir():
                yield f"image_folder '{source.image_folder}' of data.{split} '{named}' is no folder on this machine."
            if source.rows is not None and not Path(source.rows).is_file():
                yield f"rows '{source.rows}' of data.{split} '{named}' is no file on this machine."


def silent_settings(stage: Stage, source: SourceConfig, records: list[Mapping[str, Any]], where: str) -> Iterator[str]:
    """Which of ``data.template`` and ``data.system`` the records leave without effect, since they bring their own."""
    template = source.template or stage.data.template
    own = [str(record["prompt_template"]) for record in records if record.get("prompt_template")]
    if template is not None and own:
        share = "every record" if len(own) == len(records) else f"{len(own)} of the first {len(records)} records"
        yield (
            f"the prompt template '{_short(template)}' has no effect on {where}: {share} looked at names its own "
            f"('{_short(own[0])}'), which comes first; put the instructions into the records, or choose another format."
        )
    led = sum(_begins_with_system(record) for record in records)
    if stage.data.system is not None and led:
        yield f"data.system has no effect on {led} of the first {len(records)} records of {where}, which begin with a system turn."


def left_behind(stage: Stage) -> Iterator[str]:
    """A ``data.eval`` that is of another task than ``data.train``: made by another source, while the one reads files."""
    train, held_out = (read_sources(getattr(stage.data, split), f"data.{split}") for split in ("train", "eval"))
    made = {source.name for source in train if source.path is None}
    for source in held_out:
        if not train or (source.name in made if source.path is None else len(made) < len(train)):
            continue
        yield (
            f"data.eval is '{source.path or source.name}' while data.train is '{train[0].path or train[0].name}', which is other data: "
            "accuracies would be of another task; set data.eval to held-out records of this one, or data.eval=null."
        )


def eval_not_moved(stage: Stage, keys: Collection[str]) -> Iterator[str]:
    """A ``data.eval`` that an override of ``data.train`` alone left on the recipe's own data."""
    moved = any(key.endswith(("data.train", "data.train.path", "data.train.name")) for key in keys)
    kept = not any("data.eval" in key for key in keys)
    train, held_out = (read_sources(getattr(stage.data, split), f"data.{split}") for split in ("train", "eval"))
    both = {source.path for source in train} & {source.path for source in held_out}
    if moved and kept and held_out and all(source.path for source in held_out) and not both:
        yield (
            f"data.train was set and data.eval was not: it is still the recipe's '{held_out[0].path}', so accuracies would be "
            "of that data; set data.eval to held-out records, or data.eval=null."
        )


def _begins_with_system(record: Mapping[str, Any]) -> bool:
    turns = record.get("messages")
    return bool(turns) and isinstance(turns, list) and turns[0].get("role") == "system"


def _short(text: str) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 60 else line[:57] + "…"
