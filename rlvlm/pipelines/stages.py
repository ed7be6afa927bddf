"""Running one stage: build its parts, evaluate, train, keep the weights."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlvlm.batch import Batch, Prompt
from rlvlm.data.loader import Loader
from rlvlm.data.supervised import supervised_loader
from rlvlm.engines.train.base import TrainEngine
from rlvlm.pipelines.build import accuracy_rule, build_engine, build_rlvr, build_rollout, eval_loader
from rlvlm.pipelines.checkpoint import Checkpoints
from rlvlm.pipelines.config import Stage
from rlvlm.pipelines.evaluate import Evaluation, evaluate
from rlvlm.pipelines.loop import Batches, StageLoop, Stateful
from rlvlm.pipelines.prompts import PromptStream
from rlvlm.pipelines.rlvr import train_rlvr
from rlvlm.pipelines.sft import SFT, train_sft
from rlvlm.registry import Registry
from rlvlm.roles.reward import Reward
from rlvlm.roles.rollout import Rollout
from rlvlm.tracking.recorder import Recorder
from rlvlm.tracking.rundir import RunDir, read_json, write_json
from rlvlm.tracking.samples import Answer, SampleBook, TrainingBook
from rlvlm.tracking.text import token_pieces, without_placeholders

if TYPE_CHECKING:
    from rlvlm.models.policy import Policy

_LOG = logging.getLogger("rlvlm.pipelines")

PIPELINES = Registry(
    "pipeline", "pipelines", readable=lambda: ("stage", "policy", "context"), traits={"supervised": False}
)
"""Functions of a stage, its policy and the run's context that train the policy and return a ``StageResult``.

The trait ``supervised`` says that a pipeline learns from given answers: it needs no algorithm, and rewards only to
evaluate with.
"""

register_pipeline = PIPELINES.register


def is_supervised(stage: Stage) -> bool:
    """Whether a stage learns from given answers; not, where there is no such pipeline, which a check tells."""
    return stage.pipeline in PIPELINES.names() and bool(PIPELINES.get(stage.pipeline).traits["supervised"])


@dataclass
class StageContext:
    """What a stage is given of its run.

    Attributes:
        origin: fingerprint of what the stage is made of, for its checkpoints.
    """

    run: RunDir
    recorder: Recorder
    samples: SampleBook
    origin: str = ""


@dataclass
class StageResult:
    """What a stage achieved.

    Attributes:
        seconds: per phase.
        train_seconds: wall clock of the loop, its evaluations on the way included, those before and after not.
        numbers: measured before and after, such as ``accuracy_before``.
        details: what the log should say of how it ran.
        made: tells this result from every other of the same stage.
    """

    steps: int = 0
    train_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    numbers: dict[str, float | None] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    made: str = ""


class Examiner:
    """Evaluates a rollout on the stage's held-out prompts and keeps answers for the report."""

    def __init__(self, stage: Stage, policy: Policy, rollout: Rollout, reward: Reward) -> None:
        self.stage, self.policy, self.rollout, self.reward = stage, policy, rollout, reward
        self.rule = accuracy_rule(stage)
        self._loader = eval_loader(stage, policy)
        self._prompts: list[Batch] | None = None
        self._dropped: dict[str, int] = {}

    @property
    def ready(self) -> bool:
        """Whether there is anything to evaluate on."""
        return self._loader is not None

    def sampled(self, keep_rows: int = 0) -> Evaluation:
        """One sampled answer for each prompt."""
        return evaluate(self.rollout, self.reward, self.prompts(), rule=self.rule, greedy=False, keep_rows=keep_rows)

    def greedy(self) -> Evaluation:
        """The likeliest answer to each prompt."""
        return evaluate(self.rollout, self.reward, self.prompts(), rule=self.rule, greedy=True)

    def before_and_after(self, moment: str, samples: SampleBook) -> dict[str, float | None]:
        """``accuracy_<moment>`` (sampled) and ``greedy_<moment>``; the first answers go into the sample book."""
        if not self.ready:
            return {}
        sampled, greedy = self.sampled(self.stage.run.sample_rows), self.greedy()
        for rows in sampled.rows:
            keep_answers(samples, moment, rows, self.policy, self.rule, self.stage.name)
        samples.write()
        errors = sampled.errors + greedy.errors
        dropped = self.dropped()
        self._tell(f"before and after ({moment})", errors, sampled.prompts + greedy.prompts)
        return {
            f"accuracy_{moment}": sampled.accuracy,
            f"greedy_{moment}": greedy.accuracy,
            f"eval_reward_errors_{moment}": float(errors),
            "eval_prompts": float(sampled.prompts),
            **{f"eval_{name}": float(count) for name, count in dropped.items()},
        }

    def metrics(self) -> dict[str, float]:
        """Of an evaluation on the way: sampled only."""
        found = self.sampled()
        self._tell("on the way", found.errors, found.prompts)
        return {**found.metrics("eval/"), **{f"eval/{name}": float(count) for name, count in self.dropped().items()}}

    def dropped(self) -> dict[str, int]:
        """Held-out records that were passed over, by reason: ``over_long`` and ``bad_rows`` always, others where there are any."""
        return {"over_long": 0, "bad_rows": 0, **self._dropped}

    def _tell(self, moment: str, errors: int, scored: int) -> None:
        if not scored:
            _LOG.warning(
                "stage '%s', evaluation %s: no held-out answer could be scored (%d rewards failed), so there is no accuracy; "
                "see reward_errors.jsonl of the run.",
                self.stage.name,
                moment,
                errors,
            )
        elif errors:
            _LOG.warning(
                "stage '%s', evaluation %s: %d rewards failed and %d answers were scored; accuracy is that of the scored ones.",
                self.stage.name,
                moment,
                errors,
                scored,
            )

    def prompts(self) -> list[Batch]:
        """The held-out prompts, prepared once."""
        if self._prompts is None:
            assert self._loader is not None  # callers ask `ready` first
            self._prompts = list(_first(self._loader, self.stage.run.eval_prompts))
            self._dropped = dict(self._loader.counts)
        return self._prompts


