"""A tensor of a wrong shape is told of by name, with what was expected and got, and is never broadcast."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlvlm.algos.registries import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    COUNTS,
    FILTERS,
    KL_ESTIMATORS,
    POLICY_LOSSES,
    REGULARIZERS,
    VALUE_LOSSES,
)
from rlvlm.errors import FieldError
from rlvlm.registry import Part
from tests.algos.drawn import draw

REQUIRED = {"overlong": {"max_length": 8}, "seq-mean-token-sum-norm": {"length": 9.0}}
REGISTRIES = (
    ADVANTAGES,
    POLICY_LOSSES,
    VALUE_LOSSES,
    KL_ESTIMATORS,
    REGULARIZERS,
    AGGREGATIONS,
    CORRECTIONS,
    FILTERS,
)
PARTS = [
    registry.build({"name": entry.name, **REQUIRED.get(entry.name, {})})
    for registry in REGISTRIES
    for entry in registry.own_entries()
]
UNSHAPED = {"generator", "clean", "scores_by_rule", *COUNTS}


def cases() -> list[Any]:
    return [
        pytest.param(part, name, id=f"{part.entry.kind} {part.name}: {name}")
        for part in PARTS
        for name in part.needs
        if name not in UNSHAPED
    ]


def refused(part: Part, fields: dict[str, Any]) -> str:
    with pytest.raises(FieldError, match=r"\bgot\b") as caught:
        part(fields)
    return str(caught.value)


@pytest.mark.parametrize(("part", "name"), cases())
def test_one_row_is_not_spread_over_all(part: Part, name: str) -> None:
    if len([other for other in part.needs if other not in UNSHAPED]) == 1 and "scores_by_rule" not in part.needs:
        return  # the only tensor sets the number of rows
    fields = draw(dtype=torch.float32)
    assert "has shape" in refused(part, {**fields, name: fields[name][:1]})


@pytest.mark.parametrize(("part", "name"), cases())
def test_a_missing_dimension_is_refused(part: Part, name: str) -> None:
    fields = draw(dtype=torch.float32)
    if part.entry.kind == "KL estimator":  # an estimate for each entry, whatever the shape
        assert part({"logp": fields["logp"][0], "ref_logp": fields["ref_logp"][0]}).shape == (9,)
        return
    assert "has shape" in refused(part, {**fields, name: fields[name][0]})


@pytest.mark.parametrize("part", [part for part in PARTS if "scores_by_rule" in part.needs], ids=lambda part: part.name)
def test_the_scores_of_every_rule_have_an_entry_for_each_row(part: Part) -> None:
    fields = draw(dtype=torch.float32)
    for rule, scores in fields["scores_by_rule"].items():
        assert "shape" in refused(part, {**fields, "scores_by_rule": {**fields["scores_by_rule"], rule: scores[:1]}})


def test_group_tokens_that_would_be_spread_are_refused() -> None:
    fields = draw(dtype=torch.float32)
    message = refused(AGGREGATIONS.build("prompt-mean"), {**fields, "group_tokens": torch.ones(1, 6)})
    assert message == "'group_tokens' has shape [6], one entry for each row of 'loss_mask', got [1, 6]."


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1, 2], "at least 3 prompts, for the largest of 'group_ids' is 2, got [2]"),
        ([0, -1, 1], "from 0, got the id -1"),
        ([0.0, 1.0, 1.0], "integer dtype, got torch.float32"),
    ],
)
def test_remax_says_which_prompt_has_no_greedy_reward(ids: list[Any], message: str) -> None:
    tokens = torch.ones(3, 2)
    given = {"token_rewards": tokens, "loss_mask": tokens > 0, "greedy_rewards": torch.zeros(2)}
    assert message in refused(ADVANTAGES.build("remax"), {**given, "group_ids": torch.tensor(ids)})
