"""Parameter groups by part or pattern, the learning-rate schedule, and clipping."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rlvlm.engines.train.config import OptimizerConfig, OptimizerGroup
from rlvlm.errors import ConfigError, SettingsError, nearest
from rlvlm.ranges import above, at_least, check_ranges

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
"""Share of the peak learning rate by the share of the steps that are done since the warm-up."""

PARTS = ("vision", "connector", "language")


@dataclass
class ParameterGroup:
    """Parameters that share settings; ``settings`` has the optimiser's values where the group has none of its own."""

    name: str
    settings: OptimizerGroup
    own_clip: bool
    parameters: list[nn.Parameter] = field(default_factory=list)


def check_optimizer(config: OptimizerConfig) -> dict[str, OptimizerGroup]:
    """The groups of a config as dataclasses.

    Raises ``SettingsError`` for wrong schedules, patterns and keys, and for values out of their range: all at once.
    """
    groups: dict[str, OptimizerGroup] = {}
    problems: list[str] = []
    if config.schedule not in SCHEDULES:
        problems.append(f"actor.optimizer.schedule is '{config.schedule}'{nearest(config.schedule, SCHEDULES)}.")
    for pattern, values in config.groups.items():
        try:
            groups[pattern] = _read_group(pattern, values)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise SettingsError(problems)
    return groups


def _read_group(pattern: str, values: Any) -> OptimizerGroup:
    path, known = f"actor.optimizer.groups.{pattern}", [item.name for item in dataclasses.fields(OptimizerGroup)]
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"actor.optimizer.groups has '{pattern}', no regular expression: {error}.") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} is a mapping of {', '.join(known)}, got {values!r}.")
    wrong = [key for key in values if key not in known]
    if wrong:
        raise SettingsError([f"{path} has no key '{key}'{nearest(key, known)}." for key in wrong])
    group = OptimizerGroup(**values)
    check_ranges(path, group, at_least(0, "lr", "weight_decay"), above(0, "max_grad_norm"))
    return group


def group_parameters(
    parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig, part_of: Callable[[str], str]
) -> list[ParameterGroup]:
    """Sorts the trainable parameters into the config's groups, the rest into ``default``.

    Args:
        parameters: names and parameters; frozen ones are left out.
        part_of: ``vision``, ``connector`` or ``language`` of a parameter's name.

    Raises ``ConfigError`` when nothing is trainable, or a group matches no trainable parameter.
    """
    rest = OptimizerGroup(config.lr, config.weight_decay, config.max_grad_norm)
    groups = [
        ParameterGroup(pattern, _filled(settings, rest), settings.max_grad_norm is not None)
        for pattern, settings in check_optimizer(config).items()
    ]
    default = ParameterGroup("default", rest, own_clip=False)
    seen = []
    for name, parameter in parameters:
        if parameter.requires_grad:
            seen.append(name)
            matching = (group for group in groups if _matches(group.name, name, part_of))
            next(matching, default).parameters.append(parameter)
    if not seen:
        raise ConfigError("no parameter is trainable; widen model.trainable.")
    for group in groups:
        if not group.parameters:
            hint = nearest(group.name, {*PARTS, *(name.split(".")[-1] for name in seen)})
            raise ConfigError(f"actor.optimizer.groups.{group.name} matches no trainable parameter{hint}.")
    return [group for group in (*groups, default) if group.parameters]


def check_rounding(config: OptimizerConfig, dtypes: Collection[str]) -> None:
    """Raises ``ConfigError`` for stochastic rounding of parameters that it does not serve, or without its package.

    Args:
        dtypes: of the parameters that train, such as ``bfloat16``.
    """
    if config.low_precision != "stochastic_rounding":
        return
    others = sorted({*dtypes} - {"bfloat16"})
    if others:
        raise ConfigError(
            "actor.optimizer.low_precision is 'stochastic_rounding', which is for weights that train in bfloat16, but there are "
            f"some in {' and '.join(others)} (adapters train in float32); set it to 'master_weights', or model.dtype to 'bfloat16' "
            "without model.lora."
        )
    if importlib.util.find_spec("torchao") is None:
        raise ConfigError(
            "actor.optimizer.low_precision 'stochastic_rounding' needs the package 'torchao', which is not installed; "
            "pip install 'rlvlm[torchao]', or set it to 'master_weights'."
        )


