"""``Family``: everything that differs between kinds of vision-language models, in one small object.

The rest of the library asks a family and never looks at a model's class. A family is bound to one model's config,
tokenizer and image processor; it holds no weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from PIL import Image
from torch import Tensor

from rlvlm.batch import Media, Span
from rlvlm.errors import ConfigError, DataError
from rlvlm.models.rows import Pictures
from rlvlm.registry import Registry

Size = tuple[int, int]
Pixels = dict[str, Tensor]

FAMILIES = Registry(
    "model family",
    "families",
    builtins=("rlvlm.models.families.llava", "rlvlm.models.families.qwen2_5_vl", "rlvlm.models.families.qwen3_vl"),
    readable=lambda: ("config", "tokenizer", "image_processor"),
)
"""Families by the ``model_type`` of their config."""

register_family = FAMILIES.register


class Sized(Protocol):
    """A picture, as far as its tokens are concerned."""

    @property
    def size(self) -> Size:
        """(width, height)."""
        ...


@dataclass(frozen=True)
class SpanTable:
    """The K pictures of S sequences laid end to end, in the order of their tokens.

    Attributes:
        segment: [K] which sequence a picture stands in.
        offset: [K] its first placeholder, counted from the start of that sequence.
        length: [K] its placeholders.
        media: [K] index into the batch's pictures.
        grid: [K, 3] (time, height, width) in tokens, for families whose positions follow the grid.
    """

    segment: Tensor
    offset: Tensor
    length: Tensor
    media: Tensor
    grid: Tensor | None = None


class Family(ABC):
    """What a kind of model does its own way.

    Args:
        config: the transformers config of the model.
        tokenizer: its tokenizer, fast, with a chat template where prompts come as messages.
        image_processor: its image processor, the PIL one, so that no pixel depends on what else is installed.
    """

    name: ClassVar[str]
    parts: ClassVar[dict[str, str]]
    """Parameter-name prefix to part: vision, connector or language; the longest that fits counts."""
    banned_tokens: ClassVar[tuple[str, ...]]
    """Tokens that stand for pictures and may never be sampled."""

    def __init__(self, config: Any, tokenizer: Any, image_processor: Any) -> None:
        self.config, self.tokenizer, self.image_processor = config, tokenizer, image_processor
        self.placeholder_id = int(config.image_token_id)
        known = tokenizer.get_vocab()
        tokens = (known[token] for token in self.banned_tokens if token in known)
        self.banned_ids: tuple[int, ...] = tuple(sorted({self.placeholder_id, *tokens}))

    # ------------------------------------------------------------------ prompts

    @abstractmethod
    def target_size(self, size: Size) -> Size:
        """(width, height) that a picture of this size has when the model sees it; reads no pixels."""

    @abstractmethod
    def image_tokens(self, size: Size) -> int:
        """Placeholder tokens of a picture of this (width, height); reads no pixels."""

    @abstractmethod
    def patches(self, size: Size) -> int:
        """Vision patches of a picture of this (width, height), for counting cost; reads no pixels."""

    def encode_prompt(
        self, text: str | Sequence[Mapping[str, Any]], pictures: Sequence[Sized]
    ) -> tuple[Tensor, Tensor, tuple[Span, ...]]:
        """Expanded ids, unexpanded ids, and where each picture stands (``Span.media`` counts through ``pictures``).

        Args:
            text: prompt text with one placeholder for each picture, or chat messages with ``{"type": "image"}`` parts.
            pictures: anything with a size, in the order in which they are spoken of.

        Raises ``DataError`` when placeholders and pictures are not equally many.
        """
        return self.expand(torch.tensor(self._tokenize(text), dtype=torch.int64), pictures)

    def expand(self, engine_ids: Tensor, pictures: Sequence[Sized]) -> tuple[Tensor, Tensor, tuple[Span, ...]]:
        """What :meth:`encode_prompt` gives, from ids with one placeholder for each picture."""
        places = (engine_ids == self.placeholder_id).nonzero().squeeze(1)
        if len(places) != len(pictures):
            raise DataError(
                f"the prompt holds {len(places)} picture placeholders for {len(pictures)} pictures; give each picture one."
            )
        if not pictures:
            return engine_ids, engine_ids, ()
        lengths = [self.image_tokens(picture.size) for picture in pictures]
        repeats = torch.ones_like(engine_ids).index_put_((places,), torch.tensor(lengths))
        starts = (repeats.cumsum(0) - repeats)[places].tolist()
        spans = tuple(
            Span(media, offset, length) for media, (offset, length) in enumerate(zip(starts, lengths, strict=True))
        )
        return engine_ids.repeat_interleave(repeats), engine_ids, spans

    def _tokenize(self, text: str | Sequence[Mapping[str, Any]]) -> list[int]:
        if not isinstance(text, str):
            if not self.tokenizer.chat_template:
                raise DataError("the tokenizer has no chat template for messages; give prompts as text, or set one.")
            text = self.tokenizer.apply_chat_template(list(text), tokenize=False, add_generation_prompt=True)
        begin = self.tokenizer.bos_token
        has_begin = bool(begin) and str(text).startswith(str(begin))  # a template that writes it already
        return list(self.tokenizer(text, add_special_tokens=not has_begin)["input_ids"])

    # ------------------------------------------------------------------ pixels

    def process(self, picture: Image.Image | Any) -> Pixels:
        """One picture (PIL, or a handle with ``decode``) as the tensors that the vision tower takes."""
        image = picture if isinstance(picture, Image.Image) else picture.decode()
        return dict(self.image_processor(images=[image], return_tensors="pt"))

    def process_all(self, pictures: Sequence[Image.Image | Any]) -> list[Pixels]:
        """What :meth:`process` makes of each picture, by one call of the image processor."""
        images = [picture if isinstance(picture, Image.Image) else picture.decode() for picture in pictures]
        joined = dict(self.image_processor(images=images, return_tensors="pt"))
        rows = self.pixel_rows(joined)
        split = {name: tensor.split(rows if name == "pixel_values" else 1) for name, tensor in joined.items()}
        return [{name: parts[i].clone() for name, parts in split.items()} for i in range(len(images))]

    def pixel_rows(self, pixels: Pixels) -> list[int]:
        """How many rows of ``pixel_values`` each of several pictures takes; all other tensors have one row a picture."""
        return [1] * len(pixels["pixel_values"])

    def pixels(self, media: Media) -> Pixels:
        """The picture's processed tensors, made at the first call and kept with it."""
        if not media.pixels:
            if media.image is None:
                raise DataError(f"picture '{media.key}' has neither pixels nor an image to make them from.")
            media.pixels.update(self.process(media.image))
        return media.pixels

    @abstractmethod
    def blank(self) -> Pixels:
        """The smallest picture: what the vision tower runs on when a forward has none, so that ranks stay in step."""

    @abstractmethod
    def features(self, pixels: Pixels) -> int:
        """How many features the vision tower gives for these tensors."""

    def grid(self, pixels: Pixels) -> tuple[int, int, int] | None:
        """One picture's (time, height, width) in tokens; ``None`` where positions don't follow the grid."""
        return None

    # ------------------------------------------------------------------ model

    def prepare(self, model: Any) -> None:
        """Changes a model's modules, once, where an equal one is quicker; parameters keep their names and values."""
        return

    def positions(self, lengths: Tensor, spans: SpanTable) -> tuple[Tensor, Tensor]:
        """Positions of S sequences laid end to end, and the position that comes after each.

        Args:
            lengths: [S] tokens of each sequence.

        Returns:
            [T] (or [3, T] for M-RoPE) positions of the T = sum(lengths) tokens, and [S] next positions.
        """
        return segment_offsets(lengths), lengths

    @abstractmethod
    def encode_images(self, model: Any, pixels: Pixels) -> tuple[Tensor, ...]:
        """Features [F, H] of all pictures in order; further tensors where features enter deeper layers too."""

    def language_inputs(self, embeds: Tensor, pictures: Pictures, features: tuple[Tensor, ...]) -> dict[str, Any]:
        """Keywords of the language model: embeddings [R, T, H] with the pictures' features in their slots."""
        picked = pictures.pick(features[0]).to(embeds.dtype)
        flat = embeds.flatten(0, 1).index_copy(0, pictures.slots, picked)
        return {"inputs_embeds": flat.view_as(embeds)}

    def parameter_part(self, name: str) -> str:
        """Which part a parameter belongs to: vision, connector or language."""
        fitting = [prefix for prefix in self.parts if name.startswith(prefix)]
        return self.parts[max(fitting, key=len)] if fitting else "language"

    def processor_settings(self) -> dict[str, Any]:
        """``processor_config.json`` of a model that was built: what joins tokenizer and image processor; empty for defaults."""
        return {}

    def checkpoint_names(self, model: Any, names: Iterable[str]) -> dict[str, str]:
        """Each parameter name and the one that ``save_pretrained`` writes and the inference engines load."""
        from transformers.core_model_loading import revert_weight_conversion  # here: settings are checked without it

        kept = list(names)
        numbered = {name: torch.tensor(number) for number, name in enumerate(kept)}
        stored = revert_weight_conversion(model, numbered)
        if len(stored) != len(kept):
            raise ConfigError(f"family '{self.name}' joins weights when it saves, which weight updates can't follow.")
        return {kept[int(number)]: name for name, number in stored.items()}


def segment_offsets(lengths: Tensor) -> Tensor:
    """[T] position of each token within its sequence, for sequences of these lengths laid end to end."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum()), device=lengths.device) - starts.repeat_interleave(lengths)


def family_of(config: Any, tokenizer: Any, image_processor: Any) -> Family:
    """The family of a model, by its config's ``model_type``; an unknown one raises ``RegistryError`` with the nearest name."""
    part = FAMILIES.build(str(config.model_type))
    family: Family = part({"config": config, "tokenizer": tokenizer, "image_processor": image_processor})
    return family