def build_reward(stage: Stage, context: StageContext) -> Reward:
    """The reward role of a stage; rows that fail go to ``reward_errors.jsonl`` of the run."""
    log = context.run.path / "reward_errors.jsonl"
    return Reward(stage.reward, max_length=stage.rollout.max_new_tokens, error_log=log, steps=stage.run.steps)


@register_pipeline("rlvr")
def rlvr(stage: Stage, policy: Policy, context: StageContext) -> StageResult:
    """Reinforcement learning with verifiable rewards."""
    with build_reward(stage, context) as reward:
        parts, engine = build_rlvr(stage, policy, reward)
        examiner = Examiner(stage, policy, parts.rollout, reward)
        loader = Loader(stage.data, policy.family, stage.run.seed)
        prompts = PromptStream(loader, stage.data.prompts_per_step)
        loop = _loop(stage, context, engine, parts, examiner)
        result = StageResult(details={"passes": parts.passes.reasons})
        before = context.run.stage(stage.name) / "before.json"
        if not _resume(loop, prompts, stage) or not before.exists():
            write_json(before, examiner.before_and_after("before", context.samples))
        result.numbers.update(read_json(before, dict, "redo the stage with run.resume=never"))
        for name, reason in parts.passes.reasons.items():
            context.recorder.note(f"{name}: {reason}")
        if stage.run.sample_every:
            book = TrainingBook(context.run)

            def keep(rows: Batch, step: int) -> None:
                keep_training_groups(book, step, rows, policy, examiner.rule, stage.name, stage.run.sample_groups)

            parts.keep, parts.keep_every = keep, stage.run.sample_every
        with loop.saving_on_signals():
            train_rlvr(parts, prompts, stage.run, loop)
        result.steps, result.train_seconds = loop.step, loop.train_seconds
        result.seconds = context.recorder.seconds
        loader.close()
        result.numbers.update(examiner.before_and_after("after", context.samples))
    return result


@register_pipeline("sft", supervised=True)
def sft(stage: Stage, policy: Policy, context: StageContext) -> StageResult:
    """Supervised training on assistant turns; with reward rules it can stop at a sampled accuracy (``run.stop_at``).

    With ``data.eval``, ``held_out_loss_before`` and ``_after`` say what the stage made of the loss on held-out dialogues.
    """
    engine = build_engine(stage, policy, steps=stage.run.steps)
    parts = SFT(engine, stage.actor.token_budget)
    loader = supervised_loader(stage.data, policy.family, stage.run.seed)
    with contextlib.ExitStack() as stack:
        examiner = None
        if stage.reward.rules:
            reward = stack.enter_context(build_reward(stage, context))
            examiner = Examiner(stage, policy, build_rollout(stage, policy, engine), reward)
        loop = _loop(stage, context, engine, parts, examiner)
        before = context.run.stage(stage.name) / "before.json"
        if not _resume(loop, loader, stage) or not before.exists():
            write_json(before, _held_out_loss(stage, policy, parts, "before"))
        result = StageResult(numbers=read_json(before, dict, "redo the stage with run.resume=never"))
        with loop.saving_on_signals():
            train_sft(parts, loader, loop)
        result.steps, result.train_seconds = loop.step, loop.train_seconds
        result.seconds = context.recorder.seconds
        result.numbers.update(_held_out_loss(stage, policy, parts, "after"))
    loader.close()
    return result


