"""The reference: log-probs under the policy that training started from."""

from __future__ import annotations

import contextlib

from rlvlm.batch import Batch
from rlvlm.engines.train.base import TrainEngine
from rlvlm.errors import EngineError
from rlvlm.roles.actor import logp_of


class Reference:
    """Writes ``ref_logp``.

    Args:
        engine: prepared without an optimiser on a copy of the policy; or the actor's own engine when ``adapter_off``.
        token_budget: cost of a micro-batch at most.
        adapter_off: the actor's policy with its adapter switched off is the reference; right only when the adapter
            started at zero and nothing else trains.

    Raises ``EngineError`` for an engine that trains without ``adapter_off``, whose reference would move with the policy, and for
    ``adapter_off`` on a policy without adapters, whose reference would be the policy itself.
    """

    def __init__(self, engine: TrainEngine, token_budget: int = 16384, *, adapter_off: bool = False) -> None:
        if engine.trains and not adapter_off:
            raise EngineError(
                "the reference was given an engine that trains, so that it would move with the policy; prepare another engine on a copy "
                "of the policy without an optimiser, or give adapter_off=True where only adapters train."
            )
        if adapter_off and not engine.policy.has_adapters:
            raise EngineError(
                "the reference was given adapter_off=True, but the policy has no adapters, so that it would be the policy itself; "
                "prepare another engine on a copy of the policy without an optimiser."
            )
        self.engine, self.token_budget, self.adapter_off = engine, token_budget, adapter_off

    def compute_logp(self, batch: Batch) -> Batch:
        """Writes ``ref_logp`` [B, L], zero where ``loss_mask`` is false."""
        off = self.engine.policy.adapter_off() if self.adapter_off else contextlib.nullcontext()
        with off:
            return batch.with_(ref_logp=logp_of(self.engine, batch, self.token_budget))
