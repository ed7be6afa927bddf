"""The presets, loaded as a recipe loads them, against what the peers' functions gave or a formula written out here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rlvlm.conf
from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos.conventions import Conventions
from rlvlm.algos.registries import ADVANTAGES, AGGREGATIONS, CORRECTIONS, KL_ESTIMATORS, POLICY_LOSSES, REGULARIZERS
from rlvlm.conf import load_recipe
from rlvlm.registry import Part, Registry
from tests.algos.drawn import draw
from tests.parity.fixtures import assert_equal, cases, inputs, read

FOLDER = Path(rlvlm.conf.__file__).parent / "preset"
PRESETS = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def config(name: str, *overrides: str) -> AlgorithmConfig:
    return load_recipe("quickstart", [f"+preset={name}", *overrides]).algorithm


def build(preset: str, registry: Registry, node: Any) -> Part:
    return registry.build(Conventions(config(preset).conventions).fill(registry, node))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_an_algorithm_package_and_makes_an_algorithm(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    assert text.startswith("# @package algorithm\n#")
    assert Algorithm(config(name)).needs


def test_an_option_of_the_recipe_wins_over_the_convention() -> None:
    chosen = config("verl", "algorithm.advantage={name: grpo, eps: 0.5}")
    part = ADVANTAGES.build(Conventions(chosen.conventions).fill(ADVANTAGES, chosen.advantage))
    assert part.options["eps"] == 0.5
    assert part.options["singleton"] == "reward"


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline"])
def test_verl_by_preset_alone_gives_verls_advantages(name: str) -> None:
    part = build("verl", ADVANTAGES, name)
    for number, batch, expected in cases("verl_advantages", name):
        mask = batch["mask"]
        given = {"rewards": batch["rewards"], "group_ids": batch["groups"], "loss_mask": mask}
        assert_equal(part(given)[mask], expected, number, 1e-6 if expected.std() > 1e-4 else 5e-5)


@pytest.mark.parametrize(("ours", "theirs"), [("grpo", "grpo_group"), ("rloo", "rloo")])
def test_trl_by_preset_alone_gives_trls_advantages(ours: str, theirs: str) -> None:
    part, rewards = build("trl", ADVANTAGES, ours), read("trl_advantages", "rewards")
    for number, expected in read("trl_advantages", theirs).items():
        mask = torch.ones(12, 1, dtype=torch.bool)
        got = part({"rewards": rewards[number], "group_ids": torch.arange(12) // 4, "loss_mask": mask})
        assert_equal(got[:, 0], expected, number)


def test_verl_caps_k3_and_takes_the_token_form_of_gspo() -> None:
    node = Conventions(config("verl").conventions).fill(REGULARIZERS, 0.1, "kl_to_reference")
    capped = KL_ESTIMATORS.build(node["estimator"])
    assert capped({"logp": torch.tensor([-30.0]), "ref_logp": torch.tensor([0.0])}) == 10
    assert build("verl", POLICY_LOSSES, "gspo").options["form"] == "token"
    assert build("easyr1", POLICY_LOSSES, "gspo").options == {
        "clip_low": 0.2,
        "clip_high": 0.3,
        "dual_clip": 3.0,
        "form": "sequence",
    }


@pytest.mark.parametrize(("preset", "sign"), [("verl", -1), ("trl", 1)])
def test_the_sign_of_k1_in_rejection(preset: str, sign: int) -> None:
    part = build(preset, CORRECTIONS, {"name": "rejection", "level": "token", "low": 0.5, "high": 3.0})
    gap = torch.tensor([[1.0, -1.0]]) * sign
    given = {"prox_logp": gap, "behav_logp": torch.zeros(1, 2), "loss_mask": torch.ones(1, 2)}
    assert part(given).mask.tolist() == [[True, False]]  # e is inside [0.5, 3], 1/e is not


@pytest.mark.parametrize(("preset", "reset"), [("verl", False), ("verl_0_8", True), ("easyr1", True), ("rllava", True)])
def test_reinforce_plus_plus_carries_or_resets_at_masked_tokens(preset: str, reset: bool) -> None:
    part = build(preset, ADVANTAGES, "reinforce_plus_plus")
    mask = torch.tensor([[True, False, True]])
    returns = part({"token_rewards": torch.tensor([[0.0, 0.0, 1.0]]), "loss_mask": mask}).returns
    assert returns.tolist() == [[0.0 if reset else 1.0, 0, 1]]


@pytest.mark.parametrize(("preset", "divided"), [("verl", True), ("trl", True), ("verl_0_8", False), ("rllava", False)])
def test_the_constant_length_norm_divides_by_the_number_of_sequences_or_not(preset: str, divided: bool) -> None:
    part, fields = build(preset, AGGREGATIONS, {"name": "seq-mean-token-sum-norm", "length": 10}), draw(0)
    total = float(fields["token_loss"][fields["loss_mask"]].sum()) / 10
    assert float(part(fields)) == pytest.approx(total / (fields["num_sequences"] if divided else 1))


@pytest.mark.parametrize(("preset", "weight"), [("areal", 0.0), ("ov_1_5_rl", 0.0), ("trl", 5.0)])
def test_above_the_cap_the_behaviour_weight_is_masked_or_clamped(preset: str, weight: float) -> None:
    part = build(preset, POLICY_LOSSES, "decoupled_clip")
    logp = torch.zeros(1, 1)
    given = {"logp": logp, "prox_logp": logp, "behav_logp": logp - 3, "advantages": logp + 1}
    assert float(part(given).loss) == -weight


def test_areal_normalises_by_group_and_then_over_the_tokens_of_the_batch() -> None:
    part, fields = build("areal", ADVANTAGES, "grpo"), draw(1, rows=12)
    mask, ids, rewards = fields["loss_mask"], fields["group_ids"], fields["rewards"]
    once = torch.zeros_like(rewards)
    for name in ids.unique():
        group = rewards[ids == name]
        if len(group) > 1 and group.std() > 0:
            once[ids == name] = (group - group.mean()) / (group.std() + 1e-5)
    tokens = once[:, None].expand_as(mask)[mask]
    expected = (tokens - tokens.mean()) / tokens.std()
    assert torch.allclose(part(fields)[mask], expected, atol=1e-6)


def test_dapo_and_dr_grpo_are_whole_algorithms() -> None:
    dapo = config("dapo", "rollout.max_new_tokens=40")
    assert dapo.policy_loss == {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}
    assert dapo.regularizers["overlong"] == {"weight": 1.0, "max_length": 40, "buffer": 0.2}
    assert [node["name"] for node in dapo.filters] == ["reward_spread"]
    dr_grpo = config("dr_grpo", "rollout.max_new_tokens=40")
    assert dr_grpo.advantage == {"name": "grpo", "std": "none"}
    assert dr_grpo.aggregation == {"name": "seq-mean-token-sum-norm", "length": 40}


def test_verls_ppo_by_preset_alone_gives_verls_loss() -> None:
    """With the asymmetric clip that the stored runs used."""
    part = build("verl", POLICY_LOSSES, {"name": "ppo_clip", "clip_high": 0.28})
    for number, expected in read("verl_losses", "ppo_clip").items():
        batch: dict[str, Tensor] = inputs(number)
        given = {name: batch[name] for name in ("logp", "prox_logp", "advantages")}
        assert_equal(part(given).loss[batch["mask"]].mean(), expected, number)
