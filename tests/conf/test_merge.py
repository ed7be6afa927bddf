"""One layer over another: a part's options belong to its name."""

from __future__ import annotations

import pytest

from rlvlm.conf.merge import merge, merge_part, merge_source, merge_weight


@pytest.mark.parametrize(
    ("under", "over", "merged"),
    [
        ({"name": "ppo_clip", "clip_high": 0.28}, "gspo", "gspo"),
        ({"name": "ppo_clip", "clip_high": 0.28}, {"name": "gspo"}, {"name": "gspo"}),
        ({"name": "ppo_clip", "clip_high": 0.28}, {"name": "gspo", "clip_low": 0.1}, {"name": "gspo", "clip_low": 0.1}),
        ({"name": "ppo_clip", "clip_high": 0.28}, "ppo_clip", {"name": "ppo_clip", "clip_high": 0.28}),
        ({"name": "ppo_clip", "clip_high": 0.28}, {"clip_high": 0.3}, {"name": "ppo_clip", "clip_high": 0.3}),
        ("ppo_clip", {"clip_high": 0.3}, {"name": "ppo_clip", "clip_high": 0.3}),
        ("ppo_clip", {"name": "ppo_clip"}, "ppo_clip"),
        (None, {"name": "truncate", "cap": 2.0}, {"name": "truncate", "cap": 2.0}),
        ({"name": "truncate"}, None, None),
        ("a", ["b", "c"], ["b", "c"]),
    ],
)
def test_parts(under, over, merged):
    assert merge_part(under, over) == merged


@pytest.mark.parametrize(
    ("under", "over", "merged"),
    [
        ({"name": "shapes", "size": 8}, "data.jsonl", "data.jsonl"),
        ({"name": "shapes", "size": 8}, {"path": "data.jsonl"}, {"path": "data.jsonl"}),
        ({"name": "shapes", "size": 8}, {"size": 4}, {"name": "shapes", "size": 4}),
        ("data.jsonl", {"limit": 4}, {"path": "data.jsonl", "limit": 4}),
        ("shapes", {"size": 4}, {"name": "shapes", "size": 4}),
        ({"path": "a.jsonl", "limit": 4}, {"path": "a.jsonl"}, {"path": "a.jsonl", "limit": 4}),
        ([{"path": "a.jsonl"}], {"path": "b.jsonl"}, {"path": "b.jsonl"}),
        (None, "a.jsonl", "a.jsonl"),
    ],
)
def test_sources(under, over, merged):
    assert merge_source(under, over) == merged


@pytest.mark.parametrize(
    ("under", "over", "merged"),
    [
        (0.9, 0.5, 0.5),
        ({"weight": 0.1, "iou_threshold": 0.5}, 0.2, {"weight": 0.2, "iou_threshold": 0.5}),
        (0.1, {"iou_threshold": 0.5}, {"weight": 0.1, "iou_threshold": 0.5}),
        (0.1, {"weight": 0.2}, 0.2),
        ({"weight": 1.0, "name": "math"}, {"name": "number"}, {"name": "number"}),
    ],
)
def test_weights(under, over, merged):
    assert merge_weight(under, over) == merged


def test_a_tree_is_merged_key_by_key_and_a_rule_set_to_null_goes():
    under = {
        "algorithm": {"policy_loss": {"name": "ppo_clip", "clip_high": 0.28}, "filters": ["a"]},
        "reward": {"rules": {"number": 1.0, "format": 0.2}, "scale": 1.0},
        "data": {"columns": {"problem": "q"}},
    }
    over = {
        "algorithm": {"policy_loss": "gspo", "filters": ["b"]},
        "reward": {"rules": {"format": None, "bbox": 0.1}},
        "data": {"columns": {"answer": "a"}},
    }
    assert merge(under, over) == {
        "algorithm": {"policy_loss": "gspo", "filters": ["b"]},
        "reward": {"rules": {"number": 1.0, "bbox": 0.1}, "scale": 1.0},
        "data": {"columns": {"problem": "q", "answer": "a"}},
    }
    assert under["reward"]["rules"] == {"number": 1.0, "format": 0.2}


def test_null_takes_all_weighted_parts_out_at_once():
    under = {"reward": {"rules": {"number": 1.0}}, "algorithm": {"regularizers": {"entropy": 0.1}}}
    emptied = merge(under, {"reward": {"rules": None}, "algorithm": {"regularizers": None}})
    assert emptied == {"reward": {"rules": {}}, "algorithm": {"regularizers": {}}}
