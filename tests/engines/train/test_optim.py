"""Parameter groups, schedules and clipping, against plain formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.optim import (
    build_optimizer,
    check_optimizer,
    clip_gradients,
    group_parameters,
    lr_share,
    set_lr,
)
from rlvlm.errors import ConfigError

NAMES = ("vision.weight", "vision.bias", "merger.weight", "text.weight", "text.norm")


def part_of(name: str) -> str:
    return {"vision": "vision", "merger": "connector"}.get(name.split(".")[0], "language")


def parameters(frozen: tuple[str, ...] = ()) -> list[tuple[str, nn.Parameter]]:
    shapes = {"bias": (3,), "norm": (3,)}
    made = [(name, nn.Parameter(torch.ones(shapes.get(name.split(".")[1], (3, 3))))) for name in NAMES]
    for name, parameter in made:
        parameter.requires_grad_(name not in frozen)
    return made


def test_parameters_go_to_the_first_group_that_matches_and_the_rest_to_default():
    config = OptimizerConfig(
        lr=1e-3, groups={"vision": {"lr": 1e-5, "max_grad_norm": 0.5}, r"\.norm$": {"weight_decay": 0.1}}
    )
    groups = {group.name: group for group in group_parameters(parameters(), config, part_of)}
    assert [len(groups[name].parameters) for name in ("vision", r"\.norm$", "default")] == [2, 1, 2]
    assert groups["vision"].settings.lr == 1e-5
    assert groups[r"\.norm$"].settings.lr == 1e-3
    assert groups["vision"].own_clip
    assert not groups["default"].own_clip


def test_frozen_parameters_are_in_no_group():
    groups = group_parameters(parameters(frozen=("vision.weight", "vision.bias")), OptimizerConfig(), part_of)
    assert sum(len(group.parameters) for group in groups) == 3


def test_groups_that_match_nothing_and_bad_keys_are_refused():
    with pytest.raises(ConfigError, match=r"groups.visoin matches no trainable parameter \(did you mean 'vision'\?\)"):
        group_parameters(parameters(), OptimizerConfig(groups={"visoin": {"lr": 1.0}}), part_of)
    with pytest.raises(ConfigError, match=r"groups.vision has no key 'lrr' \(did you mean 'lr'\?\)"):
        check_optimizer(OptimizerConfig(groups={"vision": {"lrr": 1.0}}))
    with pytest.raises(ConfigError, match=r"no regular expression"):
        check_optimizer(OptimizerConfig(groups={"(": {"lr": 1.0}}))
    with pytest.raises(ConfigError, match=r"schedule is 'cosin' \(did you mean 'cosine'\?\)"):
        check_optimizer(OptimizerConfig(schedule="cosin"))
    with pytest.raises(ConfigError, match="no parameter is trainable"):
        group_parameters(parameters(frozen=NAMES), OptimizerConfig(), part_of)


def test_matrices_decay_and_vectors_do_not():
    config = OptimizerConfig(weight_decay=0.3)
    optimizer = build_optimizer(group_parameters(parameters(), config, part_of), config)
    decay = {
        parameter.dim(): group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]
    }
    assert decay == {2: 0.3, 1: 0.0}


def test_the_schedule_warms_up_and_ends_at_its_minimum():
    config = OptimizerConfig(schedule="cosine", warmup_steps=4, min_lr_ratio=0.1)
    assert [lr_share(step, config, 24) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert lr_share(14, config, 24) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.5)))
    assert lr_share(24, config, 24) == pytest.approx(0.1)
    assert lr_share(1000, config, 24) == pytest.approx(0.1)
    assert lr_share(9, OptimizerConfig(schedule="linear"), 10) == pytest.approx(0.1)
    assert lr_share(500, OptimizerConfig(), 10) == 1.0


def test_set_lr_scales_each_group_from_its_own_peak():
    config = OptimizerConfig(lr=1e-3, groups={"vision": {"lr": 1e-5}})
    optimizer = build_optimizer(group_parameters(parameters(), config, part_of), config)
    assert set_lr(optimizer, 0.5) == pytest.approx(5e-4)
    assert {round(group["lr"], 9) for group in optimizer.param_groups} == {5e-6, 5e-4}


def test_groups_with_a_clip_of_their_own_are_clipped_apart():
    config = OptimizerConfig(max_grad_norm=1.0, groups={"vision": {"max_grad_norm": 0.5}})
    made = parameters()
    groups = group_parameters(made, config, part_of)
    for _, parameter in made:
        parameter.grad = torch.full_like(parameter, 2.0)
    sizes = {name: parameter.numel() for name, parameter in made}
    vision = 2.0 * math.sqrt(sizes["vision.weight"] + sizes["vision.bias"])
    rest = 2.0 * math.sqrt(sum(sizes.values()) - sizes["vision.weight"] - sizes["vision.bias"])
    norms = clip_gradients(groups)
    assert float(norms["vision"]) == pytest.approx(vision)
    assert float(norms["total"]) == pytest.approx(math.hypot(vision, rest))
    after = {name: parameter.grad.square().sum() for name, parameter in made}
    assert float(after["vision.weight"] + after["vision.bias"]) == pytest.approx(0.25, rel=1e-4)
    assert float(sum(after.values()) - after["vision.weight"] - after["vision.bias"]) == pytest.approx(1.0, rel=1e-4)


def test_clipping_equals_torch_and_null_clips_nothing():
    made, twin = parameters(), parameters()
    for (_, a), (_, b) in zip(made, twin, strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
    expected = nn.utils.clip_grad_norm_([p for _, p in twin], 0.7)
    norms = clip_gradients(group_parameters(made, OptimizerConfig(max_grad_norm=0.7), part_of))
    assert torch.allclose(norms["total"], expected)
    assert all(torch.allclose(a.grad, b.grad) for (_, a), (_, b) in zip(made, twin, strict=True))
    before = [p.grad.clone() for _, p in made]
    clip_gradients(group_parameters(made, OptimizerConfig(max_grad_norm=None), part_of))
    assert all(torch.equal(a, p.grad) for a, (_, p) in zip(before, made, strict=True))
