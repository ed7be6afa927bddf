"""A stage so small that a whole run takes a second or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlvlm.data.config import DataConfig
from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.models.config import ModelConfig
from rlvlm.pipelines.config import GatesConfig, RunConfig, Stage
from rlvlm.rewards.config import RewardConfig
from rlvlm.roles.config import ActorConfig, RolloutConfig

TOY = {"name": "toy_llava", "hidden": 64, "layers": 1, "mlp": 64, "vision_hidden": 32, "vision_mlp": 32}


def rlvr_stage(**changes: Any) -> Stage:
    """Four prompts, two answers each, three steps; ``changes`` replace whole parts, or settings of ``run`` by name."""
    run: dict[str, Any] = {
        "gates": GatesConfig(vision_every=0),
        "steps": 3,
        "eval_prompts": 8,
        "eval_batch": 8,
        "trackers": ["jsonl"],
        "threads": 1,
        "seed": 5,
    }
    own = {key: changes.pop(key) for key in list(changes) if key in RunConfig.__dataclass_fields__}
    settings: dict[str, Any] = {
        "name": "rl",
        "model": ModelConfig(build=TOY, seed=5),
        "data": DataConfig(
            train="shapes", eval={"name": "shapes", "size": 8}, template=None, prompts_per_step=4, prefetch=0
        ),
        "actor": ActorConfig(optimizer=OptimizerConfig(lr=1e-3)),
        "rollout": RolloutConfig(n=4, max_new_tokens=4),
        "reward": RewardConfig(rules={"shortness": 1.0}),
        "plugins": [str(Path(__file__).with_name("shortness.py"))],
        "run": RunConfig(**{**run, **own}),
    }
    return Stage(**{**settings, **changes})


def sft_stage(**changes: Any) -> Stage:
    """Eight dialogues a step, three steps."""
    stage = rlvr_stage(**changes)
    stage.name, stage.pipeline = changes.get("name", "warmup"), "sft"
    stage.data.train = {"name": "shapes", "columns": {"answer": "response"}}
    stage.data.prompts_per_step = 8
    return stage


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of ``metrics.jsonl`` without what the clock and the memory say."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("time/", "memory/"))}
        for line in lines
    ]
