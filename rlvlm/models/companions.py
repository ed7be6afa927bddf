"""What stands beside a model's weights in its folder: processor, tokenizer, chat template, generation settings.

Training changes none of these, so a model that was loaded from a folder is saved with that folder's own files, byte for
byte: every class that read the one reads the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx", ".ckpt", ".ot")
_OF_THE_MODEL = ("config.json",)
_SKIPPED = (".index.json", ".md", ".lock", ".metadata")
_FOLDERS = ("additional_chat_templates",)
_LARGEST = 256 << 20  # bytes: no vocabulary is as large, and what is larger is no companion


def copy_companions(source: Path, target: Path) -> None:
    """Copies every file of a model's folder that is neither weights nor ``config.json``, over what lies there."""
    for path in companions(source):
        into = target / path.relative_to(source)
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, into)


def companions(folder: Path) -> Iterator[Path]:
    """The files beside a model's weights: of the folder itself and of the folder of further chat templates."""
    inside = [folder, *(folder / name for name in _FOLDERS)]
    for path in sorted(path for one in inside if one.is_dir() for path in one.iterdir()):
        weights = path.suffix in _WEIGHTS or path.stat().st_size > _LARGEST
        if path.is_file() and not weights and path.name not in _OF_THE_MODEL and not path.name.endswith(_SKIPPED):
            yield path
