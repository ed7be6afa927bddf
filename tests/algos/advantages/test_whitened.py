from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlvlm.algos.registries import ADVANTAGES
from rlvlm.errors import ConfigError

LENGTHS = torch.tensor([1, 4, 2, 3, 3, 1, 2])
IDS = torch.tensor([0, 0, 0, 1, 1, 2, 2])
MASK = torch.arange(4) < LENGTHS[:, None]
REWARDS = torch.tensor([1.0, 0, 0.5, 2, 0, 0.7, 0.7], dtype=torch.float64)
FORMAT = torch.tensor([0.0, 1, 1, 1, 0, 0.3, 0.3], dtype=torch.float64)


def run(node: Any, **more: Any) -> Tensor:
    given = {
        "rewards": REWARDS,
        "group_ids": IDS,
        "loss_mask": MASK,
        "scores_by_rule": {"exact": REWARDS, "format": FORMAT},
    }
    return ADVANTAGES.build(node)({**given, **more})


def whitened(rows: Tensor) -> Tensor:
    tokens = rows.repeat_interleave(LENGTHS)
    return (rows - tokens.mean()) / (tokens.var() + 1e-8).sqrt()


def normalised(scores: Tensor) -> Tensor:
    out = torch.zeros_like(scores)
    for name in IDS.unique():
        group = scores[name == IDS]
        out[name == IDS] = (group - group.mean()) / (group.std() + 1e-6)
    return out


def test_the_baseline_of_reinforce_plus_plus_is_whitened_over_tokens() -> None:
    centred = REWARDS - torch.tensor([0.5, 0.5, 0.5, 1, 1, 0.7, 0.7])
    expected = whitened(centred)
    whole = run({"name": "reinforce_plus_plus_baseline", "equal_groups": "whitened"})
    assert whole[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    kept = run("reinforce_plus_plus_baseline")
    assert kept[:, 0].tolist() == pytest.approx([*expected[:5].tolist(), 0, 0], abs=1e-6)
    assert not kept[~MASK].any()


def test_gdpo_normalises_each_rule_by_itself() -> None:
    expected = whitened(normalised(REWARDS) + 0.5 * normalised(FORMAT))
    node = {"name": "gdpo", "weights": {"exact": 1.0, "format": 0.5}}
    assert run(node)[:, 0].tolist() == pytest.approx([*expected[:5].tolist(), 0, 0], abs=1e-6)
    every_rule = whitened(normalised(REWARDS) + normalised(FORMAT))
    assert run("gdpo")[:5, 0].tolist() == pytest.approx(every_rule[:5].tolist(), abs=1e-6)


def test_gdpo_keeps_a_group_that_differs_in_one_rule_only() -> None:
    other = torch.tensor([0.0, 1, 1, 1, 0, 0.0, 1.0], dtype=torch.float64)
    rows = run("gdpo", scores_by_rule={"exact": REWARDS, "format": other})[:, 0]
    assert rows[5] < 0 < rows[6]


def test_a_sample_at_its_group_mean_is_whitened_like_others() -> None:
    assert run("reinforce_plus_plus_baseline")[2, 0] != 0


def test_gdpo_names_the_rule_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"'formt', which this batch has not \(did you mean 'format'\?\)"):
        run({"name": "gdpo", "weights": {"formt": 1.0}})
    with pytest.raises(ConfigError, match="there are the scores of none"):
        run("gdpo", scores_by_rule={})
