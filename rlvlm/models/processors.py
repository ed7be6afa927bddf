"""A folder's tokenizer and image processor, each by itself: transformers' joint processors need torchvision, these don't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlvlm.errors import ConfigError


def load_processors(path: str) -> tuple[Any, Any]:
    """Tokenizer, with the chat template that some models keep with their processor, and image processor."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    if not tokenizer.chat_template:
        tokenizer.chat_template = _processor_template(Path(path))
    return tokenizer, load_image_processor(path)


def load_image_processor(path: str) -> Any:
    """The PIL class of the image processor that the folder names, so that pixels don't depend on what else is installed.

    Raises ``ConfigError`` where the folder names none, or one that has no PIL class.
    """
    import transformers

    named = _settings(Path(path)).get("image_processor_type")
    if named is None:
        raise ConfigError(
            f"model.path '{path}' names no image processor in preprocessor_config.json; save it with one."
        )
    kind = f"{named.removesuffix('Fast').removesuffix('Pil')}Pil"
    if not hasattr(transformers, kind):
        raise ConfigError(
            f"model.path '{path}' asks for the image processor {named}, which this transformers can't run by PIL."
        )
    return getattr(transformers, kind).from_pretrained(path)


def _settings(folder: Path) -> dict[str, Any]:
    alone, joint = folder / "preprocessor_config.json", folder / "processor_config.json"
    if alone.is_file():
        return dict(json.loads(alone.read_text(encoding="utf-8")))
    if joint.is_file():
        return dict(json.loads(joint.read_text(encoding="utf-8")).get("image_processor", {}))
    return {}


def _processor_template(folder: Path) -> str | None:
    plain, wrapped = folder / "chat_template.jinja", folder / "chat_template.json"
    if plain.is_file():
        return plain.read_text(encoding="utf-8")
    if wrapped.is_file():
        return str(json.loads(wrapped.read_text(encoding="utf-8"))["chat_template"])
    return None
