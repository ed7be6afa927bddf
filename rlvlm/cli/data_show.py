"""``rlvlm data show <recipe> [key=value …]``: one record as the model will read it, with its pictures and its reference answer."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvlm.errors import ConfigError, nearest

if TYPE_CHECKING:
    from rlvlm.batch import Batch
    from rlvlm.models.families.base import Family
    from rlvlm.pipelines.config import Stage


def add_parser(verbs: Any) -> None:
    """Adds the verb to the parser of ``rlvlm data``."""
    parser = verbs.add_parser("show", help="one prompt of a recipe as the model will read it")
    parser.add_argument("recipe", help="recipe whose data, prompt template and model are used")
    parser.add_argument("overrides", nargs="*", help="of the recipe, such as data.train=mine.jsonl")
    parser.add_argument("--stage", help="stage of the recipe; the last one by default")
    parser.add_argument("--split", choices=("train", "eval"), default="train")
    parser.add_argument("--row", type=int, default=0, help="which record, counted from 0")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the record."""
    from rlvlm.conf import load_recipe, resolve_stages
    from rlvlm.registry import load_plugins

    stages = {stage.name: stage for stage in resolve_stages(load_recipe(arguments.recipe, arguments.overrides))}
    name = arguments.stage or list(stages)[-1]
    if name not in stages:
        raise ConfigError(f"the recipe has no stage '{name}'{nearest(name, stages)}.")
    load_plugins(stages[name].plugins)
    print(show(stages[name], arguments.split, arguments.row))
    return 0


def show(stage: Stage, split: str = "train", row: int = 0) -> str:
    """What the model reads of a record, the sizes of its pictures, and the answer that its rewards or its loss go by.

    Raises ``ConfigError`` where the model or the record is not there, ``DataError`` where the record is not usable.
    """
    from rlvlm.data.sources import open_sources

    family = _family(stage)
    sources = open_sources(stage.data, split, stage.run.seed)
    if not sources:
        raise ConfigError(f"data.{split} names no source; set it to a path or a source's name.")
    if not 0 <= row < len(sources[0]):
        raise ConfigError(f"--row {row} is none of the {len(sources[0])} records of '{sources[0].name}'.")
    batch = _load(stage, family, split, [sources[0].part(row, row + 1)])
    lines = [f"data.{split}: {sources[0].origin(row)}"]
    return "\n".join(
        [*lines, *_prompt_lines(batch, family), *_picture_lines(batch, family), *_answer_lines(batch, family)]
    )


def _family(stage: Stage) -> Family:
    """The model's family, without its weights where it lies in a folder."""
    from rlvlm.conf.places import model_problem
    from rlvlm.models.loading import load_family, load_policy

    if stage.model.build is not None:
        return load_policy(dataclasses.replace(stage.model, lora=None, trainable=["*"])).family
    path = str(Path(stage.model.path or "").expanduser())
    problem = model_problem(path) if stage.model.path else "the stage has no model; set model.path."
    if problem is not None:
        raise ConfigError(problem)
    return load_family(path)


def _load(stage: Stage, family: Family, split: str, sources: list[Any]) -> Batch:
    from rlvlm.data.loader import Loader
    from rlvlm.data.supervised import supervised_loader
    from rlvlm.pipelines.stages import PIPELINES

    own = dataclasses.replace(
        stage.data, prompts_per_step=1, prefetch=0, shuffle=False, on_bad_row="stop", over_long="raise"
    )
    supervised = PIPELINES.get(stage.pipeline).traits["supervised"]
    make = supervised_loader if supervised else Loader
    return next(iter(make(own, family, stage.run.seed, split=split, sources=sources)))


def _prompt_lines(batch: Batch, family: Family) -> list[str]:
    prompt = batch.prompts[0]
    text = family.tokenizer.decode(prompt.engine_ids, skip_special_tokens=False)
    return ["", f"prompt ({len(prompt.ids)} tokens, pictures included):", text]


def _picture_lines(batch: Batch, family: Family) -> list[str]:
    if not batch.media:
        return ["", "pictures: none"]
    lines = ["", f"pictures: {len(batch.media)}"]
    for number, picture in enumerate(batch.media, start=1):
        seen = family.target_size(picture.size)
        stored = getattr(picture.image, "stored_size", picture.size)
        lines.append(
            f"  {number}: stored {stored[0]}×{stored[1]}, seen by the model as {seen[0]}×{seen[1]}, "
            f"{family.image_tokens(picture.size)} tokens"
        )
    return lines


def _answer_lines(batch: Batch, family: Family) -> list[str]:
    record = batch.prompts[0].record
    lines = [
        "",
        f"reference answer: {record['answer']!r}" if record.get("answer") is not None else "reference answer: none",
    ]
    if "loss_mask" in batch.keys():
        learnt = batch["input_ids"][0][batch["loss_mask"][0]]
        lines += [
            "",
            f"learned ({len(learnt)} tokens with loss):",
            family.tokenizer.decode(learnt, skip_special_tokens=False),
        ]
    return lines