def _held_out_loss(stage: Stage, policy: Policy, parts: SFT, moment: str) -> dict[str, float | None]:
    """``held_out_loss_<moment>`` in nats per token, over at most ``run.eval_prompts`` dialogues; nothing without ``data.eval``.

    ``held_out_over_long`` and ``held_out_bad_rows`` count the dialogues that were passed over.
    """
    if stage.data.eval is None:
        return {}
    data = dataclasses.replace(stage.data, prompts_per_step=stage.run.eval_batch)
    with contextlib.closing(supervised_loader(data, policy.family, stage.run.seed, split="eval")) as loader:
        loss = parts.held_out_loss(_first(loader, stage.run.eval_prompts))
        if loss is None:
            _LOG.warning("stage '%s': no held-out dialogue is usable, so there is no held-out loss.", stage.name)
        counts = {"over_long": 0, "bad_rows": 0, **loader.counts}
        return {f"held_out_loss_{moment}": loss, **{f"held_out_{name}": float(count) for name, count in counts.items()}}


def keep_answers(samples: SampleBook, moment: str, rows: Batch, policy: Policy, rule: str, stage: str) -> None:
    """Writes each row's question, pictures and answer, with token probabilities and scores, into the sample book, for its stage."""
    for row in range(len(rows)):
        prompt = rows.prompts[int(rows["group_ids"][row])]
        samples.add(
            moment,
            f"{stage}/{prompt.uid}",
            *_shown(rows, prompt),
            [_answer(rows, row, policy, rule)],
        )


def keep_training_groups(
    book: TrainingBook, step: int, rows: Batch, policy: Policy, rule: str, stage: str, most: int
) -> None:
    """Writes the first groups of a training step, all their answers with all rule scores, into the book of training answers."""
    groups = list(dict.fromkeys(rows["group_ids"].tolist()))[:most]
    for group in groups:
        prompt = rows.prompts[group]
        own = [row for row, of in enumerate(rows["group_ids"].tolist()) if of == group]
        answers = [_answer(rows, row, policy, rule) for row in own]
        book.add(stage, step, prompt.uid, *_shown(rows, prompt), answers)


def _shown(rows: Batch, prompt: Prompt) -> tuple[str, str, list[Any]]:
    """Question, reference answer and pictures of a prompt."""
    pictures = [rows.media[span.media].image for span in prompt.spans]
    question = without_placeholders(str(prompt.record.get("problem", "")))
    return question, str(prompt.record.get("answer", "")), [one.decode() for one in pictures if one is not None]


def _answer(rows: Batch, row: int, policy: Policy, rule: str) -> Answer:
    mask = rows["loss_mask"][row]
    pieces = token_pieces(policy.tokenizer, rows["input_ids"][row][mask].tolist())
    chances = rows["behav_logp"][row][mask].exp().tolist()
    scores = {
        key[1]: float(rows[key][row]) for key in rows.keys() if isinstance(key, tuple) and key[0] == "scores_by_rule"
    }
    score = scores.get(rule)
    correct = None if score is None else score >= 1.0
    return Answer(tuple(zip(pieces, chances, strict=True)), score, correct, scores)


def checkpoint_folder(run: RunDir, stage: Stage) -> Path:
    """Where a stage's checkpoints lie."""
    return run.checkpoints / stage.name


def _loop(
    stage: Stage, context: StageContext, engine: TrainEngine, parts: Stateful, examiner: Examiner | None
) -> StageLoop:
    checkpoints = Checkpoints(checkpoint_folder(context.run, stage), stage.run.keep)
    measure = examiner.metrics if examiner is not None and examiner.ready else None
    return StageLoop(stage.run, engine, context.recorder, checkpoints, parts, measure, context.origin)


def _resume(loop: StageLoop, loader: Batches, stage: Stage) -> bool:
    """Goes on from the newest checkpoint, if there is one, and begins the stage's record there; says whether it did."""
    resumed = loop.resume(loader)
    loop.recorder.begin(stage.name, total=stage.run.steps, start=loop.step)
    if resumed:
        where = loop.checkpoints.path(loop.step)
        loop.recorder.note(f"{stage.name}: resumed from step {loop.step} of {stage.run.steps} ({where})")
    return resumed


def _first(batches: Iterable[Batch], prompts: int) -> Iterator[Batch]:
    """Batches until they hold this many prompts, the last one cut to fit; 0 takes all."""
    taken = 0
    for batch in batches:
        room = prompts - taken if prompts else len(batch)
        yield batch if len(batch) <= room else batch.index(torch.arange(room))
        taken += len(batch)
        if prompts and taken >= prompts:
            return
