"""The train engine of one process: a CPU or one GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvlm.batch import Batch
from rlvlm.engines.host_memory import keep_freed_memory
from rlvlm.engines.train.base import register_train_engine
from rlvlm.engines.train.batching import MicroBatch, micro_batches
from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.master_weights import MasterWeights
from rlvlm.engines.train.optim import (
    ParameterGroup,
    build_optimizer,
    clip_gradients,
    group_parameters,
    lr_share,
    set_lr,
)
from rlvlm.errors import EngineError, TrainingStopped
from rlvlm.models.outputs import TokenOutputs

if TYPE_CHECKING:
    from rlvlm.models.policy import Policy


class LocalEngine:
    """One process on a CPU or one GPU: AdamW, accumulation over micro-batches, optional bf16 autocast.

    Where the policy's own weights train in bf16 or fp16, gradients are summed in fp32 and fp32 master weights are stepped.

    Args:
        device: where the policy lives; ``auto`` takes a GPU if there is one.
        precision: ``weights`` computes in the weights' own dtype; ``bfloat16`` computes in bf16 and keeps the weights,
            gradients and optimiser state as they are.
    """

    def __init__(self, device: str = "auto", precision: Literal["weights", "bfloat16"] = "weights") -> None:
        found = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(found if device == "auto" else device)
        self.autocast = torch.bfloat16 if precision == "bfloat16" else None
        self.steps, self.skipped = 0, 0
        self._policy: Policy | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._masters = MasterWeights(())
        self._groups: list[ParameterGroup] = []
        self._config, self._total_steps = OptimizerConfig(), 0

    def prepare(self, policy: Policy, optimizer: OptimizerConfig | None, total_steps: int) -> None:
        """Places the policy and then builds the optimiser on its parameters; ``None`` makes the engine inference only."""
        if self.device.type == "cpu":
            keep_freed_memory()
        self._policy = policy.to(self.device)
        self._total_steps = total_steps
        if optimizer is not None:
            self._config = optimizer
            self._groups = group_parameters(policy.named_parameters(), optimizer, policy.part_of)
            if optimizer.low_precision == "master_weights":
                self._masters = MasterWeights(policy.named_parameters())
                for group in self._groups:
                    group.parameters = self._masters.of(group.parameters)
            self._optimizer = build_optimizer(self._groups, optimizer)

    @property
    def policy(self) -> Policy:
        """The policy that :meth:`prepare` was given."""
        if self._policy is None:
            raise EngineError("the train engine has no policy yet; call prepare first.")
        return self._policy

    @property
    def trains(self) -> bool:
        """Whether it was prepared with an optimiser."""
        return self._optimizer is not None

    @property
    def dropout_active(self) -> bool:
        """True when a dropout of the policy is above 0 and it trains."""
        return self.policy.dropout_active

    def micro_batches(self, batch: Batch, budget: int) -> list[MicroBatch]:
        """Pieces that cost at most ``budget`` in text tokens plus vision patches, on the engine's device."""
        family, shared = self.policy.family, self.policy.shares_prompts(batch)
        pieces = micro_batches(batch, budget, lambda picture: family.patches(picture.size), shared)
        if len(pieces) == 1:
            return [(rows, piece.to(self.device)) for rows, piece in pieces]
        done: list[MicroBatch] = []
        for rows, piece in pieces:  # few rows may run in another layout than many, one that repeats their prompt
            if len(piece) == 1 or self.policy.shares_prompts(piece) == shared:
                done.append((rows, piece.to(self.device)))
            else:
                done += [(rows[within.to(rows.device)], part) for within, part in self.micro_batches(piece, budget)]
        return done

    def forward(self, batch: Batch, *, grad: bool) -> TokenOutputs:
        """Log-probs and entropy of one micro-batch, on the engine's device."""
        rows = self.policy.layout(batch).to(self.device)
        with torch.set_grad_enabled(grad), self._precision():
            return self.policy(rows)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of one micro-batch's loss; that of a weight with a master in fp32, to its master's."""
        with self._masters.collecting():
            loss.backward()

    def step(self) -> dict[str, Tensor | float]:
        """Clips, steps and clears; a non-finite gradient raises ``TrainingStopped`` and leaves the weights as they were."""
        if self._optimizer is None:
            raise EngineError(
                "the train engine was prepared without an optimiser; give prepare an OptimizerConfig to train."
            )
        self._masters.collect()
        norms = clip_gradients(self._groups)
        total = norms.pop("total")
        if not torch.isfinite(total):
            self._optimizer.zero_grad(set_to_none=True)
            raise TrainingStopped(
                f"the gradient norm is {float(total)} at optimiser step {self.steps}; the weights were left as they are. "
                "Lower the learning rate, or look for extreme rewards or ratios in the metrics."
            )
        lr = set_lr(self._optimizer, lr_share(self.steps + self.skipped, self._config, self._total_steps))
        self._masters.take_over()
        self._optimizer.step()
        self._masters.write_back()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return {"mean/grad_norm": total, "lr": lr, **{f"mean/grad_norm/{name}": norm for name, norm in norms.items()}}

    def skip(self, steps: int) -> None:
        """Moves the schedule on past steps that had no groups; the weights stay."""
        self.skipped += steps

    def offload(self) -> None:
        """Moves weights and optimiser state to host memory."""
        self._move(torch.device("cpu"))

    def onload(self) -> None:
        """Moves weights and optimiser state back to the device."""
        self._move(self.device)

    def save(self, folder: Path) -> None:
        """Writes ``policy.safetensors`` (trainable weights in their own dtype) and ``optimizer.pt`` (with master weights)."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(_trainable(self.policy), folder / "policy.safetensors")
        if self._optimizer is not None:
            state = {
                "optimizer": self._optimizer.state_dict(),
                "masters": self._masters.state_dict(),
                "steps": self.steps,
                "skipped": self.skipped,
            }
            torch.save(state, folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        """Restores what :meth:`save` wrote; raises ``EngineError`` if it is of other parameters."""
        stored = load_file(folder / "policy.safetensors", device=str(self.device))
        here = _trainable(self.policy)
        if odd := sorted(stored.keys() ^ here.keys()):
            raise EngineError(
                f"checkpoint '{folder}' trains other parameters than this run ({len(odd)} differ, such as '{odd[0]}'); "
                "resume with the settings it was made with, or start anew with run.resume=never."
            )
        with torch.no_grad():
            for name, tensor in here.items():
                tensor.copy_(stored[name])
        if self._optimizer is not None:
            state = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
            self._masters.load_state_dict(state.get("masters", {}))
            self._optimizer.load_state_dict(state["optimizer"])
            self.steps, self.skipped = state["steps"], state.get("skipped", 0)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by its checkpoint name, adapters merged in; no copy where none is needed."""
        yield from self.policy.named_weights()

    def state(self) -> dict[str, Any]:
        """The number of optimiser steps taken."""
        return {"steps": self.steps}

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def _move(self, device: torch.device) -> None:
        self.policy.to(device)
        self._masters.to(device)
        if self._optimizer is not None:
            for state in self._optimizer.state.values():
                state.update({key: value.to(device) for key, value in state.items() if isinstance(value, Tensor)})


@register_train_engine("local")
def local(*, device: str = "auto", precision: Literal["weights", "bfloat16"] = "weights") -> LocalEngine:
    """One process, a CPU or one GPU."""
    return LocalEngine(device, precision)


def _trainable(policy: Policy) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}
