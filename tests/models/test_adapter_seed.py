"""Adapters begin by the run's seed alone, whatever drew random numbers before, for every family and in every process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import torch

from rlvlm.models.config import LoraConfig, ModelConfig
from rlvlm.models.loading import load_policy
from tests import tiny

PRINTING = """
import sys, hashlib, torch
from rlvlm.models.config import LoraConfig, ModelConfig
from rlvlm.models.loading import load_policy
from tests.models.test_adapter_seed import digest
print(digest(load_policy(ModelConfig(path=sys.argv[1], lora=LoraConfig(rank=2)), seed=int(sys.argv[2]))))
"""


def digest(policy) -> str:
    state = hashlib.sha256()
    for name, weight in sorted(policy.named_parameters()):
        if "lora_" in name:
            state.update(name.encode() + weight.detach().numpy().tobytes())
    return state.hexdigest()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_adapters_under_a_path_depend_on_the_runs_seed_alone(family, tmp_path):
    tiny.policy(family, hidden=32, layers=1).save_pretrained(tmp_path / "model")
    config = ModelConfig(path=str(tmp_path / "model"), lora=LoraConfig(rank=2))
    torch.manual_seed(1)
    one = digest(load_policy(config, seed=7))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert digest(load_policy(config, seed=7)) == one
    assert digest(load_policy(config, seed=8)) != one
    assert torch.equal(torch.get_rng_state(), before), "torch's own random state is left alone"


def test_another_process_begins_with_the_same_adapters(tmp_path):
    tiny.policy("llava", hidden=32, layers=1).save_pretrained(tmp_path / "model")
    command = [sys.executable, "-c", PRINTING, str(tmp_path / "model"), "7"]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.strip()
    assert found == digest(load_policy(ModelConfig(path=str(tmp_path / "model"), lora=LoraConfig(rank=2)), seed=7))
