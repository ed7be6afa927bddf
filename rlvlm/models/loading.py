"""Makes a policy from its settings: a folder of ``save_pretrained``, or a registered builder.

Transformers is imported where something is loaded, so that a builder's settings are checked without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlvlm.errors import ConfigError
from rlvlm.models.attention import ATTENTION, register_attention
from rlvlm.models.config import ModelConfig
from rlvlm.models.families.base import Family, family_of
from rlvlm.models.processors import load_processors
from rlvlm.registry import Registry

if TYPE_CHECKING:
    from rlvlm.models.policy import Policy

BUILDERS = Registry("model builder", "model_builders", builtins=("rlvlm.models.toys",), readable=lambda: ())
"""Functions of options that make a model in memory and return ``ModelParts``."""

register_model_builder = BUILDERS.register


@dataclass(frozen=True)
class ModelParts:
    """A model in memory with what its family is bound to."""

    model: Any
    tokenizer: Any
    image_processor: Any


def load_policy(config: ModelConfig, seed: int = 0) -> Policy:
    """The policy that the settings describe, on the CPU, ready for a train engine to place and shard.

    Args:
        seed: of the run; decides how adapters begin.

    Raises ``ConfigError`` unless exactly one of ``path`` and ``build`` is given, or where the folder holds no model.
    """
    from rlvlm.models.policy import Policy

    if (config.path is None) == (config.build is None):
        raise ConfigError("a model is either loaded or built; give exactly one of model.path and model.build.")
    dtype = getattr(torch, config.dtype)
    if config.build is not None:
        torch.manual_seed(config.seed)
        parts: ModelParts = BUILDERS.build(config.build)({})
        parts.model.to(dtype)
    else:
        parts = load_parts(str(config.path), dtype)
    policy = Policy.from_parts(
        parts.model,
        parts.tokenizer,
        parts.image_processor,
        layout=config.layout,
        head_chunk=config.head_chunk,
        source=None if config.path is None else Path(config.path),
    )
    if config.lora is None:
        policy.set_trainable(config.trainable)
    else:
        policy.add_adapters(config.lora, seed)
    if config.gradient_checkpointing:
        enable_checkpointing(parts.model)
    return policy.train(config.gradient_checkpointing)  # layers recompute in train mode only


def enable_checkpointing(model: Any) -> None:
    """Recomputes every layer in the backward pass; transformers is about to rename the method."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def load_parts(path: str, dtype: torch.dtype) -> ModelParts:
    """Model, tokenizer and image processor of a folder; no processor class is used, so no torchvision is needed."""
    from transformers import AutoModelForImageTextToText

    _check_folder(path)
    register_attention()
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype, attn_implementation=ATTENTION)
    return ModelParts(model, *load_processors(path))


def load_family(path: str) -> Family:
    """The family of a folder's model, bound to its tokenizer and image processor; loads no weights."""
    from transformers import AutoConfig

    _check_folder(path)
    return family_of(AutoConfig.from_pretrained(path), *load_processors(path))


def _check_folder(path: str) -> None:
    if not (Path(path) / "config.json").is_file():
        raise ConfigError(f"model.path '{path}' holds no config.json; give a folder written by save_pretrained.")
