"""LLaVA (Liu et al. 2023, arXiv:2304.08485): square pictures of one size, 1-D positions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rlvlm.errors import ConfigError, nearest
from rlvlm.models.families.base import Family, Pixels, Size, register_family

CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Vision towers by the ``model_type`` of their config, and the tokens that they put before the patches."""


class Llava(Family):
    """Every picture becomes a square of the vision tower's size, so all have equally many tokens."""

    name = "llava"
    parts: ClassVar[dict[str, str]] = {
        "model.vision_tower.": "vision",
        "model.multi_modal_projector.": "connector",
    }
    banned_tokens = ("<image>",)

    def __init__(self, config: Any, tokenizer: Any, image_processor: Any) -> None:
        super().__init__(config, tokenizer, image_processor)
        vision = config.vision_config
        if vision.model_type not in CLASS_TOKENS:
            raise ConfigError(
                f"a LLaVA with a '{vision.model_type}' tower is not known{nearest(vision.model_type, CLASS_TOKENS)}."
            )
        self._side = int(vision.image_size)
        self._patches = (self._side // int(vision.patch_size)) ** 2 + CLASS_TOKENS[vision.model_type]
        self._tokens = self._patches - (config.vision_feature_select_strategy == "default")  # which drops the first

    def target_size(self, size: Size) -> Size:
        """The tower's square."""
        return self._side, self._side

    def image_tokens(self, size: Size) -> int:
        """The same for every size."""
        return self._tokens

    def patches(self, size: Size) -> int:
        """The same for every size, a class token included."""
        return self._patches

    def blank(self) -> Pixels:
        """A grey square."""
        return {"pixel_values": torch.zeros(1, 3, self._side, self._side)}

    def features(self, pixels: Pixels) -> int:
        """Tokens of all pictures together."""
        return self._tokens * len(pixels["pixel_values"])

    def processor_settings(self) -> dict[str, Any]:
        """How many tokens a picture takes, which the joint processor counts from these."""
        vision = self.config.vision_config
        return {
            "processor_class": "LlavaProcessor",
            "patch_size": int(vision.patch_size),
            "num_additional_image_tokens": CLASS_TOKENS[vision.model_type],
            "vision_feature_select_strategy": self.config.vision_feature_select_strategy,
            "image_token": "<image>",
        }

    def encode_images(self, model: Any, pixels: Pixels) -> tuple[Tensor, ...]:
        """Features of the chosen vision layer, through the projector."""
        out = model.model.get_image_features(pixel_values=pixels["pixel_values"], return_dict=True)
        return (torch.cat(list(out.pooler_output)),)


@register_family("llava")
def llava(config: Any, tokenizer: Any, image_processor: Any) -> Llava:
    """LLaVA 1.5 and its like: CLIP or SigLIP tower, projector, any language model."""
    return Llava(config, tokenizer, image_processor)
