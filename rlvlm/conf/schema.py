"""The tree of a recipe, the same in YAML and in Python: each component's own dataclass under its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.data.config import DataConfig
from rlvlm.models.config import ModelConfig
from rlvlm.pipelines.config import RunConfig
from rlvlm.rewards.config import RewardConfig
from rlvlm.roles.config import ActorConfig, RolloutConfig


@dataclass
class Recipe:
    """Everything that decides a run.

    Attributes:
        plugins: files or dotted modules whose import registers a user's own parts, loaded in every process.
        model: which model, in which precision, what of it trains.
        data: records, prompts, pictures.
        algorithm: which parts make the algorithm.
        actor: how a batch becomes optimiser steps.
        rollout: how answers are sampled.
        reward: which rules score them.
        train_engine: node of the engine that trains.
        inference_engine: node of the engine that samples.
        stages: what is laid over this tree for each stage of the run, one after the other (see ``conf/stages.py``); a
            recipe without stages is one ``rlvr`` stage.
        run: length, evaluation, checkpoints, trackers, gates.
    """

    plugins: list[str] = field(default_factory=list)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    train_engine: Any = "local"
    inference_engine: Any = "hf"
    stages: list[Any] = field(default_factory=list)
    run: RunConfig = field(default_factory=RunConfig)


PARTS: dict[str, str] = {
    "model.build": "model_builders",
    "algorithm.advantage": "advantages",
    "algorithm.policy_loss": "policy_losses",
    "algorithm.value_loss": "value_losses",
    "algorithm.correction": "corrections",
    "algorithm.aggregation": "aggregations",
    "train_engine": "train_engines",
    "inference_engine": "inference_engines",
}
"""Keys that hold a part, by name or as a mapping with ``name`` and options, and the group of its registry."""

SOURCES = ("data.train", "data.eval")
"""Keys that hold sources of records: a part with ``name``, or a file with ``path``."""

WEIGHTED = ("algorithm.regularizers", "reward.rules")
"""Keys that hold several parts by name, each with its weight, or with a mapping of ``weight`` and options."""


def store_schema() -> None:
    """Tells hydra the tree as the structured config ``schema``, which ``base.yaml`` starts from."""
    ConfigStore.instance().store(name="schema", node=Recipe, provider="rlvlm")
