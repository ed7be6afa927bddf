"""Concept balance at scale: the nearest concepts of 1,000,000 pictures among 50,000, and the draw that follows.

Embeddings are drawn around the concepts they belong to, whose frequencies follow Zipf's law, as concepts of web pictures do.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from rlvlm.data.concept_balance import BalanceSettings, Vocabulary, balance, nearest_concepts

PICTURES, CONCEPTS, WIDTH, TOP_K = 1_000_000, 50_000, 512, 5
FULL_PICTURES, FULL_CONCEPTS = 85_000_000, 500_000


def write_embeddings(folder: Path, pictures: int, concepts: int) -> tuple[np.ndarray, np.ndarray]:
    """[N, D] half-precision pictures on disk, and [C, D] concepts."""
    rng = np.random.default_rng(0)
    names = rng.standard_normal((concepts, WIDTH), np.float32)
    chance = 1 / np.arange(1, concepts + 1)
    chance /= chance.sum()
    held = np.lib.format.open_memmap(folder / "pictures.npy", "w+", np.float16, (pictures, WIDTH))
    for start in range(0, pictures, 1 << 16):
        count = min(1 << 16, pictures - start)
        own = rng.choice(concepts, count, p=chance)
        held[start : start + count] = names[own] + 0.8 * rng.standard_normal((count, WIDTH), np.float32)
    held.flush()
    return np.load(folder / "pictures.npy", mmap_mode="r"), names


def main() -> None:
    """Prints what was measured and what it makes at full scale, then one line of JSON; ``--small`` takes a hundredth."""
    share = 100 if "--small" in sys.argv else 1
    pictures, concepts = PICTURES // share, CONCEPTS // (10 if share > 1 else 1)
    vocabulary = Vocabulary.of([[f"concept {number}"] for number in range(concepts)])
    with tempfile.TemporaryDirectory() as folder:
        held, names = write_embeddings(Path(folder), pictures, concepts)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        near = nearest_concepts(held, names, vocabulary, TOP_K, Path(folder) / "nearest")
        seconds = time.perf_counter() - start
        added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        start = time.perf_counter()
        report = balance(near, vocabulary, BalanceSettings(pictures // 10), folder)
        drawing = time.perf_counter() - start
    products = 2.0 * pictures * concepts * WIDTH
    rate = products / seconds
    full = 2.0 * FULL_PICTURES * FULL_CONCEPTS * WIDTH
    gini, covered = (
        tuple(report[f"{name}_{when}"] for when in ("before", "random", "after")) for name in ("gini", "coverage")
    )
    print(
        f"{pictures:,} pictures x {concepts:,} concepts, width {WIDTH}, top {TOP_K}, {torch.get_num_threads()} threads"
    )
    print(f"  nearest  {seconds:8.1f} s   {rate / 1e9:6.1f} GFLOP/s, searching included   +{added:.2f} GiB")
    print(f"  draw     {drawing:8.1f} s   of all / of a random draw / of the balanced one:")
    print(
        "           Gini {:.3f} / {:.3f} / {:.3f}".format(*gini), "  coverage {:.3f} / {:.3f} / {:.3f}".format(*covered)
    )
    hours = full / rate / 3600
    print(
        f"  {FULL_PICTURES:,} x {FULL_CONCEPTS:,}: {full:.1e} FLOP = {hours:,.0f} hours here, {full / 7.2e17:.2f} at 200 TFLOP/s"
    )
    summary = {
        "seconds": round(seconds, 1),
        "gflops": round(rate / 1e9, 1),
        "added_gib": round(added, 2),
        "draw_seconds": round(drawing, 1),
    }
    print(json.dumps({**summary, "gini_random": round(gini[1], 4), "gini_after": round(gini[2], 4)}))


if __name__ == "__main__":
    main()
