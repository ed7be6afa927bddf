"""The actor: log-probs of the policy, and its updates."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlvlm.algorithm import Algorithm
from rlvlm.algos.numerics import fill_masked
from rlvlm.batch import Batch
from rlvlm.engines.train.base import TrainEngine
from rlvlm.engines.train.batching import MicroBatch, mini_batches
from rlvlm.models.outputs import TokenOutputs
from rlvlm.roles.config import ActorConfig
from rlvlm.tracking.log import MetricLog, add_shares

Metrics = dict[str, Tensor]
ParityCheck = Callable[[Tensor, Batch, Tensor], Metrics]


class Actor:
    """Owns the policy that learns.

    Args:
        engine: prepared with the policy and an optimiser.
        algorithm: gives the loss and its denominators.
        config: epochs, mini-batches, token budget.
        prox_from_logp: the update takes ``logp.detach()`` of its own pass for ``prox_logp``; only right when there is one
            optimiser step per batch, no active dropout, and nothing reads ``prox_logp`` before (the planner decides).
        seed: of the order of mini-batches.
    """

    def __init__(
        self,
        engine: TrainEngine,
        algorithm: Algorithm,
        config: ActorConfig | None = None,
        *,
        prox_from_logp: bool = False,
        seed: int = 0,
    ) -> None:
        self.engine, self.algorithm, self.config = engine, algorithm, config or ActorConfig()
        self.prox_from_logp, self.seed = prox_from_logp, seed
        self.version = 0

    def compute_logp(self, batch: Batch) -> Batch:
        """Writes ``prox_logp``: the log-probs under the policy as it is now; the weights do not change."""
        return batch.with_(prox_logp=logp_of(self.engine, batch, self.config.token_budget))

    def update(self, batch: Batch) -> dict[str, float]:
        """Epochs × mini-batches × micro-batches; ``version`` goes up by one. Returns metrics, reduced by their prefix."""
        log, tokens = MetricLog(), 0.0
        for epoch in range(self.config.epochs):
            minis = mini_batches(batch, self.config.mini_batches, self._order(epoch))
            for mini, missing in zip(minis, _missing_steps(len(minis), self.config.mini_batches), strict=True):
                self.engine.skip(missing)
                fresh = not len(log)  # later steps of a batch are meant to differ from the engine
                denominators = self.algorithm.denominators(mini)
                tokens += denominators["tokens"]
                parts = self._accumulate(mini, denominators, parity if fresh else no_parity)
                log.add(add_shares(parts), weight=denominators["tokens"])
                log.add(self.engine.step())
        metrics = log.reduced()
        self.algorithm.after_update(metrics, num_tokens=tokens)
        self.version += 1
        return metrics

    def pass_over(self) -> None:
        """Moves the schedule on past a batch that has no rows left, as if its steps had been taken."""
        self.engine.skip(self.config.epochs * self.config.mini_batches)

    def _accumulate(self, mini: Batch, denominators: dict[str, float], check: ParityCheck) -> list[Metrics]:
        """Forward and backward over a mini-batch, in micro-batches whose losses and metrics add up to the mini-batch's."""
        pieces = self.engine.micro_batches(mini, self.config.token_budget)
        if self.algorithm.loss_scope == "minibatch" and len(pieces) > 1:
            return self._accumulate_in_two_passes(mini, pieces, denominators, check)
        tokens = mini["loss_mask"].sum()
        parts = []
        for _, micro in pieces:
            outputs = self.engine.forward(micro, grad=True)
            loss, metrics = self.algorithm.loss(outputs, micro, denominators, prox_from_logp=self.prox_from_logp)
            self.engine.backward(loss)
            parts.append({**metrics, **check(outputs.logp, micro, tokens)})
        return parts

    def _accumulate_in_two_passes(
        self, mini: Batch, pieces: list[MicroBatch], denominators: dict[str, float], check: ParityCheck
    ) -> list[Metrics]:
        """The same for a loss that looks at the whole mini-batch at once: dL/d(outputs) first, then their backward.

        Such a loss is no sum over micro-batches. A pass without gradients gathers the outputs, the gradient with respect
        to them is taken once, and the backward of ``(output · gradient).sum()`` of each piece is exact.
        """
        gathered = gather_outputs(self.engine, mini, pieces)
        whole = self.algorithm.output_gradients(gathered, mini, denominators, prox_from_logp=self.prox_from_logp)
        given = {name: getattr(whole, name) for name in ("logp", "entropy", "value_preds")}
        for rows, micro in pieces:
            outputs = self.engine.forward(micro, grad=True)
            pairs = [(getattr(outputs, name), g[rows]) for name, g in given.items() if g is not None]
            terms = [(output * g.to(output.device)).sum() for output, g in pairs]
            self.engine.backward(torch.stack(terms).sum())
        return [{**whole.metrics, **check(gathered.logp, mini, mini["loss_mask"].sum())}]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's weights by checkpoint name, one after another."""
        return self.engine.named_weights()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds beside weights and optimiser."""
        return {"version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        self.version = int(state["version"])

    def _order(self, epoch: int) -> torch.Generator | None:
        if not self.config.shuffle or self.config.mini_batches == 1:
            return None
        return torch.Generator().manual_seed(hash((self.seed, self.version, epoch)) & 0x7FFF_FFFF_FFFF_FFFF)


def _missing_steps(taken: int, planned: int) -> list[int]:
    """Planned steps to pass over before each one taken, spread evenly, so that the last one taken is the last one planned."""
    places = [number * planned // taken for number in range(taken + 1)]
    return [after - before - 1 for before, after in itertools.pairwise(places)]


def logp_of(engine: TrainEngine, batch: Batch, token_budget: int) -> Tensor:
    """[B, L] log-probs under the engine's policy as it is, without gradients; zero where ``loss_mask`` is false."""
    return gather_outputs(engine, batch, engine.micro_batches(batch, token_budget)).logp


def gather_outputs(engine: TrainEngine, batch: Batch, pieces: list[MicroBatch]) -> TokenOutputs:
    """Outputs of a whole batch from its micro-batches, without gradients, on the batch's device."""
    whole: dict[str, Tensor] = {}
    for rows, micro in pieces:
        outputs = engine.forward(micro, grad=False)
        for field in dataclasses.fields(outputs):
            part = getattr(outputs, field.name)
            if part is not None:
                shape = (len(batch), batch.n_tokens)
                into = whole.setdefault(field.name, torch.zeros(shape, dtype=part.dtype, device=batch.device))
                into[rows.to(batch.device)] = part.to(batch.device)
    return TokenOutputs(**whole)


def parity(logp: Tensor, batch: Batch, tokens: Tensor) -> Metrics:
    """How far the trainer's log-probs are from the engine's, over policy tokens: ``parity/logp_abs_diff``, mean and max.

    Args:
        tokens: policy tokens of the whole mini-batch, so that the means of its micro-batches add up.
    """
    mask = batch["loss_mask"].to(logp.device)
    gap = fill_masked((logp.detach() - batch["behav_logp"].to(logp.device)).abs(), mask)
    return {"mean/parity/logp_abs_diff": gap.sum() / tokens.clamp_min(1), "max/parity/logp_abs_diff": gap.max()}


def no_parity(logp: Tensor, batch: Batch, tokens: Tensor) -> Metrics:
    """Compares nothing: the weights have moved on since the engine sampled."""
    return {}
