"""Qwen2.5-VL (Bai et al. 2025, arXiv:2502.13923): native resolution, window attention, M-RoPE."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from rlvlm.errors import ConfigError, DataError
from rlvlm.models.components.patches import PatchProduct
from rlvlm.models.families.base import Family, Pixels, Size, SpanTable, register_family
from rlvlm.models.families.mrope import mrope_positions


class Qwen2_5VL(Family):
    """Pictures keep their shape: sides are rounded to whole tokens within the processor's pixel limits."""

    name = "qwen2_5_vl"
    parts: ClassVar[dict[str, str]] = {
        "model.visual.": "vision",
        "model.visual.merger.": "connector",
    }
    banned_tokens = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")

    def __init__(self, config: Any, tokenizer: Any, image_processor: Any) -> None:
        super().__init__(config, tokenizer, image_processor)
        text = config.text_config
        if getattr(text, "use_sliding_window", False) and "sliding_attention" in text.layer_types:
            raise ConfigError("sliding-window attention is on in this model's config; set use_sliding_window to false.")
        vision = config.vision_config
        self._patch, self._merge = int(vision.patch_size), int(vision.spatial_merge_size)
        self._patch_numbers = int(vision.in_channels) * int(vision.temporal_patch_size) * self._patch**2

    def target_size(self, size: Size) -> Size:
        """Sides rounded to whole tokens, the area within the image processor's limits."""
        width, height = size
        limits = self.image_processor.size
        try:
            rows, columns = smart_resize(
                height, width, self._patch * self._merge, limits["shortest_edge"], limits["longest_edge"]
            )
        except ValueError as error:
            raise DataError(f"a picture of {width}x{height} does not fit this model: {error}.") from error
        return columns, rows

    def image_tokens(self, size: Size) -> int:
        """One token for each square of merged patches."""
        width, height = self.target_size(size)
        return (width // self._patch // self._merge) * (height // self._patch // self._merge)

    def patches(self, size: Size) -> int:
        """Patches before merging."""
        return self.image_tokens(size) * self._merge**2

    def blank(self) -> Pixels:
        """One token's worth of grey patches."""
        grid = torch.tensor([[1, self._merge, self._merge]])
        return {"pixel_values": torch.zeros(self._merge**2, self._patch_numbers), "image_grid_thw": grid}

    def features(self, pixels: Pixels) -> int:
        """Tokens of all pictures together."""
        return int(pixels["image_grid_thw"].prod(-1).sum()) // self._merge**2

    def pixel_rows(self, pixels: Pixels) -> list[int]:
        """Patches of each picture."""
        return [int(rows) for rows in pixels["image_grid_thw"].prod(-1)]

    def grid(self, pixels: Pixels) -> tuple[int, int, int]:
        """(time, height, width) in tokens."""
        time, height, width = pixels["image_grid_thw"][0].tolist()
        return time, height // self._merge, width // self._merge

    def positions(self, lengths: Tensor, spans: SpanTable) -> tuple[Tensor, Tensor]:
        """M-RoPE positions [3, T] (time, height, width)."""
        return mrope_positions(lengths, spans)

    def prepare(self, model: Any) -> None:
        """Embeds patches by a product: the convolution over single patches takes a sixth of the tower's time."""
        tower = model.model.visual
        if not isinstance(tower.patch_embed, PatchProduct):
            tower.patch_embed = PatchProduct(tower.patch_embed.proj)

    def encode_images(self, model: Any, pixels: Pixels) -> tuple[Tensor, ...]:
        """Merged features of the vision tower."""
        out = model.model.visual(pixels["pixel_values"].to(model.model.visual.dtype), grid_thw=pixels["image_grid_thw"])
        return (out.pooler_output,)


@register_family("qwen2_5_vl")
def qwen2_5_vl(config: Any, tokenizer: Any, image_processor: Any) -> Qwen2_5VL:
    """Qwen2.5-VL, and models fine-tuned from it."""
    return Qwen2_5VL(config, tokenizer, image_processor)
