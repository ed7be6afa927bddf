"""AdamW that steps bf16 weights in place and rounds each result up or down at random; the extra ``torchao``.

The chance of the nearer number is the larger, so that the mean step is exact and none is lost (Zamirai et al. 2021,
arXiv:2010.06192). It takes the place of master weights where memory forbids them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchao.optim import _AdamW


class StochasticAdamW(_AdamW):
    """torchao's AdamW with the second moment in fp32, and noise that depends on the number of the step alone.

    In bf16 a second moment with a decay of 0.999 could grow but never shrink: a thousandth is below half its last bit.
    """

    def __init__(self, nodes: Sequence[dict[str, Any]], **settings: Any) -> None:
        super().__init__(nodes, bf16_stochastic_round=True, **settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; the random numbers of anything else are left as they were."""
        stepped = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not stepped:
            return None
        for parameter in stepped:
            if parameter not in self.state:
                self.state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter, dtype=torch.float32),
                }
        number = max(int(self.state[parameter]["step"]) for parameter in stepped)
        devices = sorted({p.device.index for p in stepped if p.is_cuda})
        with torch.random.fork_rng(devices), _compiled_where_it_pays(stepped[0]):
            torch.manual_seed(number)
            return super().step(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state to the bit, where torch would cast the second moment to the parameter's dtype."""
        super().load_state_dict(state_dict)
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, saved in state_dict["state"].items():
            self.state[parameters[number]]["exp_avg_sq"] = saved["exp_avg_sq"].to(parameters[number].device)


def _compiled_where_it_pays(parameter: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Compiled on a device, which spares fp32 copies of whole parameters; plain on a CPU, which may have no compiler."""
    on_cpu = parameter.device.type == "cpu"
    return torch.compiler.set_stance("force_eager") if on_cpu else contextlib.nullcontext()
