from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algos.composition import Composition, compose
from rlvlm.algos.registries import POLICY_LOSSES, REGULARIZERS, register_policy_loss, register_regularizer
from rlvlm.errors import ConfigError, RegistryError


def made(**nodes: Any) -> Composition:
    empty: dict[str, Any] = {
        "advantage": "grpo",
        "policy_loss": "ppo_clip",
        "value_loss": None,
        "regularizers": {},
        "kl_in_reward": None,
        "correction": None,
        "aggregation": "token-mean",
        "filters": [],
        "conventions": {},
    }
    return compose(**{**empty, **nodes})


@pytest.fixture
def odd_parts() -> Iterator[None]:
    @register_regularizer("late", acts_on="reward")
    def late(logp: Tensor) -> Tensor:
        return logp

    @register_regularizer("nowhere", acts_on="losss")
    def nowhere(logp: Tensor) -> Tensor:
        return logp

    @register_regularizer("wide", scope="minibatch")
    def wide(logp: Tensor) -> Tensor:
        return logp

    @register_policy_loss("scopeless", scope="minbatch")
    def scopeless(logp: Tensor) -> Tensor:
        return logp

    yield
    for name in ("late", "nowhere", "wide"):
        del REGULARIZERS._entries[name]
    del POLICY_LOSSES._entries["scopeless"]


def test_a_regularizer_of_the_reward_can_not_read_the_update(odd_parts: None) -> None:
    with pytest.raises(ConfigError, match="'late' acts on the reward, before the update, and reads 'logp'"):
        made(regularizers={"late": 0.1})


def test_traits_are_checked_against_what_there_is(odd_parts: None) -> None:
    with pytest.raises(ConfigError, match=r"'nowhere' acts on 'losss' \(did you mean 'loss'\?\)"):
        made(regularizers={"nowhere": 0.1})
    with pytest.raises(ConfigError, match=r"declares the scope 'minbatch' \(did you mean 'minibatch'\?\)"):
        made(policy_loss="scopeless")


def test_the_scope_is_the_farthest_of_all_terms(odd_parts: None) -> None:
    assert made(policy_loss="gspo").scope == "sequence"
    assert made(policy_loss="gspo", regularizers={"wide": 0.0}).scope == "minibatch"


def test_several_regularizers_of_one_kind_go_by_a_key_of_their_own() -> None:
    twice = made(regularizers={"near": {"name": "kl_to_reference", "weight": 0.1}, "kl_to_reference": 0.2})
    assert [(term.name, term.part.name, term.weight) for term in twice.on_loss] == [
        ("near", "kl_to_reference", 0.1),
        ("kl_to_reference", "kl_to_reference", 0.2),
    ]


def test_parts_with_state_have_unique_names() -> None:
    whole = made(correction=["tis", "tis"], filters=["length", "length"], regularizers={"entropy": 0.1})
    assert set(whole.with_state()) == {
        "advantage",
        "policy_loss",
        "aggregation",
        "correction.0",
        "correction.1",
        "filter.0",
        "filter.1",
        "regularizer.entropy",
    }


def test_making_an_algorithm_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    made(policy_loss="clip_cov", correction="tis", filters=["reward_spread"])
    assert torch.get_rng_state().equal(before)


def test_a_node_that_is_neither_name_nor_mapping_is_refused() -> None:
    with pytest.raises(RegistryError, match="an advantage is a name or a mapping with 'name'|a advantage is a name"):
        made(advantage=3)
