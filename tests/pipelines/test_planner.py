"""Which passes are planned, with which reasons."""

from __future__ import annotations

import pytest
import torch

from rlvlm.algorithm import Algorithm
from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.errors import ConfigError
from rlvlm.fields import FIELDS, register_field
from rlvlm.pipelines.planner import plan_passes


def plan(config: AlgorithmConfig | None = None, steps: int = 1, dropout: bool = False):
    algorithm = Algorithm(config)
    return plan_passes(algorithm.needs, algorithm.reads_before_update, optimizer_steps=steps, dropout_active=dropout)


def test_one_step_without_dropout_takes_prox_logp_from_the_training_pass():
    passes = plan()
    assert (passes.prox_logp, passes.prox_from_logp, passes.ref_logp, passes.greedy) == (False, True, False, False)
    assert passes.reasons["prox_logp"].startswith("taken from the training pass")


@pytest.mark.parametrize(
    ("steps", "dropout", "config", "why"),
    [
        (2, False, AlgorithmConfig(), "2 optimiser steps"),
        (1, True, AlgorithmConfig(), "dropout"),
        (1, False, AlgorithmConfig(kl_in_reward=0.1), "read before the update"),
    ],
)
def test_prox_logp_has_a_pass_of_its_own_when_the_training_pass_cannot_give_it(steps, dropout, config, why):
    passes = plan(config, steps, dropout)
    assert passes.prox_logp
    assert not passes.prox_from_logp
    assert why in passes.reasons["prox_logp"]


def test_nothing_is_computed_for_a_loss_that_reads_no_prox_logp():
    passes = plan(AlgorithmConfig(policy_loss="reinforce"), steps=4)
    assert not passes.prox_logp
    assert not passes.prox_from_logp


def test_a_weight_of_zero_still_needs_its_field():
    assert plan(AlgorithmConfig(regularizers={"kl_to_reference": 0.0})).ref_logp


def test_greedy_answers_are_drawn_only_for_an_estimator_that_reads_them():
    assert plan(AlgorithmConfig(advantage="remax")).greedy


def test_a_field_that_no_pass_writes_is_an_error_before_any_work():
    with pytest.raises(ConfigError, match=r"reads 'values', but only a critic writes it, and no pipeline here has one"):
        plan_passes({"values"}, set(), optimizer_steps=1, dropout_active=False)
    with pytest.raises(ConfigError, match="reads 'nothing_known', but no such field is declared"):
        plan_passes({"nothing_known"}, set(), optimizer_steps=1, dropout_active=False)


def test_a_registered_field_with_a_writer_is_written_for_whoever_reads_it():
    try:
        register_field("novelty", "B L", torch.float32, "made up", writer=lambda batch: batch["behav_logp"] * 0)
        passes = plan_passes({"novelty"}, set(), optimizer_steps=1, dropout_active=False)
        assert passes.written == ("novelty",)
    finally:
        FIELDS.pop("novelty", None)
