"""Tiny random vision-language models of every family, and batches for them; no network, no files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from rlvlm.batch import Batch, Media, Prompt, Span
from rlvlm.models.policy import Policy

FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl")
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<image>",
)
PLAIN = ("<answer>", "</answer>", "\\boxed{", "<think>", "</think>")
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}\
{% if c['type'] == 'image' %}PICTURE{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def picture_text(family: str) -> str:
    """What stands for one picture in a prompt's text."""
    return "<image>" if family == "llava" else "<|vision_start|><|image_pad|><|vision_end|>"


def tokenizer(family: str = "qwen2_5_vl") -> Any:
    """One token for each byte, and the special tokens: lossless, 269 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    fast.chat_template = TEMPLATE.replace("PICTURE", picture_text(family))
    return fast


def policy(family: str = "qwen2_5_vl", seed: int = 0, **sizes: Any) -> Policy:
    """A tiny random model of a family, fp32, in eval mode.

    Args:
        sizes: of ``hidden`` 64, ``layers`` 2, ``heads`` 4, ``kv_heads`` 2, ``ff`` 128, ``vision_hidden`` 64, ``vision_layers`` 2,
            ``vision_heads`` 4, ``patch``, ``side`` (LLaVA's picture), ``tie`` True, ``std`` of the initial weights.
    """
    torch.manual_seed(seed)
    model, fast, processor = parts(family, **sizes)
    return Policy.from_parts(model.eval(), fast, processor)


def parts(family: str, **sizes: Any) -> tuple[Any, Any, Any]:
    """Model, tokenizer and image processor of a tiny model."""
    std = sizes.pop("std", 0.08)
    fast = tokenizer(family)
    build = {"llava": _llava, "qwen2_5_vl": _qwen2_5_vl, "qwen3_vl": _qwen3_vl}[family]
    model, processor = build(fast, {**_SIZES, **sizes})
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "patch_embed" not in name:
                weight.normal_(0, std)
            elif name.endswith("bias"):
                weight.normal_(0, 0.02)
    return model, fast, processor


_SIZES: dict[str, Any] = {
    "hidden": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "ff": 128,
    "vision_hidden": 64,
    "vision_layers": 2,
    "vision_heads": 4,
    "tie": True,
    "side": 56,
    "patch": None,
}


def _text(fast: Any, s: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    ids = fast.get_vocab()
    return {
        "vocab_size": len(fast),
        "hidden_size": s["hidden"],
        "intermediate_size": s["ff"],
        "num_hidden_layers": s["layers"],
        "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"],
        "max_position_embeddings": 4096,
        "tie_word_embeddings": s["tie"],
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        **({"rope_parameters": rope} if rope else {}),
    }


def _mrope(s: dict[str, Any]) -> dict[str, Any]:
    half = s["hidden"] // s["heads"] // 2
    side = (half - half // 4) // 2
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [half - 2 * side, side, side]}


def _marks(fast: Any) -> dict[str, int]:
    ids = fast.get_vocab()
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


def _qwen_processor(patch: int) -> Any:
    token = (2 * patch) ** 2
    return transformers.Qwen2VLImageProcessorPil(
        patch_size=patch,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": token, "longest_edge": token * 256},
    )


def _qwen_vision(s: dict[str, Any], patch: int) -> dict[str, Any]:
    return {
        "depth": s["vision_layers"],
        "hidden_size": s["vision_hidden"],
        "intermediate_size": 2 * s["vision_hidden"],
        "num_heads": s["vision_heads"],
        "out_hidden_size": s["hidden"],
        "patch_size": patch,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def _qwen2_5_vl(fast: Any, s: dict[str, Any]) -> tuple[Any, Any]:
    patch = s["patch"] or 14
    vision = {**_qwen_vision(s, patch), "window_size": 4 * patch, "fullatt_block_indexes": [s["vision_layers"] - 1]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=_text(fast, s, _mrope(s)), vision_config=vision, tie_word_embeddings=s["tie"], **_marks(fast)
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config), _qwen_processor(patch)


def _qwen3_vl(fast: Any, s: dict[str, Any]) -> tuple[Any, Any]:
    patch = s["patch"] or 16
    text = {**_text(fast, s, {**_mrope(s), "mrope_interleaved": True}), "head_dim": s["hidden"] // s["heads"]}
    vision = {**_qwen_vision(s, patch), "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    config = transformers.Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=s["tie"], **_marks(fast)
    )
    return transformers.Qwen3VLForConditionalGeneration(config), _qwen_processor(patch)


def _llava(fast: Any, s: dict[str, Any]) -> tuple[Any, Any]:
    patch, side = s["patch"] or 14, s["side"]
    image = fast.get_vocab()["<image>"]
    config = transformers.LlavaConfig(
        text_config=transformers.Qwen2Config(**_text(fast, s, {})),
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=s["vision_hidden"],
            intermediate_size=2 * s["vision_hidden"],
            num_hidden_layers=s["vision_layers"],
            num_attention_heads=s["vision_heads"],
            image_size=side,
            patch_size=patch,
            projection_dim=s["vision_hidden"],
        ),
        image_token_index=image,
        image_token_id=image,
        vision_feature_layer=-1,
        tie_word_embeddings=s["tie"],
    )
    processor = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}
    )
    return transformers.LlavaForConditionalGeneration(config), processor


# ---------------------------------------------------------------------- batches


def picture(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """A picture of random pixels."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (size[1], size[0], 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(noise.numpy())


def prompts(of: Policy, shapes: Sequence[Sequence[tuple[int, int]]], texts: Sequence[str] = ()) -> Batch:
    """A batch of prompts, one for each entry of ``shapes``: the sizes of its pictures, none for text only."""
    rows, media = [], []
    for number, sizes in enumerate(shapes):
        pictures = [picture(size, 31 * number + k) for k, size in enumerate(sizes)]
        text = texts[number] if number < len(texts) else f"Question {'why ' * (number % 3)}{number}?"
        content = [{"type": "image"} for _ in sizes] + [{"type": "text", "text": text}]
        ids, engine_ids, spans = of.family.encode_prompt([{"role": "user", "content": content}], pictures)
        placed = tuple(Span(span.media + len(media), span.offset, span.length) for span in spans)
        rows.append(Prompt(f"p{number}", {"problem": text, "answer": str(number)}, ids, engine_ids, placed))
        media += [Media(f"m{number}.{k}", of.family.target_size(one.size), image=one) for k, one in enumerate(pictures)]
    return Batch({"group_ids": torch.arange(len(rows))}, prompts=rows, media=media)


def samples(of: Policy, asked: Batch, lengths: Sequence[Sequence[int]], seed: int = 0, **fields: Tensor) -> Batch:
    """Random answers to the prompts of ``asked``: ``lengths[p]`` are the lengths of prompt p's answers."""
    generator = torch.Generator().manual_seed(seed)
    rows, groups = [], []
    for group, own in enumerate(lengths):
        for length in own:
            answer = torch.randint(0, 256, (length,), generator=generator)
            rows.append((asked.prompts[group].ids, answer))
            groups.append(group)
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), width), int(of.tokenizer.pad_token_id))
    mask, loss = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.cat((prompt, answer))
        mask[row, :end] = True
        loss[row, len(prompt) : end] = True
    tensors = {
        "input_ids": ids,
        "attention_mask": mask,
        "loss_mask": loss,
        "group_ids": torch.tensor(groups),
        "temperature": torch.ones(len(rows)),
        **fields,
    }
    return Batch(tensors, prompts=asked.prompts, media=asked.media)
