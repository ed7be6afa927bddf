"""Families: prompts, sizes and pixels against transformers' own processors, names against what is saved."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from rlvlm.batch import Media
from rlvlm.data.media import Picture
from rlvlm.errors import ConfigError, DataError, RegistryError
from rlvlm.models.families.base import family_of
from rlvlm.models.policy import Policy
from tests import tiny
from tests.close import assert_near

SIZES = [(56, 56), (60, 90), (301, 40), (29, 33), (640, 480), (28, 500)]


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return tiny.policy(request.param)


def message(*parts: str) -> list[dict[str, Any]]:
    """One user turn; an empty part is a picture."""
    content = [{"type": "text", "text": part} if part else {"type": "image"} for part in parts]
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("size", SIZES)
def test_tokens_and_patches_told_from_the_size_are_those_of_the_pixels(policy: Policy, size: tuple[int, int]) -> None:
    family = policy.family
    pixels = family.process(tiny.picture(size))
    with torch.no_grad():
        features = family.encode_images(policy.model, pixels)[0]
    assert family.image_tokens(size) == len(features) == family.features(pixels)
    target = family.target_size(size)
    assert family.target_size(target) == target
    assert family.image_tokens(target) == family.image_tokens(size)
    if family.name != "llava":
        assert family.patches(size) == len(pixels["pixel_values"])
        time, height, width = family.grid(pixels)  # type: ignore[misc]
        assert time * height * width == family.image_tokens(size)


def test_prompts_and_pixels_are_those_of_transformers_processor() -> None:
    policy = tiny.policy("llava")
    processor = transformers.LlavaProcessor(
        image_processor=policy.family.image_processor,
        tokenizer=policy.tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
        chat_template=policy.tokenizer.chat_template,
    )
    turns = message("Is ", "", " like ", "", "?")
    pictures = [tiny.picture((60, 90)), tiny.picture((30, 30), 1)]
    text = processor.apply_chat_template(turns, add_generation_prompt=True)
    theirs = processor(text=text, images=pictures, return_tensors="pt")
    ids, _, _ = policy.family.encode_prompt(turns, pictures)
    assert ids.tolist() == theirs["input_ids"][0].tolist()
    ours = torch.cat([policy.family.process(picture)["pixel_values"] for picture in pictures])
    torch.testing.assert_close(ours, theirs["pixel_values"], atol=0, rtol=0)


def test_expanded_ids_hold_each_pictures_tokens_where_its_span_says(policy: Policy) -> None:
    family = policy.family
    pictures = [tiny.picture((60, 90)), tiny.picture((120, 30), 1)]
    ids, engine_ids, spans = family.encode_prompt(message("Is ", "", " like ", "", "?"), pictures)
    assert int((engine_ids == family.placeholder_id).sum()) == 2
    assert [span.media for span in spans] == [0, 1]
    assert [span.length for span in spans] == [family.image_tokens(picture.size) for picture in pictures]
    covered = torch.zeros_like(ids, dtype=torch.bool)
    for span in spans:
        covered[span.offset : span.offset + span.length] = True
    assert torch.equal(covered, ids == family.placeholder_id)
    again = family.expand(engine_ids, pictures)
    assert torch.equal(again[0], ids)
    assert again[2] == spans


def test_a_prompt_without_pictures_is_its_text(policy: Policy) -> None:
    ids, engine_ids, spans = policy.family.encode_prompt("plain text", [])
    assert spans == ()
    assert torch.equal(ids, engine_ids)
    assert policy.tokenizer.decode(ids) == "plain text"


def test_pictures_and_placeholders_of_unequal_number_are_refused_with_both_counts(policy: Policy) -> None:
    with pytest.raises(DataError, match="2 picture placeholders for 1 pictures"):
        policy.family.encode_prompt(message("", "", "what?"), [tiny.picture((40, 40))])


def test_messages_without_a_chat_template_are_refused() -> None:
    model, fast, processor = tiny.parts("llava")
    fast.chat_template = None
    with pytest.raises(DataError, match="no chat template"):
        Policy.from_parts(model, fast, processor).family.encode_prompt(message("hi"), [])


def test_a_begin_token_comes_once_whether_or_not_the_template_writes_it(policy: Policy) -> None:
    fast = tiny.tokenizer()
    from tokenizers.processors import TemplateProcessing

    begin = "<|im_start|>"
    fast.add_special_tokens({"bos_token": begin})
    core = fast.backend_tokenizer
    core.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, core.token_to_id(begin))])
    family = family_of(policy.model.config, fast, policy.family.image_processor)
    begin_id = core.token_to_id(begin)
    assert family.encode_prompt("hello", [])[0][:2].tolist() == [begin_id, core.token_to_id("h")]
    ids = family.encode_prompt(message("hello"), [])[0].tolist()
    assert ids[0] == begin_id
    assert ids[1] != begin_id


def test_banned_ids_are_everything_that_stands_for_pictures(policy: Policy) -> None:
    ids = policy.tokenizer.get_vocab()
    names = (
        ["<image>"]
        if policy.family.name == "llava"
        else [name for name in tiny.SPECIAL if "vision" in name or "pad" in name]
    )
    assert set(policy.family.banned_ids) == {ids[name] for name in names}


def test_pixels_are_made_once_and_kept_with_the_picture(policy: Policy) -> None:
    handle = Picture(tiny.picture((60, 60)))
    media = Media("m", policy.family.target_size((60, 60)), image=handle)
    first = policy.family.pixels(media)
    assert policy.family.pixels(media) is first
    assert torch.equal(first["pixel_values"], policy.family.process(tiny.picture((60, 60)))["pixel_values"])
    with pytest.raises(DataError, match="'lost' has neither pixels nor an image"):
        policy.family.pixels(Media("lost", (60, 60)))


def test_checkpoint_names_are_those_that_save_pretrained_writes(policy: Policy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = set(file.keys())
        for name, weight in policy.named_weights():
            assert torch.equal(weight, file.get_tensor(name))
            stored.remove(name)
    assert not stored


def test_every_parameter_belongs_to_a_part(policy: Policy) -> None:
    parts: dict[str, set[str]] = {"vision": set(), "connector": set(), "language": set()}
    for name, _ in policy.named_parameters():
        parts[policy.part_of(name)].add(name)
    assert all("merger" in name or "projector" in name for name in parts["connector"])
    assert not any("merger" in name or "projector" in name for name in parts["vision"] | parts["language"])
    assert all("visual." in name or "vision_tower." in name for name in parts["vision"])
    assert any("embed_tokens" in name for name in parts["language"])
    assert all(parts.values())


def test_a_picture_far_too_narrow_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(DataError, match="1000x1"):
        tiny.policy("qwen2_5_vl").family.image_tokens((1000, 1))


def test_limits_in_the_older_words_of_checkpoints_are_kept() -> None:
    model, fast, _ = tiny.parts("qwen2_5_vl")
    processor = transformers.Qwen2VLImageProcessorPil(min_pixels=28 * 28 * 4, max_pixels=28 * 28 * 16)
    family = Policy.from_parts(model, fast, processor).family
    for size, tokens in (((28, 28), 4), ((1000, 1000), 16), ((70, 90), 6)):
        assert family.image_tokens(size) == tokens == family.features(family.process(tiny.picture(size)))


@pytest.mark.parametrize(("tower", "strategy", "tokens"), [("clip", "full", 17), ("siglip", "full", 16)])
def test_towers_with_and_without_a_class_token_are_counted(tower: str, strategy: str, tokens: int) -> None:
    base = tiny.policy("llava")
    towers = {"clip": transformers.CLIPVisionConfig, "siglip": transformers.SiglipVisionConfig}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlavaConfig(
        text_config=base.model.config.text_config,
        vision_config=towers[tower](image_size=56, patch_size=14, **sizes),
        image_token_index=base.family.placeholder_id,
        vision_feature_layer=-1,
        vision_feature_select_strategy=strategy,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    family = Policy.from_parts(model, base.tokenizer, base.family.image_processor).family
    pixels = family.process(tiny.picture((60, 40)))
    with torch.no_grad():
        assert family.image_tokens((60, 40)) == tokens == len(family.encode_images(model, pixels)[0])


def test_a_llava_with_an_unknown_tower_is_refused() -> None:
    policy = tiny.policy("llava")
    config = transformers.LlavaConfig(
        text_config=policy.model.config.text_config, vision_config=transformers.PixtralVisionConfig()
    )
    with pytest.raises(ConfigError, match="'pixtral' tower is not known"):
        family_of(config, policy.tokenizer, policy.family.image_processor)


def test_sliding_windows_are_refused() -> None:
    policy = tiny.policy("qwen2_5_vl")
    text = policy.model.config.text_config
    text.use_sliding_window, text.layer_types = True, ["sliding_attention"] * text.num_hidden_layers
    with pytest.raises(ConfigError, match="sliding-window"):
        family_of(policy.model.config, policy.tokenizer, policy.family.image_processor)


def test_an_unknown_kind_of_model_is_named_with_the_nearest() -> None:
    with pytest.raises(RegistryError, match="did you mean 'qwen3_vl'"):
        family_of(transformers.Qwen3VLMoeConfig(), tiny.tokenizer(), None)


def test_nothing_here_needs_torchvision() -> None:
    for name in tiny.FAMILIES:
        _, _, processor = tiny.parts(name)
        assert "torchvision" not in inspect.getsource(type(processor))


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_pixels_and_ids_are_the_same_with_torchvision(name: str, tmp_path: Path) -> None:
    policy = tiny.policy(name)
    policy.save_pretrained(tmp_path)
    fast = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="torchvision")
    quick = family_of(policy.model.config, policy.tokenizer, fast)
    picture = tiny.picture(policy.family.target_size((60, 90)))
    for key, value in policy.family.process(picture).items():
        assert_near(quick.process(picture)[key], value)
    assert torch.equal(
        quick.encode_prompt(message("", "?"), [picture])[0], policy.family.encode_prompt(message("", "?"), [picture])[0]
    )
