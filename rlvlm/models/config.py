"""Settings of the model; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlvlm.errors import ConfigError, nearest
from rlvlm.ranges import at_least, check_ranges, finite, one_of

DTYPES = ("float32", "bfloat16", "float16")
LAYOUTS = ("auto", "shared", "packed", "padded")
PARTS = ("vision", "connector", "language")


@dataclass
class LoraConfig:
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) on linear layers; the rest of the model is frozen.

    Attributes:
        rank: rank of the update.
        alpha: the update is scaled by alpha / rank.
        parts: which of vision, connector and language get adapters.
        targets: ends of module names, such as ``q_proj``; ``None`` takes every linear layer of the parts. The head and
            the embeddings are refused.
    """

    rank: int = 16
    alpha: float = 32.0
    parts: list[str] = field(default_factory=lambda: ["language"])
    targets: list[str] | None = None

    def __post_init__(self) -> None:
        check_ranges("model.lora", self, at_least(1, "rank"), finite("alpha"))
        for part in self.parts:
            if part not in PARTS:
                raise ConfigError(f"model.lora.parts are {', '.join(PARTS)}, got {part!r}{nearest(part, PARTS)}.")


@dataclass
class ModelConfig:
    """Which model, in which precision, which of its parameters train, and how rows run through it.

    Attributes:
        path: folder in the format of ``save_pretrained``; or
        build: name or node of a registered model builder, which makes a model in memory.
        dtype: of the weights: float32, bfloat16 or float16.
        lora: adapters, or ``None`` to train the weights themselves.
        trainable: parameters that train: parts (vision, connector, language) or patterns of names such as
            ``*.merger.*``. With ``lora`` the adapters train instead.
        gradient_checkpointing: recompute each layer in the backward pass: less memory, about a third more time.
        layout: shared (a group's prompt once), packed (no padding), padded (the slow reference), or auto, which counts
            the cost of each and says which it took.
        head_chunk: logits that exist at a time, in numbers; tokens times a slice of the vocabulary.
        seed: of a model that is built, not loaded. New adapters take ``run.seed``.
    """

    path: str | None = None
    build: Any = None
    dtype: str = "float32"
    lora: LoraConfig | None = None
    trainable: list[str] = field(default_factory=lambda: ["*"])
    gradient_checkpointing: bool = False
    layout: str = "auto"
    head_chunk: int = 4_194_304
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(
            "model", self, one_of(DTYPES, "dtype"), one_of(LAYOUTS, "layout"), at_least(1, "head_chunk"), finite("seed")
        )
        if not self.trainable:
            raise ConfigError("model.trainable names no parameters; give parts, patterns, or ['*'] for all.")
