"""What a user's own part gives has a value for each token, and is not spread over tokens if it has not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos.registries import ADVANTAGES, CORRECTIONS, POLICY_LOSSES, REGULARIZERS
from rlvlm.algos.results import AdvantageEstimate, Correction
from rlvlm.errors import FieldError
from tests.test_algorithm import batch_and_pass


@pytest.fixture(autouse=True)
def narrow_parts() -> Iterator[None]:
    @POLICY_LOSSES.register("narrow")
    def policy_loss(logp: Tensor) -> Tensor:
        return logp.sum(-1, keepdim=True)

    @REGULARIZERS.register("narrow_loss")
    def loss(logp: Tensor) -> Tensor:
        return logp.sum(-1)

    @REGULARIZERS.register("narrow_reward", acts_on="reward")
    def reward(loss_mask: Tensor) -> Tensor:
        return torch.zeros(1, loss_mask.shape[1])

    @REGULARIZERS.register("narrow_weights", acts_on="weights")
    def weights(loss_mask: Tensor) -> Tensor:
        return torch.ones(loss_mask.shape[1])

    @CORRECTIONS.register("narrow")
    def correction(loss_mask: Tensor) -> Correction:
        return Correction(torch.ones(loss_mask.shape[0], 1), loss_mask)

    @ADVANTAGES.register("narrow")
    def advantage(loss_mask: Tensor) -> AdvantageEstimate:
        return AdvantageEstimate(loss_mask.float(), torch.zeros(1, 1))

    yield
    for registry, name in ((POLICY_LOSSES, "narrow"), (CORRECTIONS, "narrow"), (ADVANTAGES, "narrow")):
        del registry._entries[name]
    for name in ("narrow_loss", "narrow_reward", "narrow_weights"):
        del REGULARIZERS._entries[name]


def step(algo: Algorithm) -> None:
    batch, outputs = batch_and_pass()
    batch = algo.estimate_advantages(batch)
    algo.loss(outputs, batch, algo.denominators(batch))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_loss": "narrow"}, r"policy loss 'narrow' gives \[B, L\] = \[9, 9\], got \[9, 1\]"),
        ({"regularizers": {"narrow_loss": 1}}, r"regularizer 'narrow_loss' gives \[B, L\] = \[9, 9\], got \[9\]"),
        ({"regularizers": {"narrow_weights": 1}}, r"regularizer 'narrow_weights' gives \[B, L\] = \[9, 9\], got \[9\]"),
        (
            {"regularizers": {"narrow_reward": 1}},
            r"regularizer 'narrow_reward' gives \[B, L\] = \[9, 9\], got \[1, 9\]",
        ),
        ({"correction": "narrow"}, r"correction 'narrow' gives \[B, L\] = \[9, 9\], got \[9, 1\]"),
        ({"advantage": "narrow"}, r"advantage 'narrow' gives \[B, L\] = \[9, 9\], got \[1, 1\]"),
    ],
)
def test_a_part_that_gives_another_shape_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        step(Algorithm(AlgorithmConfig(**settings)))
