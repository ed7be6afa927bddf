"""fp32 master weights of a model in bf16 or fp16: the optimiser steps them, the model computes with their rounded values.

A bf16 number has 8 bits. AdamW moves a weight by about the learning rate, at 1e-6 far less than the distance to the next bf16
number, so that a step in place is lost for nearly every weight. Master weights keep it (Micikevicius et al. 2018,
arXiv:1710.03740). Rounding them to the nearest bf16 number would still hide all movement up to half that distance, since a
loaded weight starts in the middle of its rounding interval; so each weight is rounded up from a threshold of its own,
evenly spread over the interval and fixed for the whole run. Over many weights the model moves as far as its master
weights, from the first step on, and equal master weights always give equal weights.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from rlvlm.errors import EngineError

_PERIOD = 1_048_583  # of the thresholds, in weights: prime, so that no row length divides it
_LOW = (torch.bfloat16, torch.float16)


class MasterWeights:
    """fp32 copies of the trainable parameters of fewer bits; parameters of fp32 are their own masters.

    Args:
        parameters: names and parameters; frozen ones are left out.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        trained = [(name, p) for name, p in parameters if p.requires_grad and p.dtype in _LOW]
        self._low = dict(trained)
        self._masters = {name: nn.Parameter(p.detach().float()) for name, p in trained}
        self._of: dict[Tensor, nn.Parameter] = {p: self._masters[name] for name, p in trained}
        self._seen = {name: p._version for name, p in trained}

    def of(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """What the optimiser steps in the place of these parameters."""
        return [self._of.get(parameter, parameter) for parameter in parameters]

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """A block whose backward passes add to the masters' gradients, in fp32.

        A parameter's own gradient is freed as soon as it is added, so the two never stand in memory as a whole.
        """
        hooks = [p.register_post_accumulate_grad_hook(self._collect) for p in self._low.values()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def collect(self) -> None:
        """Adds gradients that a backward pass outside of :meth:`collecting` left with the parameters."""
        for parameter in self._low.values():
            self._collect(parameter)

    def _collect(self, parameter: Tensor) -> None:
        gradient, master = parameter.grad, self._of[parameter]
        if gradient is not None:
            master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    @torch.no_grad()
    def write_back(self) -> None:
        """Gives the model the rounded values of its masters."""
        for name, parameter in self._low.items():
            round_into(parameter, self._masters[name])
            self._seen[name] = parameter._version

    @torch.no_grad()
    def take_over(self) -> None:
        """Takes over weights that something else wrote since they were last written back (a loaded state, a merged adapter)."""
        for name, parameter in self._low.items():
            if parameter._version != self._seen[name]:
                master = self._masters[name]
                written = round_into(torch.empty_like(parameter), master)
                master.copy_(torch.where(written == parameter, master, parameter.float()))
                self._seen[name] = parameter._version

    def to(self, device: torch.device) -> None:
        """Moves the masters and their gradients."""
        for master in self._masters.values():
            master.data = master.data.to(device)
            if master.grad is not None:
                master.grad = master.grad.to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """The masters by the name of their parameter."""
        self.take_over()
        return {name: master.detach() for name, master in self._masters.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores what :meth:`state_dict` gave, to the bit; raises ``EngineError`` if it is of other parameters."""
        if odd := sorted(state.keys() ^ self._masters.keys()):
            raise EngineError(
                f"the saved optimiser state and this run do not keep master weights of the same parameters ({len(odd)} differ, "
                f"such as '{odd[0]}'); resume with the model.dtype and actor.optimizer.low_precision it was saved with."
            )
        for name, master in self._masters.items():
            master.copy_(state[name])
        self.write_back()


@torch.no_grad()
def round_into(low: Tensor, exact: Tensor) -> Tensor:
    """Writes fp32 values into a tensor of fewer bits of the same shape and returns it.

    bf16 takes one of its two neighbours: the one of larger size where the share of the way there is above the weight's threshold,
    a fixed number in [0, 1). Values that bf16 holds stay as they are. Other dtypes take the nearest.
    """
    if low.dtype != torch.bfloat16:
        return low.copy_(exact)
    place = low if low.is_contiguous() else torch.empty_like(low, memory_format=torch.contiguous_format)
    into, values = place.view(-1), exact.reshape(-1)
    table = thresholds(values.device)
    for start in range(0, len(values), len(table)):
        piece = values[start : start + len(table)].view(torch.int32)
        # the 16 bits that bf16 does not have are the share of the way to the next number; the sum carries into the others
        into[start : start + len(table)] = ((piece + table[: len(piece)]) & -0x10000).view(torch.float32)
    return low if place is low else low.copy_(place)


@functools.lru_cache(maxsize=4)
def thresholds(device: torch.device) -> Tensor:
    """One threshold a weight, int32 in [0, 65536): the same on every machine and device; they repeat after their number."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 0x10000, (_PERIOD,), generator=generator, dtype=torch.int32).to(device)
