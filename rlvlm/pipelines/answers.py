"""Several scored answers to every training prompt of a stage: what the selection of prompts goes by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from rlvlm.batch import Batch
from rlvlm.data.jobs import fingerprints
from rlvlm.data.loader import Loader, row_of
from rlvlm.data.selection import Answered, AnswerTask, collect_answers
from rlvlm.data.sources import Source, open_sources
from rlvlm.errors import ConfigError
from rlvlm.models.loading import load_policy
from rlvlm.pipelines.build import accuracy_rule, build_engine, build_rollout
from rlvlm.pipelines.config import Stage
from rlvlm.registry import load_plugins
from rlvlm.roles.reward import Reward
from rlvlm.roles.rollout import Rollout

_WITHOUT_EFFECT = {f"data.{name}" for name in ("eval", "shuffle", "prefetch", "cache_mb", "prompts_per_step")}
"""Settings that change neither a record's answers nor their scores."""


def answer_prompts(
    stage: Stage, folder: str | Path, *, success: float = 1.0, shard: tuple[int, int] = (0, 1), limit: int | None = None
) -> bool:
    """Samples ``rollout.n`` answers to each record of ``data.train``, in order, scores and keeps them.

    The answers to a record depend on its row and the seed, not on what is answered beside it, nor by which process.

    Args:
        success: score of the accuracy rule from which an answer is right.
        shard: (number, of how many) processes that write into one folder.
        limit: only the first so many records.

    Returns whether the answers of all shards are there. Raises ``ConfigError`` unless the stage has one training source.
    """
    load_plugins(stage.plugins)
    sources = open_sources(stage.data, "train", stage.run.seed)
    if len(sources) != 1:
        raise ConfigError(
            f"prompts are selected from one source, data.train has {len(sources)}; select from each in turn."
        )
    source = sources[0]
    policy = load_policy(stage.model)
    rollout = build_rollout(stage, policy, build_engine(stage, policy, steps=None))
    rule = accuracy_rule(stage)
    data = dataclasses.replace(stage.data, eval=stage.data.train, prefetch=0)
    with Reward(stage.reward, max_length=stage.rollout.max_new_tokens) as reward:

        def answer(start: int, end: int) -> Iterator[Answered]:
            loader = Loader(data, policy.family, stage.run.seed, split="eval", sources=[source.part(start, end)])
            for prompts in loader:
                yield from _answered(prompts, rollout, reward, rule, success)

        task = AnswerTask(min(len(source), limit or len(source)), answer)
        return collect_answers(task, folder, _settings(stage, source, success), shard=shard)


def _settings(stage: Stage, source: Source, success: float) -> dict[str, object]:
    """What decides the answers and their scores, under the names of the config's keys."""
    keys = {
        f"{part}.{name}": value
        for part in ("model", "data", "rollout", "reward")
        for name, value in dataclasses.asdict(getattr(stage, part)).items()
        if f"{part}.{name}" not in _WITHOUT_EFFECT
    }
    files = {
        "model_files": fingerprints([stage.model.path]) if stage.model.path else "",
        "data_files": source.fingerprints(),
    }
    return {
        **keys,
        **files,
        "inference_engine": stage.inference_engine,
        "run.seed": stage.run.seed,
        "success": success,
    }


def _answered(prompts: Batch, rollout: Rollout, reward: Reward, rule: str, success: float) -> Iterator[Answered]:
    scored = reward.score(rollout.generate(prompts))
    groups = {prompt.uid: prompt for prompt in scored.prompts}
    rows = [scored.prompts[group].uid for group in scored["group_ids"].tolist()]
    rewards, right = scored["rewards"].tolist(), (scored["scores_by_rule", rule] >= success).tolist()
    for prompt in prompts.prompts:  # a prompt whose rewards all failed is answered by nothing, and says so
        own = [number for number, uid in enumerate(rows) if uid == prompt.uid] if prompt.uid in groups else []
        yield Answered(
            row=row_of(prompt.uid),
            rewards=tuple(rewards[number] for number in own),
            correct=tuple(right[number] for number in own),
            completions=tuple(scored.objects["completions"][number] for number in own),
            columns=dict(prompt.record),
        )
