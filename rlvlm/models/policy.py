"""``Policy``: one ``nn.Module`` with one forward, the only way into a model.

Vision, layout, language and head run inside that forward, so that sharding hooks, checkpointing, adapters, autocast and
compilation all see an ordinary call. Each forward makes exactly one vision call and one head call, empty ones included,
so that ranks stay in step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlvlm.batch import Batch
from rlvlm.errors import ConfigError
from rlvlm.models.attention import ATTENTION
from rlvlm.models.config import LAYOUTS
from rlvlm.models.families.base import Family, family_of
from rlvlm.models.head import next_token_logits, token_logp
from rlvlm.models.layouts import build_rows
from rlvlm.models.outputs import TokenOutputs
from rlvlm.models.rows import Rows


class Policy(nn.Module):
    """A vision-language model that judges tokens.

    Args:
        model: a transformers model for image-text-to-text.
        family: the object that knows its kind.
        head_chunk: logits that exist at a time.
    """

    banned: Tensor

    def __init__(self, model: Any, family: Family, head_chunk: int = 4_194_304) -> None:
        super().__init__()
        self.model, self.family, self.head_chunk = model, family, head_chunk
        self.register_buffer("banned", torch.tensor(family.banned_ids, dtype=torch.int64), persistent=False)
        head = model.get_output_embeddings()
        if getattr(head, "bias", None) is not None:
            raise ConfigError(
                "this model's head has a bias, which the chunked head does not add; use a model without one."
            )
        model.set_attn_implementation(ATTENTION)

    @classmethod
    def from_parts(cls, model: Any, tokenizer: Any, image_processor: Any, head_chunk: int = 4_194_304) -> Policy:
        """A policy of a model in memory."""
        return cls(model, family_of(model.config, tokenizer, image_processor), head_chunk)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.family.tokenizer

    def layout(self, batch: Batch, kind: str = "shared") -> Rows:
        """The batch as rows of this layout (shared, packed or padded), on the batch's device; reads no weights.

        Raises ``ConfigError`` for an unknown layout and ``DataError`` naming the sample where pictures and placeholders differ.
        """
        if kind not in LAYOUTS[1:]:
            raise ConfigError(f"a layout is one of {', '.join(LAYOUTS[1:])}, got '{kind}'.")
        with torch.no_grad():
            return build_rows(batch, self.family, kind)

    def forward(self, rows: Rows) -> TokenOutputs | Tensor:
        """Log-probs and entropies of the rows' targets, or next-token logits [N, V] where the rows have no targets."""
        states = self._states(rows).flatten(0, 1).index_select(0, rows.reads)
        weight = self.model.get_output_embeddings().weight
        if rows.targets is None:
            return next_token_logits(states, weight, self.banned)
        logp, entropy = token_logp(states, weight, rows.targets, rows.temperature, self.banned, self.head_chunk)
        return TokenOutputs(_scatter(logp, rows), _scatter(entropy, rows))

    def _states(self, rows: Rows) -> Tensor:
        """[R, T, H] last hidden states."""
        embeds = self.model.get_input_embeddings()(rows.ids)
        if rows.pictures is None:
            inputs: dict[str, Any] = {"inputs_embeds": embeds}
        else:
            features = self.family.encode_images(self.model, rows.pictures.pixels)
            inputs = self.family.language_inputs(embeds, rows.pictures, features)
        if rows.layout is None:
            inputs["attention_mask"] = rows.attention_mask
        else:
            inputs["layout"] = rows.layout
            inputs["attention_mask"] = rows.ids.new_ones(
                1, 1, 1, 1, dtype=torch.bool
            )  # 4-D: taken as it is, none is made
        options = {"use_cache": False, **rows.model_kwargs}
        return self.model.model.language_model(position_ids=rows.positions, **inputs, **options).last_hidden_state

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes model, tokenizer and image processor as transformers and the engines load them."""
        self.model.save_pretrained(folder)
        self.family.tokenizer.save_pretrained(folder)
        self.family.image_processor.save_pretrained(folder)


def _scatter(values: Tensor, rows: Rows) -> Tensor:
    """[N] values to their places in [B, L], zero elsewhere."""
    assert rows.places is not None  # rows with targets have places
    flat = values.new_zeros(rows.shape[0] * rows.shape[1])
    return flat.index_copy(0, rows.places, values).view(rows.shape)
