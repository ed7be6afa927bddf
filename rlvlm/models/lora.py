"""Low-rank adapters by peft, put into the model in place so that its names and its one forward stay."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlvlm.errors import ConfigError, nearest
from rlvlm.models.config import LoraConfig
from rlvlm.models.families.base import Family

_ADAPTER = "default"


def add_adapters(model: Any, family: Family, config: LoraConfig, seed: int = 0) -> None:
    """Puts adapters, at zero, on the linear layers that the settings name, and freezes all else.

    Their random factors depend on ``seed`` alone: torch's own random state is neither read nor changed.

    Adapters are at least fp32, whatever the model is in: a small step would be lost in fewer bits.

    Raises ``ConfigError`` when a target is the head or an embedding, whose weights are read directly so that an adapter on
    them would be ignored, or when a target matches no layer.
    """
    import peft

    forbidden = {id(model.get_output_embeddings()), id(model.get_input_embeddings())}
    refused = [name for name, module in model.named_modules() if id(module) in forbidden]
    for target in config.targets or ():
        if any(_is_target(name, target) for name in refused):
            raise ConfigError(
                f"model.lora.targets names '{target}', the head or the embeddings, which take no adapter; leave it out."
            )
    linear = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and id(module) not in forbidden
        and family.parameter_part(f"{name}.") in config.parts
    }
    targets = sorted(linear) if config.targets is None else _pick(linear, config.targets)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        lora_dropout=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            weight.data = weight.data.to(torch.promote_types(weight.dtype, torch.float32))


def _is_target(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _pick(linear: set[str], targets: Sequence[str]) -> list[str]:
    for target in targets:
        if not any(_is_target(name, target) for name in linear):
            known = {name.rsplit(".", 1)[-1] for name in linear}
            raise ConfigError(
                f"model.lora.targets names '{target}', which is no linear layer of its parts{nearest(target, known)}."
            )
    return sorted(name for name in linear if any(_is_target(name, target) for target in targets))


def has_adapters(model: nn.Module) -> bool:
    """Whether any layer has an adapter."""
    return bool(_adapted(model))


@contextlib.contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Switches every adapter off, and on again when the block ends."""
    layers = _adapted(model).values()
    trains = [(weight, weight.requires_grad) for layer in layers for weight in layer.parameters()]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for weight, required in trains:  # peft's switch sets these as it sees fit
            weight.requires_grad_(required)


def weight_names(model: nn.Module) -> list[str]:
    """Names of the parameters as they are without adapters."""
    return [name.replace(".base_layer.", ".") for name, _ in model.named_parameters() if ".lora_" not in name]


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter by the name that it has without adapters, with their updates added; no copy where there is none."""
    adapted = {f"{name}.base_layer.weight": layer for name, layer in _adapted(model).items()}
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            continue
        value = weight.detach()
        if name in adapted:
            value = (value + adapted[name].get_delta_weight(_ADAPTER).detach()).to(value.dtype)
        yield name.replace(".base_layer.", "."), value


def _adapted(model: nn.Module) -> dict[str, Any]:
    """Layers with an adapter by name; none while nothing has imported peft, which takes its time."""
    if "peft" not in sys.modules:
        return {}
    from peft.tuners.lora import Linear

    return {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
