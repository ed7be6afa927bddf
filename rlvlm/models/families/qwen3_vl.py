"""Qwen3-VL (2025, arXiv:2511.21631): interleaved M-RoPE, features that also enter the first decoder layers (deepstack)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rlvlm.models.families.base import Pixels, register_family
from rlvlm.models.families.qwen2_5_vl import Qwen2_5VL
from rlvlm.models.rows import Pictures


class Qwen3VL(Qwen2_5VL):
    """Prompts, sizes and position ids as in Qwen2.5-VL; the tower gives features for several layers."""

    name = "qwen3_vl"
    parts: ClassVar[dict[str, str]] = {
        "model.visual.": "vision",
        "model.visual.merger.": "connector",
        "model.visual.deepstack_merger_list.": "connector",
    }

    def encode_images(self, model: Any, pixels: Pixels) -> tuple[Tensor, ...]:
        """Merged features of the vision tower, then those of each deepstack level (arXiv:2406.04334)."""
        out = model.model.visual(pixels["pixel_values"].to(model.model.visual.dtype), grid_thw=pixels["image_grid_thw"])
        return (out.pooler_output, *out.deepstack_features)

    def language_inputs(self, embeds: Tensor, pictures: Pictures, features: tuple[Tensor, ...]) -> dict[str, Any]:
        """Embeddings with features in their slots, and the deepstack features with the mask of those slots."""
        inputs = super().language_inputs(embeds, pictures, features)
        mask = torch.zeros(embeds.shape[:2].numel(), dtype=torch.bool, device=embeds.device)
        mask[pictures.slots] = True
        inputs["visual_pos_masks"] = mask.view(embeds.shape[:2])
        inputs["deepstack_visual_embeds"] = [pictures.pick(level) for level in features[1:]]
        return inputs


@register_family("qwen3_vl")
def qwen3_vl(config: Any, tokenizer: Any, image_processor: Any) -> Qwen3VL:
    """Qwen3-VL, dense."""
    return Qwen3VL(config, tokenizer, image_processor)
