"""A saved policy's folder has all that its source folder had, and other programs answer with it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import transformers

from rlvlm.models.config import LoraConfig, ModelConfig
from rlvlm.models.loading import load_policy
from tests import tiny

EXTRA = {
    "chat_template.json": '{"chat_template": "{{ messages }}"}',
    "additional_chat_templates/tools.jinja": "{{ tools }}",
    "special_tokens_map.json": '{"eos_token": "<|im_end|>"}',
    "added_tokens.json": "{}",
    "merges.txt": "#version: 0.2\n",
    "vocab.json": "{}",
    "tokenizer.model": "\x00pieces",
    # transformers refuses to write such settings: a temperature without sampling
    "generation_config.json": '{"do_sample": false, "temperature": 0.1, "top_k": 1, "eos_token_id": [2, 0]}',
}
JOINT = {
    "llava": {"processor_class": "LlavaProcessor", "patch_size": 14, "vision_feature_select_strategy": "default",
              "num_additional_image_tokens": 1, "image_token": "<image>"},
    "qwen2_5_vl": {"processor_class": "Qwen2_5_VLProcessor"},
    "qwen3_vl": {"processor_class": "Qwen3VLProcessor"},
}  # fmt: skip


@pytest.fixture(params=tiny.FAMILIES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model's folder as hubs hold them, with files of every kind, weights in two formats among them."""
    folder = tmp_path / "source"
    for part in tiny.parts(request.param):
        part.save_pretrained(folder)
    (folder / "additional_chat_templates").mkdir()
    for name, text in EXTRA.items():
        (folder / name).write_text(text)
    (folder / "processor_config.json").write_text(json.dumps(JOINT[request.param]))
    if request.param != "llava":
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        kind = {"qwen2_5_vl": "Qwen2VLVideoProcessor", "qwen3_vl": "Qwen3VLVideoProcessor"}[request.param]
        del settings["image_processor_type"]
        (folder / "video_preprocessor_config.json").write_text(json.dumps({**settings, "video_processor_type": kind}))
    for weights in ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.safetensors.index.json", "README.md"):
        (folder / weights).write_text("{}")
    (folder / "model.safetensors.index.json").unlink()
    return folder


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_all_that_lies_beside_the_weights_is_saved_byte_for_byte(
    source: Path, tmp_path: Path, lora: LoraConfig
) -> None:
    load_policy(ModelConfig(path=str(source), lora=lora)).save_pretrained(tmp_path / "first")
    load_policy(ModelConfig(path=str(tmp_path / "first"))).save_pretrained(tmp_path / "second")  # a stage behind it
    there = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    weights = {"pytorch_model.bin", "pytorch_model.bin.index.json", "README.md", "model.safetensors"}
    for saved in (tmp_path / "first", tmp_path / "second"):
        for name in there - weights - {"config.json"}:
            assert (saved / name).read_bytes() == (source / name).read_bytes(), name
        own = {str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file()}
        assert own == (there - weights) | {"model.safetensors"}


def answer(folder: Path) -> torch.Tensor:
    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    content = [{"type": "image", "image": tiny.picture((56, 56))}, {"type": "text", "text": "What?"}]
    asked = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
    )
    return model.generate(**asked, max_new_tokens=4, do_sample=False)[:, asked["input_ids"].shape[1] :]


def needs_torchvision(family: str) -> None:
    if family != "llava" and importlib.util.find_spec("torchvision") is None:
        pytest.skip("transformers' joint processor of this family needs torchvision")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_transformers_answers_with_the_saved_folder_as_with_its_source(family: str, tmp_path: Path) -> None:
    needs_torchvision(family)
    for part in tiny.parts(family):
        part.save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "processor_config.json").write_text(json.dumps(JOINT[family]))
    load_policy(ModelConfig(path=str(tmp_path / "source"))).save_pretrained(tmp_path / "saved")
    assert answer(tmp_path / "saved").tolist() == answer(tmp_path / "source").tolist()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_transformers_answers_with_a_model_that_was_built(family: str, tmp_path: Path) -> None:
    needs_torchvision(family)
    tiny.policy(family).save_pretrained(tmp_path)
    assert 1 <= answer(tmp_path).numel() <= 4


def test_the_joint_processor_of_a_built_llava_counts_a_pictures_tokens_as_the_policy_does(tmp_path: Path) -> None:
    policy = tiny.policy("llava")
    policy.save_pretrained(tmp_path)
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    ids = processor(text="<image>", images=tiny.picture((56, 56)), return_tensors="pt")["input_ids"]
    assert int((ids == policy.tokenizer.convert_tokens_to_ids("<image>")).sum()) == policy.family.image_tokens((56, 56))
