"""Settings of a run: length, evaluation, checkpoints, gates; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class GatesConfig:
    """Standing checks, logged in every run.

    Attributes:
        parity_every: steps between comparisons of trainer and engine log-probs of the same tokens; 0 switches them off.
        parity_limit: mean absolute difference that stops the run; null only logs it.
        vision_every: steps between measurements of what the picture adds to the answers' log-prob; 0 switches them off.
        vision_rows: rows that the measurement takes.
        vision_patience: exact zeros in a row that stop the run, since then no picture reaches the model.
    """

    parity_every: int = 1
    parity_limit: float | None = None
    vision_every: int = 10
    vision_rows: int = 8
    vision_patience: int = 3


@dataclass
class RunConfig:
    """One run.

    Attributes:
        name: of the run directory; null takes the recipe's name.
        dir: folder of run directories.
        steps: batches of the stage.
        eval_every: steps between evaluations; 0 evaluates only before and after.
        eval_prompts: prompts of an evaluation at most; 0 takes all.
        eval_batch: prompts that are generated at once in an evaluation.
        accuracy_rule: reward rule whose mean is called accuracy; null takes the first rule.
        save_every: steps between checkpoints; 0 saves only at the end.
        keep: checkpoints that are kept.
        resume: ``auto`` goes on from the newest checkpoint of the run directory, ``never`` starts anew.
        seed: of weights, shuffling and sampling.
        threads: of torch on a CPU; null takes the number of cores.
        trackers: where metrics go, by name.
        sample_rows: answers kept from each evaluation for the report.
        gates: standing checks.
    """

    name: str | None = None
    dir: str = "runs"
    steps: int = 100
    eval_every: int = 0
    eval_prompts: int = 512
    eval_batch: int = 128
    accuracy_rule: str | None = None
    save_every: int = 0
    keep: int = 2
    resume: str = "auto"
    seed: int = 0
    threads: int | None = None
    trackers: list[Any] = field(default_factory=lambda: ["jsonl", "tensorboard"])
    sample_rows: int = 12
    gates: GatesConfig = field(default_factory=GatesConfig)
