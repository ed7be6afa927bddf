"""The rollout: answers to prompts, and keeping the engine in step with the actor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import Tensor

from rlvlm.batch import Batch
from rlvlm.engines.inference.base import InferenceEngine
from rlvlm.engines.inference.config import SamplingParams
from rlvlm.roles.config import RolloutConfig

EVAL_STEP = -1
"""The step that keys the noise of evaluations: the same draws every time, apart from those of training."""


class Rollout:
    """Owns the inference engine.

    Args:
        engine: any inference engine.
        config: how many answers, and how they are sampled.
        seed: of the sampling noise.
    """

    def __init__(self, engine: InferenceEngine, config: RolloutConfig | None = None, *, seed: int = 0) -> None:
        self.engine, self.config = engine, config or RolloutConfig()
        self.params = sampling_params(self.config, seed)
        engine.check(self.params)

    def generate(self, prompts: Batch, step: int = 0) -> Batch:
        """``n`` sampled answers for each prompt: P * n rows with ``behav_logp`` and ``versions``."""
        return self.engine.generate(prompts, self.params, step)

    def generate_once(self, prompts: Batch, *, greedy: bool, step: int = EVAL_STEP) -> Batch:
        """One answer for each prompt, greedy or sampled; for evaluation and for greedy baselines."""
        return self.engine.generate(prompts, dataclasses.replace(self.params, n=1, greedy=greedy), step)

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Gives the engine the actor's weights; afterwards nothing made with older ones is left in a cache."""
        self.engine.update_weights(weights, version)


def sampling_params(config: RolloutConfig, seed: int) -> SamplingParams:
    """The engine's view of a rollout's settings."""
    return SamplingParams(
        n=config.n,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.max_new_tokens,
        stop=tuple(config.stop),
        stop_ids=tuple(config.stop_ids),
        seed=seed,
        skip_special_tokens=config.skip_special_tokens,
    )
