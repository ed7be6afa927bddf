"""Long runs are flat: what a step leaves behind does not grow, but for processed pictures, up to ``data.cache_mb``."""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch

from rlvlm.data.media_table import PixelCache
from rlvlm.pipelines import train
from rlvlm.pipelines.rlvr import RLVR
from tests.pipelines.miniature import rlvr_stage

PICTURE = 4 * 3 * 42 * 42
"""Bytes of one of the task's pictures as the model takes it."""


def live_bytes() -> int:
    """Bytes of all tensors that Python can reach."""
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor) and not thing.is_meta)
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def growth(folder, monkeypatch, cache_mb: int) -> float:
    """Bytes that each of eight steps adds, the first ones apart, in pictures of the step."""
    seen: list[int] = []
    steps: list[int] = []
    plain = RLVR.step

    def step(self, *args, **kwargs):
        metrics = plain(self, *args, **kwargs)
        steps.append(len(steps) + 1)
        if steps[-1] in (4, 12):
            seen.append(live_bytes())
        return metrics

    monkeypatch.setattr(RLVR, "step", step)
    made = rlvr_stage(steps=12, eval_every=0)
    made.data = dataclasses.replace(made.data, cache_mb=cache_mb)
    train([made], folder, show=False)
    return (seen[1] - seen[0]) / 8 / (made.data.prompts_per_step * PICTURE)


def test_only_the_pictures_of_the_cache_add_up(tmp_path, monkeypatch):
    assert growth(tmp_path, monkeypatch, cache_mb=0) == pytest.approx(0.0, abs=0.05)


def test_pictures_that_may_come_again_are_kept(tmp_path, monkeypatch):
    assert growth(tmp_path, monkeypatch, cache_mb=256) == pytest.approx(1.0, abs=0.05)


def test_the_cache_keeps_to_its_bound_and_drops_what_was_used_longest_ago():
    cache = PixelCache(10 * PICTURE)
    for number in range(100):
        cache.put(str(number), {"pixel_values": torch.zeros(1, 3, 42, 42)})
        assert cache.get("0" if number < 50 else str(number)) is not None
        assert cache.used <= 10 * PICTURE
    assert [number for number in range(100) if str(number) in cache] == list(range(90, 100))
    cache.put("large", {"pixel_values": torch.zeros(11, 3, 42, 42)})
    assert "large" not in cache
