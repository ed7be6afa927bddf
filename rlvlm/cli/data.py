"""``rlvlm data``: look at data, choose prompts, balance concepts, pack samples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlvlm.cli import data_show


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns 0, or 1 where ``check`` finds faults."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    behind = [text for text in rest if "=" in text and not text.startswith("-")]  # overrides that stand after a flag
    takes_overrides = arguments.verb in ("select", "show")
    if rest and (behind != rest or not takes_overrides):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if takes_overrides:
        arguments.overrides += behind
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rlvlm data", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_check(verbs)
    data_show.add_parser(verbs)
    _add_select(verbs)
    _add_balance(verbs)
    _add_pack(verbs)
    return parser


# ---------------------------------------------------------------------- shared options


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="data file, folder, pattern, folder@split, or a registered source's name")
    group = parser.add_argument_group("how the data is read")
    group.add_argument("--format", help="what a row means; told from its columns by default")
    group.add_argument(
        "--columns", default="{}", help='our column names to the file\'s, as JSON: {"problem": "question"}'
    )
    group.add_argument(
        "--where", default="{}", help='only matching rows, as JSON: {"kind": ["a", "b"], "level": {"max": 3}}'
    )
    group.add_argument("--rows", help="parquet file of select or balance: only the rows it names")
    group.add_argument("--template", help="prompt template; a record's own comes first")
    group.add_argument("--image-folder", help="where pictures' paths start; the data file's folder by default")
    group.add_argument("--allow-outside", action="store_true", help="let pictures' paths lead outside that folder")
    group.add_argument("--min-pixels", type=int)
    group.add_argument("--max-pixels", type=int)
    group.add_argument("--max-prompt-tokens", type=int)
    group.add_argument("--limit", type=int, help="only the first so many rows")
    group.add_argument(
        "--plugin", action="append", default=[], help="a .py file with formats, sources or rewards of your own"
    )


def _config_of(arguments: argparse.Namespace) -> Any:
    from rlvlm.data.config import DataConfig
    from rlvlm.registry import load_plugins

    load_plugins(arguments.plugin)
    columns, where = _json_option(arguments, "columns"), _json_option(arguments, "where")
    read_as = {name: getattr(arguments, name) for name in ("format", "rows", "limit")}
    node = {
        "path" if any(mark in arguments.path for mark in "/\\.@") else "name": arguments.path,
        "where": where,
        **read_as,
    }
    return DataConfig(
        train=node,
        template=arguments.template,
        columns=columns,
        image_folder=arguments.image_folder,
        allow_outside=arguments.allow_outside,
        min_pixels=arguments.min_pixels,
        max_pixels=arguments.max_pixels,
        max_prompt_tokens=arguments.max_prompt_tokens,
    )


def _json_option(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    from rlvlm.errors import ConfigError

    text = getattr(arguments, name)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--{name} is no valid JSON ({error}): {text}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"--{name} is a JSON object, got {text}")
    return value


# ---------------------------------------------------------------------- check


def _add_check(verbs: Any) -> None:
    parser = verbs.add_parser("check", help="what a file holds and what is wrong with it")
    _add_source(parser)
    parser.add_argument("--model", help="folder of a model: counts tokens by its tokenizer and image processor")
    parser.add_argument(
        "--decode", action="store_true", help="also decode every picture, to find files that are cut off"
    )
    parser.add_argument("--dialogues", action="store_true", help="read rows as dialogues to learn from, not as prompts")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    from rlvlm.data.check import as_text, check_source
    from rlvlm.data.sources import open_sources

    config = _config_of(arguments)
    family = _family(arguments.model) if arguments.model else None
    (source,) = open_sources(config)
    report = check_source(source, config, family, decode=arguments.decode, dialogues=arguments.dialogues)
    print(json.dumps(report.as_dict(), indent=1) if arguments.json else as_text(report))
    return 1 if report.fault_count or not report.usable else 0


def _family(path: str) -> Any:
    from rlvlm.models.loading import load_family

    return load_family(path)


# ---------------------------------------------------------------------- pack


def _add_pack(verbs: Any) -> None:
    parser = verbs.add_parser("pack", help="pack dialogues into bins of equal length, once, before training")
    _add_source(parser)
    parser.add_argument(
        "--model", required=True, help="folder of a model: its tokenizer and image processor count the tokens"
    )
    parser.add_argument("--out", required=True, help="folder for lengths/, bins/ and shards/")
    parser.add_argument("--max-tokens", type=int, required=True, help="tokens of a bin")
    parser.add_argument("--max-patches", type=int, help="vision patches of a bin; no limit by default")
    parser.add_argument("--over-long", choices=("drop", "keep"), default="drop", help="samples over a budget")
    parser.add_argument("--on-bad-row", choices=("stop", "skip"), default="stop")
    parser.add_argument("--bins-per-shard", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0, help="of the order in which bins are written")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--step", choices=("lengths", "bins", "shards", "all"), default="all")
    parser.set_defaults(run=_pack)


def _pack(arguments: argparse.Namespace) -> int:
    import dataclasses
    from pathlib import Path

    from rlvlm.data.offline_packing import Budget, Lengths, ShardTask, count_lengths, pack, save_bins, write_shards
    from rlvlm.data.progress import Progress
    from rlvlm.data.workers import SourceTask
    from rlvlm.errors import DataError

    config = dataclasses.replace(_config_of(arguments), on_bad_row=arguments.on_bad_row)
    task = SourceTask(config, partial(_family, arguments.model), tuple(arguments.plugin))
    out, step = Path(arguments.out), arguments.step
    budget = Budget(arguments.max_tokens, arguments.max_patches)
    report: dict[str, Any] = {}
    if step in ("lengths", "all"):
        lengths = count_lengths(task, out / "lengths", workers=arguments.workers)
        report["lengths"] = {"rows": len(lengths.tokens), "bad_rows": lengths.fault_count, "first": lengths.faults}
    if step in ("bins", "all"):
        lengths = Lengths.load(out / "lengths")
        keep = arguments.over_long == "keep"
        with Progress("bins", len(lengths.tokens), unit="samples") as shown:
            bins = pack(lengths.tokens, budget, lengths.patches, keep_over_long=keep, skip_empty=True, progress=shown)
        if not len(bins):
            raise DataError(
                f"nothing can be packed: of {len(lengths.tokens)} rows {len(bins.over_long)} are over the budget of a bin and the "
                "others are empty; raise --max-tokens or --max-patches, or look at the rows with rlvlm data check."
            )
        report["bins"] = save_bins(bins, out / "bins")
    if step in ("shards", "all"):
        shards = ShardTask(task, str(out / "lengths"), str(out / "bins"), str(out / "shards"), arguments.seed)
        manifest = write_shards(shards, bins_per_shard=arguments.bins_per_shard, workers=arguments.workers)
        report["shards"] = {name: value for name, value in manifest.items() if name != "shards"}
    print(json.dumps(report, indent=1))
    return 0


# ---------------------------------------------------------------------- balance


def _add_balance(verbs: Any) -> None:
    parser = verbs.add_parser("balance", help="choose pictures so that rare concepts are not drowned by frequent ones")
    parser.add_argument(
        "--vocabulary", required=True, help=".txt or .jsonl of concepts, names in other languages beside them"
    )
    parser.add_argument("--out", required=True, help="folder for picked.parquet, concepts.parquet, report.html, …")
    parser.add_argument("--count", type=int, required=True, help="rows to draw")
    parser.add_argument("--top-k", type=int, default=5, help="nearest concepts of each picture")
    parser.add_argument("--replace", action="store_true", help="a row may be drawn several times")
    parser.add_argument("--power", type=float, default=1.0, help="1 balances, 0 leaves the data as it is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faiss", action="store_true", help="search by a flat faiss index")
    given = parser.add_argument_group("embeddings that are there")
    given.add_argument(
        "--pictures", help=".npy [N, D], or parquet with a column of lists; a folder or pattern joins its files by name"
    )
    given.add_argument("--names", help=".npy [T, D] of the vocabulary's names, in its order")
    given.add_argument("--column", default="embedding", help="that column of a parquet file")
    made = parser.add_argument_group("or embeddings to be made")
    made.add_argument("--clip", help="folder of a CLIP-style model")
    made.add_argument("--source", help="data file, folder, pattern or registered source with the pictures")
    made.add_argument("--text-template", default="{}", help="what concept names are put into, such as 'a photo of {}'")
    made.add_argument("--batch", type=int, default=64)
    made.add_argument("--device", default="cpu")
    made.add_argument("--image-folder")
    made.add_argument("--allow-outside", action="store_true")
    made.add_argument("--on-bad-row", choices=("stop", "skip"), default="stop")
    parser.set_defaults(run=_balance)


def _balance(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from rlvlm.data.concept_balance import BalanceSettings, balance, nearest_concepts, read_vocabulary

    vocabulary = read_vocabulary(arguments.vocabulary)
    settings = BalanceSettings(arguments.count, arguments.replace, arguments.power, arguments.seed)
    pictures, names = _embeddings(arguments, vocabulary.texts)
    settings.check_rows(len(pictures))
    out = Path(arguments.out)
    near = nearest_concepts(pictures, names, vocabulary, arguments.top_k, out / "nearest", faiss=arguments.faiss)
    print(json.dumps(balance(near, vocabulary, settings, out), indent=1))
    return 0


def _embeddings(arguments: argparse.Namespace, texts: list[str]) -> tuple[Any, Any]:
    from pathlib import Path

    from rlvlm.data.concept_balance import ClipModel, embed_pictures, embed_texts, read_embeddings
    from rlvlm.data.config import DataConfig
    from rlvlm.data.workers import SourceTask
    from rlvlm.errors import ConfigError

    if arguments.pictures and arguments.names:
        return read_embeddings(arguments.pictures, arguments.column), read_embeddings(arguments.names, arguments.column)
    if not (arguments.clip and (arguments.source or arguments.pictures)):
        raise ConfigError("balance takes --pictures and --names, or --clip and --source to make them.")
    model = ClipModel(arguments.clip, arguments.device)
    names = embed_texts(model, texts, arguments.text_template)
    if arguments.pictures:
        return read_embeddings(arguments.pictures, arguments.column), names
    config = DataConfig(
        train=arguments.source,
        image_folder=arguments.image_folder,
        allow_outside=arguments.allow_outside,
        on_bad_row=arguments.on_bad_row,
    )
    folder = Path(arguments.out) / "embeddings"
    return embed_pictures(SourceTask(config), model, folder, batch=arguments.batch), names


# ---------------------------------------------------------------------- select


def _add_select(verbs: Any) -> None:
    parser = verbs.add_parser(
        "select", help="choose prompts by the model's own answers: those it can solve but mostly does not"
    )
    parser.add_argument("recipe", nargs="?", help="recipe whose model, data.train, rollout and reward are used")
    parser.add_argument("overrides", nargs="*", help="of the recipe, such as rollout.n=16 model.path=…")
    parser.add_argument("--scores", help="scores made elsewhere (.jsonl or .parquet) instead of a recipe")
    parser.add_argument("--out", required=True, help="folder for answers/, scores.parquet, picked.parquet, report.html")
    parser.add_argument("--stage", help="stage of the recipe whose settings count; the last one by default")
    parser.add_argument("--limit", type=int, help="only the first so many records")
    parser.add_argument("--shard", default="0/1", help="this process's share of the answers, as 0/4 … 3/4")
    rules = parser.add_argument_group("rules; all must hold")
    rules.add_argument("--k", type=int, help="of pass@k; by default the number of answers of each prompt")
    rules.add_argument(
        "--success", type=float, default=1.0, help="score of the accuracy rule from which an answer is right"
    )
    rules.add_argument(
        "--widest", action="store_true", help="of these, the --count with the widest gap of pass@k over pass@1"
    )
    rules.add_argument("--count", type=int, help="how many prompts --widest keeps")
    rules.add_argument("--min-pass-k", type=float, default=0.5)
    rules.add_argument("--max-pass-1", type=float, default=0.75)
    rules.add_argument("--keep-solved", action="store_true", help="keep prompts that are always answered right")
    rules.add_argument("--keep-hopeless", action="store_true", help="keep prompts that never are")
    rules.add_argument("--window", type=float, nargs=2, metavar=("LOW", "HIGH"), help="mean reward strictly between")
    rules.add_argument("--window-by", help="column that chooses the window, such as answer_type")
    rules.add_argument("--windows", default="{}", help='windows by its values, as JSON: {"bbox": [0.0, 0.6]}')
    parser.set_defaults(run=_select)


def _select(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from rlvlm.data.selection import SelectionRules, read_answers, read_scores, select
    from rlvlm.errors import ConfigError

    if arguments.widest != (arguments.count is not None):
        raise ConfigError(
            "--widest and --count go together: --widest --count 1000 keeps the 1000 prompts with the widest gap."
        )
    rules = SelectionRules(
        widest=arguments.count,
        k=arguments.k,
        min_pass_k=arguments.min_pass_k,
        max_pass_1=arguments.max_pass_1,
        drop_solved=not arguments.keep_solved,
        drop_hopeless=not arguments.keep_hopeless,
        window=tuple(arguments.window) if arguments.window else None,
        window_by=arguments.window_by,
        windows={name: _window(name, ends) for name, ends in _json_option(arguments, "windows").items()},
    )
    out = Path(arguments.out)
    if arguments.scores and arguments.recipe:
        raise ConfigError(f"select takes a recipe to answer with ('{arguments.recipe}') or --scores, not both.")
    if arguments.scores:
        answers = read_scores(arguments.scores, arguments.success)
    elif arguments.recipe:
        if not _answer(arguments, out / "answers"):
            print("this shard is answered; the last one to finish writes the selection.")
            return 0
        answers = read_answers(out / "answers")
    else:
        raise ConfigError("select takes a recipe to answer with, or --scores with scores made elsewhere.")
    print(json.dumps(select(answers, rules, out), indent=1))
    return 0


def _window(name: str, ends: Any) -> tuple[float, float]:
    from rlvlm.errors import ConfigError

    match ends:
        case [int() | float() as low, int() | float() as high]:
            return float(low), float(high)
    raise ConfigError(f"--windows has two numbers for a value, such as [0.0, 0.6], got {ends!r} for '{name}'.")


def _answer(arguments: argparse.Namespace, folder: Any) -> bool:
    from rlvlm.conf import load_recipe, resolve_stages
    from rlvlm.errors import ConfigError, nearest
    from rlvlm.pipelines.answers import answer_prompts

    stages = {stage.name: stage for stage in resolve_stages(load_recipe(arguments.recipe, arguments.overrides))}
    name = arguments.stage or list(stages)[-1]
    if name not in stages:
        raise ConfigError(f"the recipe has no stage '{name}'{nearest(name, stages)}.")
    number, _, shards = arguments.shard.partition("/")
    if not (number.isdigit() and shards.isdigit()):
        raise ConfigError(f"--shard is a number of how many, such as 0/4, got '{arguments.shard}'.")
    shard = (int(number), int(shards))
    return answer_prompts(stages[name], folder, success=arguments.success, shard=shard, limit=arguments.limit)
