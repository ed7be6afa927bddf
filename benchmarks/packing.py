"""Offline packing at full scale: 85,000,000 lengths on one core, beside TRL's packing, greedy knapsacks and padding.

The lengths are drawn (seeded) like a mixture of captions and instructions at native resolution; nothing is tokenised.
Each side packs the same lengths. TRL's side is given lists of nulls, so that it moves no token data and only its search for
bins is timed; it keeps one bin per step of Python, so it is timed on fewer samples and compared at equal numbers.
"""

from __future__ import annotations

import bisect
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.peers import peer_python
from rlvlm.data.offline_packing.bins import Budget, pack

FULL = 85_000_000
SHARED = 200_000  # samples that every side packs
REPEATS = 2
BUDGETS = (8192, 32768)
PATCHES = {8192: 24_000, 32768: 96_000}
BATCHES = (4, 16, 64)


def draw_costs(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """[N] tokens and [N] vision patches: three quarters captions, the rest instructions, some of these without a picture."""
    tokens, patches = np.empty(count, np.int32), np.empty(count, np.int32)
    rng = np.random.default_rng(seed)
    step = 1 << 22
    for start in range(0, count, step):
        n = min(step, count - start)
        captions = rng.random(n) < 0.76
        text = np.where(captions, rng.lognormal(5.2, 0.5, n), rng.lognormal(5.6, 0.9, n)).astype(np.int32) + 8
        shown = captions | (rng.random(n) < 0.85)
        picture = np.where(shown, np.clip(rng.lognormal(6.2, 0.7, n), 16, 3265), 0).astype(np.int32)
        tokens[start : start + n], patches[start : start + n] = text + picture, 4 * picture
    return tokens, patches


def full_scale(budget: int, with_patches: bool) -> dict[str, float]:
    """Packs 85 M samples in a process of its own, so that its peak memory is told apart."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_pack_full, budget, with_patches).result()


def _pack_full(budget: int, with_patches: bool) -> dict[str, float]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core
    tokens, patches = draw_costs(FULL)
    start = time.perf_counter()
    packed = pack(tokens, Budget(budget, PATCHES[budget] if with_patches else None), patches if with_patches else None)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "fill": packed.fill,
        "bins": len(packed),
        "waste": len(packed) / packed.lower_bound - 1,
        "over_long": len(packed.over_long),
    }


def trl_bins(tokens: np.ndarray, budget: int) -> tuple[float, int]:
    """Seconds and bins of TRL's best fit decreasing."""
    from trl.data_utils import _pack_bfd

    offsets = pa.array(np.concatenate([[0], np.cumsum(tokens)]).astype(np.int32))
    table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, pa.nulls(int(tokens.sum())))})
    start = time.perf_counter()
    bins = len(_pack_bfd(table, budget))
    return time.perf_counter() - start, bins


def knapsack_bins(tokens: np.ndarray, budget: int, buffer: int) -> tuple[float, int]:
    """Seconds and bins of packing each buffer of samples greedily, the longest that fits first, as online packing does."""
    start, bins = time.perf_counter(), 0
    for first in range(0, len(tokens), buffer):
        left = sorted(tokens[first : first + buffer].tolist())
        while left:
            room = budget
            while (place := bisect.bisect_right(left, room) - 1) >= 0:
                room -= left.pop(place)
            bins += 1
    return time.perf_counter() - start, bins


def padded_places(tokens: np.ndarray, batch: int) -> int:
    """Token places when batches of random samples are padded to their longest."""
    whole = tokens[: len(tokens) // batch * batch].reshape(-1, batch)
    return int(whole.max(1).sum(dtype=np.int64)) * batch


def compare(budget: int) -> dict[str, Any]:
    """Every side on the same samples, in turn, the best of several times each."""
    tokens, _ = draw_costs(SHARED, seed=1)
    tokens = tokens[tokens <= budget]
    times: dict[str, list[float]] = {"rlvlm": [], "TRL bfd": []}
    bins: dict[str, int] = {}
    for _ in range(REPEATS):
        start = time.perf_counter()
        bins["rlvlm"] = len(pack(tokens, Budget(budget)))
        times["rlvlm"].append(time.perf_counter() - start)
        seconds, bins["TRL bfd"] = trl_bins(tokens, budget)
        times["TRL bfd"].append(seconds)
    for buffer in (1000, 10_000):
        seconds, bins[f"knapsack over {buffer:,}"] = knapsack_bins(tokens, budget, buffer)
        times[f"knapsack over {buffer:,}"] = [seconds]
    total = int(tokens.sum(dtype=np.int64))
    print(f"{len(tokens):,} samples, {budget:,} tokens a bin")
    for name, count in bins.items():
        print(f"  {name:<24} {min(times[name]):8.2f} s   {count:>9,} bins   fill {total / count / budget:8.3%}")
    padding = {}
    for batch in BATCHES:
        places = padded_places(tokens, batch)
        padding[batch] = places / (bins["rlvlm"] * budget)
        print(
            f"  padding, batches of {batch:<4}                 fill {total / places:8.3%}   {padding[batch]:.2f}x the places"
        )
    return {"speed_vs_trl": min(times["TRL bfd"]) / min(times["rlvlm"]), "padding_reduction": padding[16]}


def main() -> None:
    """Prints the tables, then one line of JSON."""
    if "--inside" not in sys.argv:  # TRL lives in the peers' environment, and both sides run there
        sys.exit(subprocess.run([str(peer_python()), "-m", "benchmarks.packing", "--inside"]).returncode)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    results = {budget: compare(budget) for budget in BUDGETS}
    print(f"{FULL:,} samples on one core")
    figures: dict[str, dict[str, float]] = {}
    for budget in BUDGETS:
        for with_patches in (False, True):
            name = f"{budget:,} tokens" + (f", {PATCHES[budget]:,} patches" if with_patches else "")
            figures[name] = one = full_scale(budget, with_patches)
            print(
                f"  {name:<30} {one['seconds']:6.1f} s  {one['gib']:4.2f} GiB  {one['bins']:>10,.0f} bins  fill {one['fill']:.4%}  "
                f"waste {one['waste']:.4%}  over-long {one['over_long']:,.0f}"
            )
    first, second = figures[f"{BUDGETS[0]:,} tokens"], figures[f"{BUDGETS[1]:,} tokens"]
    summary = {
        "seconds_85m": round(first["seconds"], 2),
        "gib_85m": round(first["gib"], 2),
        "fill_8k": round(first["fill"], 6),
        "fill_32k": round(second["fill"], 6),
        "waste_8k": round(first["waste"], 6),
        "padding_reduction": round(results[BUDGETS[0]]["padding_reduction"], 3),
        "speed_vs_trl": round(results[BUDGETS[0]]["speed_vs_trl"], 2),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
