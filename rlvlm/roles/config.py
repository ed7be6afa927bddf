"""Settings of the actor and of the rollout; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.ranges import at_least, check_ranges


@dataclass
class ActorConfig:
    """How a batch becomes optimiser steps: epochs × mini-batches, each in micro-batches that fit the budget.

    Attributes:
        epochs: passes over the batch; 1 in supervised training, where every batch is of new records.
        mini_batches: optimiser steps in an epoch; each takes whole groups, so that fewer groups make fewer steps, spread over the
            same schedule. 1 in supervised training.
        token_budget: cost of one micro-batch at most, in text tokens plus vision patches of the chosen layout.
        shuffle: mini-batches take groups in a random order, seeded by the run.
        optimizer: AdamW, schedule, clipping, groups.
    """

    epochs: int = 1
    mini_batches: int = 1
    token_budget: int = 16384
    shuffle: bool = True
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        check_ranges("actor", self, at_least(1, "epochs", "mini_batches", "token_budget"))


@dataclass
class RolloutConfig:
    """How answers are sampled.

    Attributes:
        n: answers for each prompt.
        temperature: of sampling, above 0 in training; the trainer divides its logits by it too.
        top_p: keep the smallest set of tokens with this probability.
        top_k: keep this many tokens; 0 keeps all.
        max_new_tokens: length limit of an answer.
        stop: strings that end an answer.
        stop_ids: token ids that end an answer beside the tokenizer's end of text.
        skip_special_tokens: leave special tokens out of the text that rewards and logs are given; ``false`` keeps them
            (all but the one that ends the answer), for models that write boxes as ``<|box_start|>(1,2),(3,4)<|box_end|>``.
    """

    n: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 1024
    stop: list[str] = field(default_factory=list)
    stop_ids: list[int] = field(default_factory=list)
    skip_special_tokens: bool = True
