"""Supervised training on packed against padded data of uneven lengths: tokens a second of whole steps, loader included.

The same drawn captions of very uneven lengths, once as they come (batches of random dialogues, padded to the longest) and
once in the bins of ``rlvlm data pack``. Both sides train the same model on the same number of tokens a step, in turn.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rlvlm.data.config import DataConfig
from rlvlm.data.loader import Loader
from rlvlm.data.offline_packing import Budget, ShardTask, count_lengths, pack, save_bins, write_shards
from rlvlm.data.sources import register_source
from rlvlm.data.supervised import supervised_loader
from rlvlm.data.toys.shapes import draw_shapes
from rlvlm.data.workers import SourceTask
from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.local import LocalEngine
from rlvlm.models.config import ModelConfig
from rlvlm.models.loading import load_policy
from rlvlm.models.policy import Policy
from rlvlm.pipelines.sft import SFT

BIN = 1024  # tokens
BINS = 4  # a step
STEPS = 10
MODEL = {"name": "toy_llava", "task": "shapes", "hidden": 192, "layers": 4, "mlp": 576}


@register_source("uneven_captions")
def uneven_captions(seed: int) -> Sequence[Any]:
    """Drawn pictures with captions of one to 200 words, most of them short."""
    rng = random.Random(seed)

    def record() -> dict[str, Any]:
        picture, colours = draw_shapes(rng)
        words = " ".join(rng.choices(colours, k=min(1 + int(rng.lognormvariate(3.0, 1.0)), 200)))
        return {"caption": words, "images": [picture]}

    return [record() for _ in range(2000)]


def pack_captions(folder: Path, policy: Policy) -> str:
    """The captions packed into shards; returns their pattern."""
    task = SourceTask(DataConfig(train={"name": "uneven_captions"}, template=None), lambda: policy.family)
    lengths = count_lengths(task, folder / "lengths", quiet=True)
    report = save_bins(pack(lengths.tokens, Budget(BIN)), folder / "bins")
    write_shards(ShardTask(task, *(str(folder / step) for step in ("lengths", "bins", "shards"))), quiet=True)
    print(
        f"{len(lengths.tokens):,} dialogues of {lengths.tokens.mean():.0f} tokens on average, {lengths.tokens.max()} at most"
    )
    print(f"bins of {BIN} tokens, {report['fill']:.1%} full")
    return f"{folder}/shards/*.tar"


def make_side(layout: str, train: Any, per_step: int) -> tuple[SFT, Loader]:
    """A model of its own, its trainer, and the loader of one side."""
    policy = load_policy(ModelConfig(build=MODEL, layout=layout))
    engine = LocalEngine()
    engine.prepare(policy, OptimizerConfig(lr=1e-3), 2 * STEPS)
    data = DataConfig(train=train, template=None, prompts_per_step=per_step)
    return SFT(engine, token_budget=1 << 20), supervised_loader(data, policy.family)


class Silent:
    """A recorder that times nothing."""

    def phase(self, name: str) -> Any:
        """No phase."""
        return contextlib.nullcontext()


def main() -> None:
    """Prints a table, then one line of JSON."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        tars = pack_captions(Path(folder), load_policy(ModelConfig(build=MODEL)))
        packed, packed_loader = make_side("packed", tars, BINS)
        batches = iter(packed_loader)
        per_step = len(next(batches))  # as many dialogues a step on the other side
        padded, padded_loader = make_side("padded", {"name": "uneven_captions"}, per_step)
        rates: dict[str, list[float]] = {"padded": [], "packed": []}
        sides = (("padded", padded, iter(padded_loader)), ("packed", packed, batches))
        for step in range(STEPS + 1):
            for name, trainer, loader in sides:
                start = time.perf_counter()
                batch = next(loader)
                trainer.step(batch, Silent())  # type: ignore[arg-type]
                seconds = time.perf_counter() - start
                if step:
                    rates[name].append(int(batch["attention_mask"].sum()) / seconds)
        for loader in (packed_loader, padded_loader):
            loader.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        print(f"  {name:<8} {rate:>10,.0f} tokens/s")
    print(
        json.dumps(
            {
                "speedup": round(medians["packed"] / medians["padded"], 3),
                **{f"{n}_tokens_per_s": round(r) for n, r in medians.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
