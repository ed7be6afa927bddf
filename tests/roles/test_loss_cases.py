"""Cases of losses over micro-batches: by the actor's own update, a token's weight read from the gradient that reaches it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.batch import Batch, Prompt
from rlvlm.engines.train import batching
from rlvlm.engines.train.base import TrainEngine
from rlvlm.models.outputs import TokenOutputs
from rlvlm.roles.actor import Actor
from rlvlm.roles.config import ActorConfig
from tests.loss_cases import Case, cases_of, close, table


class GivenLogp:
    """A train engine whose policy is a table of log-probs [B, L]; it splits batches as the engines do."""

    def __init__(self, logp: Tensor) -> None:
        self.logp = logp.requires_grad_()
        self.sizes: list[int] = []
        self.losses: list[float] = []
        self.steps = 0
        self._rows: dict[int, Tensor] = {}

    def micro_batches(self, batch: Batch, budget: int) -> list[batching.MicroBatch]:
        pieces = batching.micro_batches(batch, budget, lambda _: 0, shared=True)
        self.sizes = [len(rows) for rows, _ in pieces]
        self._rows = {id(micro): rows for rows, micro in pieces}
        return pieces

    def forward(self, batch: Batch, *, grad: bool) -> TokenOutputs:
        with torch.set_grad_enabled(grad):
            logp = self.logp[self._rows[id(batch)]] * batch["loss_mask"]
        return TokenOutputs(logp, torch.zeros_like(logp))

    def backward(self, loss: Tensor) -> None:
        self.losses.append(loss.item())
        loss.backward()

    def step(self) -> dict[str, Tensor | float]:
        self.steps += 1
        return {}

    def skip(self, steps: int) -> None:
        assert steps == 0


def rows_of(losses: list[list[float]], advantage_sign: float) -> Batch:
    """Each row an answer of its own prompt of one token; its advantages give the row's token losses at a log-prob of -1."""
    width = 1 + max(map(len, losses))
    columns = torch.arange(width)
    ends = torch.tensor([1 + len(row) for row in losses])[:, None]
    mask = (columns >= 1) & (columns < ends)
    advantages = torch.zeros(mask.shape).masked_scatter(mask, torch.tensor([loss for row in losses for loss in row]))
    head = torch.zeros(1, dtype=torch.int64)
    return Batch(
        {
            "input_ids": torch.zeros(mask.shape, dtype=torch.int64),
            "attention_mask": columns < ends,
            "loss_mask": mask,
            "group_ids": torch.arange(len(losses)),
            "advantages": advantage_sign * advantages,
            **{name: -mask.float() for name in ("behav_logp", "prox_logp")},
        },
        prompts=[Prompt(str(number), {}, head, head) for number in range(len(losses))],
    )


NO_COVARIANCE = {"name": "clip_cov", "low": 1e6, "high": 1e7}
"""Clips no token here, and sees the whole mini-batch at once."""


def accumulated_loss(x: Case, expected: Case, case: Case) -> None:
    """By a loss that adds up over micro-batches and by one that takes two passes; in the case's pieces and in one piece."""
    pieces = [piece["token_losses"] for piece in x["micro_batches"]]
    losses = [row for rows in pieces for row in rows]
    in_pieces = 1 + max(map(len, losses))
    ways: list[tuple[Any, float]] = [("reinforce", 1.0), (NO_COVARIANCE, -1.0)]
    for policy_loss, sign in ways:
        for budget, sizes in ((in_pieces, [len(rows) for rows in pieces]), (10_000, [len(losses)])):
            batch = rows_of(losses, sign)
            engine = GivenLogp(batch["prox_logp"].clone())
            algorithm = Algorithm(AlgorithmConfig(policy_loss=policy_loss, aggregation=x["mode"]))
            actor = Actor(cast(TrainEngine, engine), algorithm, ActorConfig(token_budget=budget))
            actor.update(batch)
            assert (engine.sizes, engine.steps) == (sizes, 1)
            assert engine.logp.grad is not None
            mask = batch["loss_mask"]
            weights = (-engine.logp.grad / batch["advantages"])[mask]
            close(weights, [expected["weight_of_every_token"]] * len(weights), case)
            close((weights * sign * batch["advantages"][mask]).sum(), expected["effective_loss"], case)
            assert not engine.logp.grad[~mask].any()
            if algorithm.loss_scope != "minibatch":
                close(torch.tensor(sum(engine.losses)), expected["effective_loss"], case)


OPERATIONS = table(accumulated_loss)


@cases_of(OPERATIONS)
def test_a_fault_reported_of_another_library(case: Case) -> None:
    OPERATIONS[case["input"]["op"]](case["input"], case["expected"], case)
