"""Tokenizers and image processors of a folder, in the ways in which folders keep them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvlm.errors import ConfigError
from rlvlm.models.processors import load_image_processor, load_processors
from tests import tiny


@pytest.fixture(params=tiny.FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    _, fast, processor = tiny.parts(request.param)
    fast.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    return tmp_path


def test_tokenizer_template_and_processor_come_back(folder: Path) -> None:
    fast, processor = load_processors(str(folder))
    assert fast.get_vocab() == tiny.tokenizer().get_vocab()
    assert fast.chat_template.startswith("{% for m in messages %}")
    assert type(processor).__name__.endswith("Pil")


@pytest.mark.parametrize("suffix", ["", "Fast", "Pil"])
def test_whichever_class_a_folder_names_the_pil_one_is_taken(folder: Path, suffix: str) -> None:
    file = folder / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    plain = settings["image_processor_type"].removesuffix("Pil")
    file.write_text(json.dumps({**settings, "image_processor_type": plain + suffix}))
    assert type(load_image_processor(str(folder))).__name__ == f"{plain}Pil"


def test_settings_kept_with_the_joint_processor_are_found(folder: Path) -> None:
    alone = load_image_processor(str(folder))
    file = folder / "preprocessor_config.json"
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": json.loads(file.read_text())}))
    file.unlink()
    assert load_image_processor(str(folder)).size == alone.size


def test_a_template_kept_with_the_processor_is_found(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    assert load_processors(str(folder))[0].chat_template == "{{ messages[0].content }}"


def test_a_folder_without_a_usable_processor_is_named(folder: Path) -> None:
    file = folder / "preprocessor_config.json"
    file.write_text('{"image_processor_type": "NoSuchImageProcessor"}')
    with pytest.raises(ConfigError, match="asks for the image processor NoSuchImageProcessor"):
        load_image_processor(str(folder))
    file.unlink()
    with pytest.raises(ConfigError, match="names no image processor"):
        load_image_processor(str(folder))
