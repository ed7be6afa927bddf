"""The actor: log-probs of the policy, and its updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlvlm.algorithm import Algorithm
from rlvlm.batch import Batch
from rlvlm.engines.train.base import TrainEngine
from rlvlm.engines.train.batching import MicroBatch, mini_batches
from rlvlm.models.outputs import TokenOutputs
from rlvlm.roles.config import ActorConfig
from rlvlm.tracking.log import MetricLog

ParityCheck = Callable[[Tensor, Batch], dict[str, Tensor]]


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
        log = MetricLog()
        for epoch in range(self.config.epochs):
            for mini in mini_batches(batch, self.config.mini_batches, self._order(epoch)):
                self._accumulate(mini, log)
                log.add(self.engine.step())
        metrics = log.reduced()
        self.algorithm.after_update(metrics)
        self.version += 1
        return metrics

    def _accumulate(self, mini: Batch, log: MetricLog) -> None:
        """Runs forward and backward over a mini-batch, in micro-batches whose losses add up to the mini-batch's."""
        check = parity if not len(log) else no_parity  # later steps of a batch are meant to differ from the engine
        denominators = self.algorithm.denominators(mini)
        pieces = self.engine.micro_batches(mini, self.config.token_budget)
        if self.algorithm.loss_scope == "minibatch" and len(pieces) > 1:
            self._accumulate_in_two_passes(mini, pieces, denominators, log, check)
            return
        for _, micro in pieces:
            outputs = self.engine.forward(micro, grad=True)
            loss, metrics = self.algorithm.loss(outputs, micro, denominators, prox_from_logp=self.prox_from_logp)
            self.engine.backward(loss)
            log.add(metrics, weight=micro["loss_mask"].sum())
            log.add(check(outputs.logp, micro), weight=micro["loss_mask"].sum())

    def _accumulate_in_two_passes(
        self, mini: Batch, pieces: list[MicroBatch], denominators: dict[str, float], log: MetricLog, check: ParityCheck
    ) -> None:
        """The same for a loss that looks at the whole mini-batch at once: dL/d(outputs) first, then their backward.

        The loss is not a sum over micro-batches, so a pass without gradients gathers the outputs, the gradient with
        respect to them is taken once, and the backward of ``(output · gradient).sum()`` of each piece is exact.
        """
        gathered = gather_outputs(self.engine, mini, pieces)
        gradients, metrics = self.algorithm.output_gradients(
            gathered, mini, denominators, prox_from_logp=self.prox_from_logp
        )
        log.add(metrics, weight=mini["loss_mask"].sum())
        log.add(check(gathered.logp, mini), weight=mini["loss_mask"].sum())
        for rows, micro in pieces:
            outputs = self.engine.forward(micro, grad=True)
            pairs = ((getattr(outputs, name), gradient) for name, gradient in gradients.items())
            self.engine.backward(sum((output * gradient[rows]).sum() for output, gradient in pairs))

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


def parity(logp: Tensor, batch: Batch) -> dict[str, Tensor]:
    """How far the trainer's log-probs are from the engine's, over policy tokens: ``parity/logp_abs_diff``, mean and max."""
    mask = batch["loss_mask"].to(logp.device)
    gap = (logp.detach() - batch["behav_logp"].to(logp.device)).abs() * mask
    return {"mean/parity/logp_abs_diff": gap.sum() / mask.sum().clamp(min=1), "max/parity/logp_abs_diff": gap.max()}


def no_parity(logp: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Compares nothing: the weights have moved on since the engine sampled."""
    return {}