def build_optimizer(groups: Sequence[ParameterGroup], config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW over the groups; each is split in matrices, which decay, and vectors, which do not.

    Raises ``ConfigError`` as :func:`check_rounding` does.
    """
    check_rounding(config, {str(p.dtype).removeprefix("torch.") for group in groups for p in group.parameters})
    nodes: list[dict[str, Any]] = []
    for group in groups:
        matrices = [p for p in group.parameters if p.dim() >= 2]
        vectors = [p for p in group.parameters if p.dim() < 2]
        for parameters, decay in ((matrices, group.settings.weight_decay), (vectors, 0.0)):
            if parameters:
                peak = group.settings.lr
                nodes.append(
                    {"params": parameters, "lr": peak, "peak_lr": peak, "weight_decay": decay, "name": group.name}
                )
    settings: dict[str, Any] = {"lr": config.lr, "betas": (config.betas[0], config.betas[1]), "eps": config.eps}
    if config.low_precision == "stochastic_rounding":
        from rlvlm.engines.train.stochastic_rounding import StochasticAdamW  # the package is an extra

        return StochasticAdamW(nodes, **settings)
    return torch.optim.AdamW(nodes, fused=True, **settings)


def lr_share(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """Share of the peak learning rate at optimiser step ``step`` (from 0): warm-up, then the schedule to ``min_lr_ratio``."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    done = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * SCHEDULES[config.schedule](done)


def set_lr(optimizer: torch.optim.Optimizer, share: float) -> float:
    """Sets each group to this share of its peak; returns the largest learning rate."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group["peak_lr"] * share)
        else:
            group["lr"] = group["peak_lr"] * share
    return max(float(group["lr"]) for group in optimizer.param_groups)


def clip_gradients(groups: Sequence[ParameterGroup]) -> dict[str, Tensor]:
    """Clips in place; groups with a clip of their own by their own norm, the others together.

    Returns the norms before clipping: ``total`` over all parameters, and one for each group where there are several.
    """
    norms = {group.name: _norm(group.parameters) for group in groups}
    together = [group for group in groups if not group.own_clip]
    if together:
        _scale_to(together, _combined(norms[group.name] for group in together))
    for group in groups:
        if group.own_clip:
            _scale_to([group], norms[group.name])
    return {"total": _combined(norms.values()), **(norms if len(norms) > 1 else {})}


def _filled(settings: OptimizerGroup, rest: OptimizerGroup) -> OptimizerGroup:
    own: Mapping[str, Any] = {key: value for key, value in dataclasses.asdict(settings).items() if value is not None}
    return dataclasses.replace(rest, **own)


def _matches(pattern: str, name: str, part_of: Callable[[str], str]) -> bool:
    return part_of(name) == pattern if pattern in PARTS else re.search(pattern, name) is not None


def _norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), device=parameters[0].device)
    return torch.stack(torch._foreach_norm(gradients)).float().norm()  # type: ignore[arg-type]


def _combined(norms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(norms)).norm()


def _scale_to(groups: Sequence[ParameterGroup], norm: Tensor) -> None:
    if groups[0].settings.max_grad_norm is None:
        return
    gradients = [p.grad for group in groups for p in group.parameters if p.grad is not None]
    scale = torch.clamp(groups[0].settings.max_grad_norm / (norm + 1e-6), max=1.0)
    if gradients:
        torch._foreach_mul_(gradients, scale)  # type: ignore[arg-type]
