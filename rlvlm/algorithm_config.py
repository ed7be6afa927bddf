"""The settings of an algorithm, free of torch: every part is a name, or a mapping with ``name`` and that part's options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class AlgorithmConfig:
    """Which parts an :class:`rlvlm.algorithm.Algorithm` is composed of.

    A *node* is a registered name (``"grpo"``) or a mapping with ``name`` and options (``{"name": "grpo", "std": "none"}``).
    """

    advantage: Any = "grpo"
    """Node of the advantage estimator."""

    policy_loss: Any = "ppo_clip"
    """Node of the policy loss."""

    value_loss: Any = None
    """Node of the value loss, with an optional ``weight``; needed as soon as the advantage reads ``values``."""

    regularizers: dict[str, Any] = field(default_factory=dict)
    """Name to weight, or to a mapping with ``weight``, the regulariser's options and (for a KL) ``controller``."""

    kl_in_reward: Any = None
    """KL to the reference taken off the token rewards: a weight, or a mapping with ``weight``, ``estimator``, ``controller``."""

    correction: Any = None
    """Node of the off-policy correction, or a list of nodes: their weights multiply, their masks intersect."""

    aggregation: Any = "token-mean"
    """Node of the aggregation that turns a per-token loss into a scalar."""

    filters: list[Any] = field(default_factory=list)
    """Nodes of the group filters, applied in this order."""

    max_refills: int = 10
    """How often a step draws new prompts in place of the groups that filters dropped, at most; 0 trains on what is left.

    Elsewhere: ``filter_groups.max_num_gen_batches`` (verl), ``max_try_make_batch`` (EasyR1, RLLaVA), which count the first
    batch too and end the run where it is not full by then.
    """

    conventions: dict[str, Any] = field(default_factory=dict)
    """Options by kind and name of part, taken where a node gives none: ``{"advantages": {"rloo": {"singleton": "reward"}}}``."""

    mask_truncated: bool = False
    """Leave samples that were cut by length out of every loss and of every denominator."""

    seed: int = 0
    """Seed of the random choices that losses make (clip_cov)."""
