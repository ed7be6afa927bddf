"""Which layout a batch runs in: counts what each would cost and says which it took and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvlm.batch import Batch, Media

_COPY = 8.0  # operations that fit in the time of copying one number, forward and back; memory is the slower by far


@dataclass(frozen=True)
class Costs:
    """Operations of one forward, by what they grow with.

    Attributes:
        patch: for each vision patch.
        token: for each text token, attention apart.
        pair: for each query and key that meet.
        copy: for each key copied to another sample.
    """

    patch: float
    token: float
    pair: float
    copy: float

    @staticmethod
    def of(parameters: Iterable[tuple[str, Tensor]], part_of: Callable[[str], str], config: Any) -> Costs:
        """Counted from a model's matrices (its embeddings apart) and the config of its language model."""
        sizes = {"vision": 0, "connector": 0, "language": 0}
        for name, weight in parameters:
            if weight.dim() > 1 and "embed" not in name and "lm_head" not in name:
                sizes[part_of(name)] += weight.numel()
        layers, heads = config.num_hidden_layers, config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        groups = config.num_key_value_heads
        return Costs(
            patch=2.0 * (sizes["vision"] + sizes["connector"]),
            token=2.0 * sizes["language"],
            pair=4.0 * layers * heads * size,
            copy=2.0 * layers * groups * size * _COPY,
        )


@dataclass(frozen=True)
class Plan:
    """A layout, what each layout would cost in operations of one forward, and why this one."""

    kind: str
    costs: dict[str, float]
    why: str


@dataclass(frozen=True)
class Sizes:
    """What the cost of a batch depends on.

    Attributes:
        prompts: [P] tokens of the prompts in use.
        rests: [B] tokens of each sample after its prompt.
        groups: [B] index into ``prompts``.
        whole: [B] true where a sample holds pictures of its own and so can't share its prompt.
        patches: vision patches of the distinct pictures in use.
        row_patches: of the pictures of every sample, repeats included.
    """

    prompts: Tensor
    rests: Tensor
    groups: Tensor
    whole: Tensor
    patches: int
    row_patches: int

    @staticmethod
    def of(batch: Batch, patches: Callable[[Media], int]) -> Sizes:
        """The sizes of a batch; ``patches`` counts those of a picture."""
        used, groups = torch.unique(batch["group_ids"].cpu(), return_inverse=True)
        prompts = [batch.prompts[number] for number in used.tolist()]
        lengths = torch.tensor([len(prompt.ids) for prompt in prompts])
        rows = batch.objects.get("spans") or [()] * len(batch)
        media = {span.media for spans in (*(prompt.spans for prompt in prompts), *rows) for span in spans}
        each = {number: patches(batch.media[number]) for number in media}
        of_prompts = torch.tensor([sum(each[span.media] for span in prompt.spans) for prompt in prompts])
        own = sum(each[span.media] for spans in rows for span in spans)
        return Sizes(
            lengths,
            batch["attention_mask"].sum(1).cpu() - lengths[groups],
            groups,
            torch.tensor([bool(spans) for spans in rows], dtype=torch.bool),
            sum(each.values()),
            int(of_prompts[groups].sum()) + own,
        )


def plan_layout(sizes: Sizes, costs: Costs) -> Plan:
    """The cheapest of shared, packed and padded rows for a batch of these sizes."""
    lengths = sizes.prompts[sizes.groups] + sizes.rests
    counted = {
        "shared": _shared(sizes, lengths, costs),
        "packed": costs.patch * sizes.patches + _stems(lengths, costs),
        "padded": costs.patch * sizes.row_patches + _stems(lengths.amax().expand_as(lengths), costs),
    }
    kind = min(
        ("packed", "shared", "padded"), key=counted.__getitem__
    )  # packed is the plainer where they cost the same
    others = " and ".join(f"{counted[name] / 1e9:.3g} {name}" for name in counted if name != kind)
    each = len(sizes.groups) / max(len(sizes.prompts), 1)
    why = (
        f"{kind} rows: {counted[kind] / 1e9:.3g} GFLOP forward against {others}; {each:.3g} samples a prompt, "
        f"{float(sizes.prompts.float().mean()):.0f} prompt and {float(sizes.rests.float().mean()):.0f} response tokens each, "
        f"{sizes.patches} patches of distinct pictures"
    )
    return Plan(kind, counted, why)


def _stems(lengths: Tensor, costs: Costs) -> float:
    """Causal sequences, attention over blocks as long as the longest."""
    if not len(lengths):
        return 0.0
    pairs = len(lengths) * float(lengths.amax()) ** 2 / 2
    return costs.token * float(lengths.sum()) + costs.pair * pairs


def _shared(sizes: Sizes, lengths: Tensor, costs: Costs) -> float:
    sharing = ~sizes.whole
    prompts = sizes.prompts[torch.unique(sizes.groups[sharing])]
    total = costs.patch * sizes.patches + _stems(torch.cat((prompts, lengths[sizes.whole])), costs)
    rests = sizes.rests[sharing]
    if not len(rests):
        return total
    longest, keys = float(rests.amax()), float(prompts.amax() + rests.amax())
    copies = len(rests) * float(prompts.amax()) if len(prompts) > 1 else 0.0
    return total + costs.token * float(rests.sum()) + costs.pair * len(rests) * longest * keys + costs.copy * copies
