"""``Policy``: one ``nn.Module`` with one forward, the only way into a model.

Vision, layout, language and head run inside that forward, so that sharding hooks, checkpointing, adapters, autocast and
compilation all see an ordinary call. Each forward makes exactly one vision call and one head call, empty ones included,
so that ranks stay in step.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlvlm.batch import Batch
from rlvlm.errors import ConfigError
from rlvlm.models.attention import ATTENTION, register_attention
from rlvlm.models.companions import copy_companions
from rlvlm.models.config import LoraConfig
from rlvlm.models.families.base import Family, family_of
from rlvlm.models.head import next_token_logits, token_logp
from rlvlm.models.layouts import build_rows
from rlvlm.models.lora import adapters_off, add_adapters, has_adapters, merged_weights, weight_names
from rlvlm.models.outputs import TokenOutputs
from rlvlm.models.planner import Costs, Plan, Sizes, plan_layout
from rlvlm.models.rows import Rows
from rlvlm.models.trainable import set_trainable

_LOG = logging.getLogger("rlvlm")


class Policy(nn.Module):
    """A vision-language model that judges tokens.

    Args:
        model: a transformers model for image-text-to-text.
        family: the object that knows its kind.
        layout: of rows: shared, packed, padded, or auto, which takes the cheapest by count and logs which and why.
        head_chunk: logits that exist at a time.
        source: the folder that the model was loaded from; ``None`` for one that was built.

    Raises ``ConfigError`` for a model whose head has a bias, which the chunked head does not add.
    """

    banned: Tensor

    def __init__(
        self,
        model: Any,
        family: Family,
        *,
        layout: str = "auto",
        head_chunk: int = 4_194_304,
        source: Path | None = None,
    ) -> None:
        super().__init__()
        self.model, self.family, self.head_chunk = model, family, head_chunk
        self.layout_kind = layout
        self.source = source
        self.register_buffer("banned", torch.tensor(family.banned_ids, dtype=torch.int64), persistent=False)
        if getattr(model.get_output_embeddings(), "bias", None) is not None:
            raise ConfigError(
                "this model's head has a bias, which the chunked head does not add; use a model without one."
            )
        register_attention()
        family.prepare(model)
        model.set_attn_implementation(ATTENTION)
        self._costs = Costs.of(model.named_parameters(), family.parameter_part, model.config.get_text_config())
        self._dropout = _has_dropout(model)
        self._told: set[str] = set()
        self.train(model.training)

    @classmethod
    def from_parts(cls, model: Any, tokenizer: Any, image_processor: Any, **options: Any) -> Policy:
        """A policy of a model in memory; ``options`` are those of the class."""
        return cls(model, family_of(model.config, tokenizer, image_processor), **options)

    # ------------------------------------------------------------------ forward

    def forward(self, rows: Rows) -> TokenOutputs | Tensor:
        """Log-probs and entropies of the rows' targets, or next-token logits [N, V] where the rows have no targets."""
        states = self.states(rows)
        weight = self.model.get_output_embeddings().weight
        if rows.targets is None:
            return next_token_logits(states, weight, self.banned)
        logp, entropy = token_logp(
            states, weight, rows.targets, rows.temperature, self.family.banned_ids, self.head_chunk
        )
        return TokenOutputs(rows.scatter(logp), rows.scatter(entropy))

    def states(self, rows: Rows) -> Tensor:
        """[N, H] last hidden states at the rows' reads; public for modules whose own forward puts another head on them."""
        embeds = self.model.get_input_embeddings()(rows.ids)
        if rows.pictures is None:
            inputs: dict[str, Any] = {"inputs_embeds": embeds}
        else:
            features = self.family.encode_images(self.model, rows.pictures.pixels)
            inputs = self.family.language_inputs(embeds, rows.pictures, features)
        if rows.layout is None:
            inputs["attention_mask"] = rows.attention_mask
        else:  # a mask of four dimensions is taken as it is, so that none is made
            unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=embeds.device)
            inputs |= {"layout": rows.layout, "attention_mask": unused}
        hidden = self.model.model.language_model(
            position_ids=rows.positions, use_cache=False, **inputs
        ).last_hidden_state
        return hidden.flatten(0, 1).index_select(0, rows.reads)

    # ------------------------------------------------------------------ layouts

    def layout(self, batch: Batch, kind: str | None = None) -> Rows:
        """The batch as rows of a layout, on the batch's device; reads no weights.

        Args:
            kind: shared, packed or padded; ``None`` takes the policy's own, which may be planned.

        Raises ``ConfigError`` for an unknown layout and ``DataError`` naming the sample where pictures and placeholders differ.
        """
        with torch.no_grad():
            return build_rows(batch, self.family, self._kind(batch) if kind is None else kind)

    def plan(self, batch: Batch) -> Plan:
        """What each layout of the batch would cost, which is taken and why."""
        plan = plan_layout(Sizes.of(batch, lambda picture: self.family.patches(picture.size)), self._costs)
        if self.layout_kind != "auto":
            return Plan(self.layout_kind, plan.costs, f"{self.layout_kind} rows: model.layout says so")
        if self.dropout_active:
            return Plan(
                "padded", plan.costs, "padded rows: dropout is on, and a shared prompt would share its dropped entries"
            )
        return plan

    def shares_prompts(self, batch: Batch) -> bool:
        """Whether the batch would run with each group's prompt once."""
        return len(batch) > 0 and self._kind(batch) == "shared"

    def _kind(self, batch: Batch) -> str:
        if self.layout_kind != "auto":
            return self.layout_kind
        if not len(batch):
            return "packed"
        plan = self.plan(batch)
        if plan.kind not in self._told:  # passes of several shapes alternate, so each layout is told of once
            _LOG.info("%s", plan.why)
            self._told.add(plan.kind)
        return plan.kind

    # ------------------------------------------------------------------ parameters

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.family.tokenizer

    @property
    def dropout_active(self) -> bool:
        """True when a dropout above 0 is at work: two passes over the same rows differ."""
        return self.training and self._dropout

    def part_of(self, name: str) -> str:
        """vision, connector or language, of a name from ``named_parameters`` of the policy or of its model."""
        return self.family.parameter_part(name.removeprefix("model.") if name.startswith("model.model.") else name)

    def set_trainable(self, patterns: Sequence[str]) -> None:
        """Lets exactly the parameters train that a part or shell pattern names; see :func:`rlvlm.models.trainable.set_trainable`."""
        set_trainable(self.model, self.family, patterns)

    def add_adapters(self, config: LoraConfig, seed: int = 0) -> None:
        """Adds low-rank adapters, at zero, and freezes all else; see :func:`rlvlm.models.lora.add_adapters`."""
        add_adapters(self.model, self.family, config, seed)

    @property
    def has_adapters(self) -> bool:
        """Whether low-rank adapters train in place of the weights."""
        return has_adapters(self.model)

    def adapter_off(self) -> contextlib.AbstractContextManager[None]:
        """A block in which the model is the one it was before its adapters."""
        return adapters_off(self.model)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by its checkpoint name, one after another, adapters merged in; no copy where there are none."""
        names = self.family.checkpoint_names(self.model, weight_names(self.model))
        for name, weight in merged_weights(self.model):
            yield names[name], weight

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder as transformers and the engines load it: the model (adapters merged in), and all that is beside it.

        That is what lay beside the weights in the folder that the model was loaded from; of a model that was built, its
        tokenizer, image processor and what its family needs to join the two.
        """
        state = dict(merged_weights(self.model)) if self.has_adapters else None
        self.model.save_pretrained(folder, state_dict=state)
        if self.source is not None:
            copy_companions(self.source, Path(folder))
            return
        self.family.tokenizer.save_pretrained(folder)
        self.family.image_processor.save_pretrained(folder)
        joint = self.family.processor_settings()
        if joint:
            Path(folder, "processor_config.json").write_text(json.dumps(joint, indent=2) + "\n", encoding="utf-8")


def _has_dropout(model: Any) -> bool:
    layers = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    return layers or any(getattr(module, "attention_dropout", 0.0) for module in model.modules())
