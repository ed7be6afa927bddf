"""Settings of a run: length, evaluation, checkpoints, gates; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.data.config import DataConfig
from rlvlm.models.config import ModelConfig
from rlvlm.ranges import at_least, check_ranges, finite, one_of
from rlvlm.rewards.config import RewardConfig
from rlvlm.roles.config import ActorConfig, RolloutConfig

RESUME = ("auto", "never")
KEEP_FINISHED = ("last", "all", "none")


@dataclass
class GatesConfig:
    """Standing checks, logged in every run.

    Attributes:
        parity_limit: mean absolute difference of trainer and engine log-probs that stops the run; null only logs it.
        vision_every: steps between measurements of what the picture adds to the answers' log-prob; 0 switches them off.
        vision_rows: rows that the measurement takes.
        vision_patience: exact zeros in a row that stop the run, since then no picture reaches the model.
        spread_patience: steps running in which no group's rewards differ, after which the run says so; 0 switches it off.
    """

    parity_limit: float | None = None
    vision_every: int = 10
    vision_rows: int = 8
    vision_patience: int = 3
    spread_patience: int = 20

    def __post_init__(self) -> None:
        check_ranges(
            "run.gates",
            self,
            finite("parity_limit"),
            at_least(0, "vision_every", "spread_patience"),
            at_least(1, "vision_rows", "vision_patience"),
        )


@dataclass
class RunConfig:
    """One run.

    Attributes:
        name: of the run directory; null takes the recipe's name and the time, a directory of its own for each run.
        dir: folder of run directories.
        steps: batches of the stage.
        stop_at: ends the stage early, when an evaluation's sampled accuracy reaches this; needs ``eval_every``.
        eval_every: steps between evaluations; 0 evaluates only before and after.
        eval_prompts: prompts of an evaluation at most; 0 takes all.
        eval_batch: prompts that are generated at once in an evaluation.
        accuracy_rule: reward rule whose mean is called accuracy; null takes the first rule.
        save_every: steps between checkpoints; 0 saves only at the end.
        keep: newest checkpoints that stay while a stage runs.
        keep_finished: which finished stages keep their newest checkpoint, without which a stage can't be made longer but is
            redone: the ``last`` stage, ``all``, or ``none``. A checkpoint of all weights takes several times the model's size.
        resume: ``auto`` goes on with what the run directory holds, ``never`` starts anew; also of one stage alone.
        seed: of weights, shuffling and sampling.
        threads: of torch on a CPU; null leaves it to ``OMP_NUM_THREADS``, which the command sets to the usable cores where it is unset.
        trackers: where metrics go, by name.
        sample_rows: answers kept from each evaluation for the report.
        sample_every: steps between training steps whose answers are kept for the report, with all scores; 0 keeps none.
        sample_groups: groups that are kept of such a step.
        gates: standing checks.
    """

    name: str | None = None
    dir: str = "runs"
    steps: int = 100
    stop_at: float | None = None
    eval_every: int = 0
    eval_prompts: int = 512
    eval_batch: int = 128
    accuracy_rule: str | None = None
    save_every: int = 0
    keep: int = 2
    keep_finished: str = "last"
    resume: str = "auto"
    seed: int = 0
    threads: int | None = None
    trackers: list[Any] = field(default_factory=lambda: ["jsonl", "tensorboard"])
    sample_rows: int = 12
    sample_every: int = 20
    sample_groups: int = 2
    gates: GatesConfig = field(default_factory=GatesConfig)

    def __post_init__(self) -> None:
        check_ranges(
            "run",
            self,
            at_least(0, "eval_every", "eval_prompts", "save_every", "sample_rows", "sample_every"),
            at_least(1, "steps", "sample_groups", "eval_batch", "keep", "threads"),
            finite("stop_at"),
            one_of(RESUME, "resume"),
            one_of(KEEP_FINISHED, "keep_finished"),
        )


@dataclass
class Stage:
    """One stage of a recipe, complete: the recipe's tree with the stage's own settings laid over it.

    Attributes:
        name: unique in the recipe; of its folder in the run directory.
        pipeline: ``rlvr`` or ``sft``, or a registered one.
        init: ``previous`` starts from the weights of the stage before; null from the model itself.
        cache: the finished weights are kept beside the runs and used again while nothing that made them has changed.
    """

    name: str = "rlvr"
    pipeline: str = "rlvr"
    init: str | None = None
    cache: bool = False
    plugins: list[str] = field(default_factory=list)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    train_engine: Any = "local"
    inference_engine: Any = "hf"
    run: RunConfig = field(default_factory=RunConfig)
