"""The patch product against the convolution that it stands for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlvlm.models.components.patches import PatchProduct
from tests import tiny
from tests.close import assert_near


@pytest.mark.parametrize("bias", [False, True])
def test_the_product_gives_the_convolutions_numbers_and_gradients(bias: bool) -> None:
    conv = nn.Conv3d(3, 16, (2, 4, 4), stride=(2, 4, 4), bias=bias)
    patches = torch.randn(11, 3 * 2 * 4 * 4)
    truth = conv(patches.view(-1, 3, 2, 4, 4)).view(11, 16)
    ours = PatchProduct(conv)(patches)
    assert_near(ours, truth)
    weights = torch.randn_like(truth)
    wanted = torch.autograd.grad((truth * weights).sum(), list(conv.parameters()))
    got = torch.autograd.grad((ours * weights).sum(), list(conv.parameters()))
    for a, b in zip(got, wanted, strict=True):
        assert_near(a, b, within=1e-4)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_prepared_model_keeps_its_parameters_and_is_prepared_once(family: str) -> None:
    model, _, _ = tiny.parts(family)
    before = {name: id(weight) for name, weight in model.named_parameters()}
    policy = tiny.policy(family)
    policy.family.prepare(model)
    embed = model.model.visual.patch_embed
    policy.family.prepare(model)
    assert model.model.visual.patch_embed is embed
    assert {name: id(weight) for name, weight in model.named_parameters()} == before
