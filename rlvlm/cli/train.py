"""``rlvlm train <recipe> [key=value …]``: a hydra application whose config is the recipe."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import rlvlm
from rlvlm.conf.check import check_recipe
from rlvlm.conf.loader import RecipeLoader
from rlvlm.conf.problems import RecipeError
from rlvlm.conf.recipes import find_recipe, recipe_names, to_recipe
from rlvlm.conf.schema import Recipe
from rlvlm.conf.stages import resolve_stages
from rlvlm.errors import ConfigError, RlvlmError, nearest
from rlvlm.tracking.report import write_report
from rlvlm.tracking.rundir import RunDir, read_summary, write_atomically, write_json

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def main(argv: Sequence[str]) -> int:
    """Runs the verb."""
    parser = make_parser()
    options = parse_arguments(parser, argv)
    if options.recipe is None:
        print(parser.format_help())
        return 0
    name, loader = find_recipe(options.recipe)
    if options.config_dir is not None:
        name, loader = _with_folder(options.recipe, Path(options.config_dir))
    show_log()
    hydra = Hydra(task_name=name, config_loader=loader)
    GlobalHydra.instance().initialize(hydra)
    try:
        with ending_on_sigterm():
            return dispatch(hydra, name, options, parser)
    finally:
        GlobalHydra.instance().clear()


def make_parser() -> argparse.ArgumentParser:
    """The flags of a hydra application that a recipe can be run with."""
    parser = argparse.ArgumentParser(
        "rlvlm train",
        usage="rlvlm train <recipe> [flags] [key=value …]",
        description="Runs a recipe, by name or path. Any key may be set: rlvlm train quickstart actor.epochs=2.",
        epilog=f"Recipes: {', '.join(recipe_names())}.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("overrides", nargs="*", help="key=value (set), +group=choice (add), ~key (take out)")
    parser.add_argument("-h", "--help", action="store_true", help="show the recipe, its config groups and this")
    parser.add_argument("-c", "--cfg", choices=["job", "hydra", "all"], help="print the composed config and stop")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: resolve interpolations")
    parser.add_argument("-p", "--package", help="with --cfg: print only this part, such as actor.optimizer")
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="run each combination of values: actor.epochs=1,2"
    )
    parser.add_argument(
        "-i", "--info", nargs="?", const="all", choices=INFO, help="show how the config is composed and stop"
    )
    parser.add_argument("-cd", "--config-dir", help="another folder to look for configs in")
    return parser


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Flags and overrides in any order; the first word that sets nothing is the recipe. Raises ``ConfigError``."""
    known = list(parser._option_string_actions)
    for word in argv:
        flag = word.partition("=")[0]
        if word.startswith("-") and flag not in known:
            raise ConfigError(f"there is no flag '{flag}'{nearest(flag, known)}.")
    parser.error = _refuse  # type: ignore[assignment]
    options = parser.parse_intermixed_args(argv)
    bare = [word for word in options.overrides if "=" not in word and not word.startswith("~")]
    if not bare and not options.help:
        raise ConfigError(f"a run needs a recipe: rlvlm train <recipe>{nearest('', recipe_names())}.")
    options.recipe = bare[0] if bare else None
    if bare:
        options.overrides.remove(bare[0])
    if options.resolve and options.cfg is None:
        raise ConfigError("--resolve goes with --cfg job, which prints the config; add that or leave it out.")
    return options


class Notices(logging.Handler):
    """Writes the library's log to standard error as it is now: while progress is shown, above the panel."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one message."""
        print(self.format(record), file=sys.stderr)


def show_log() -> None:
    """Shows what the library decides and leaves out, such as the planner's choice of a layout."""
    log = logging.getLogger("rlvlm")
    if not log.handlers:  # once, and not where an application around this one has set its own
        log.addHandler(Notices())
        log.setLevel(logging.INFO)
        log.propagate = False


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM, which schedulers send, end the run as an exception does: trackers are closed, the summary says why."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def dispatch(hydra: Hydra, name: str, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Shows the config, or runs the recipe once or many times; returns the exit code."""
    overrides = list(options.overrides)
    if options.help:
        hydra.app_help(config_name=name, args_parser=parser, args=options)
    elif options.cfg is not None:
        hydra.show_cfg(name, overrides, cfg_type=options.cfg, package=options.package, resolve=options.resolve)
    elif options.info is not None:
        hydra.show_info(options.info, config_name=name, overrides=overrides)
    else:
        failures: list[str] = []
        task = make_task(name, failures)
        if options.multirun:
            hydra.multirun(name, task, [*overrides, "hydra.mode=MULTIRUN"])
        else:
            config = hydra.config_loader.load_configuration(name, overrides, RunMode.RUN)
            refuse_problems(to_recipe(config))  # before hydra makes the run directory
            hydra.run(name, task, overrides)
        return 1 if failures else 0
    return 0


def make_task(name: str, failures: list[str]) -> Callable[[DictConfig], float | None]:
    """The function that hydra calls with the composed config of each job; it returns what a sweeper may maximise."""

    def task(config: DictConfig) -> float | None:
        job = HydraConfig.get()
        run_dir = Path(job.runtime.output_dir)
        if job.mode == RunMode.MULTIRUN:
            print(f"job {job.job.num}: {shlex.join(job.overrides.task)}")
        print(f"run directory: {run_dir}", file=sys.stderr)
        try:
            recipe = to_recipe(config)
            refuse_problems(recipe)
            summary = run_recipe(name, recipe, run_dir, list(job.overrides.task))
        except RlvlmError as error:
            print(f"rlvlm train: {error}", file=sys.stderr)
            failures.append(str(error))
            mark_stopped(run_dir, str(error))
            return None
        except BaseException as error:  # an interrupt, a scheduler's signal, or a fault that deserves its traceback
            plain = {KeyboardInterrupt: "interrupted", SystemExit: "terminated"}
            mark_stopped(run_dir, plain.get(type(error), f"{type(error).__name__}: {error}"))
            raise
        print(closing_lines(summary, run_dir))
        after = summary.get("accuracy_after")
        return None if after is None else float(after)

    return task


def run_recipe(name: str, recipe: Recipe, run_dir: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Writes ``config.yaml``, which is itself a recipe that repeats the run, and trains; returns the summary."""
    from rlvlm.pipelines.run import train

    tree = dataclasses.asdict(recipe)
    run = RunDir.create(run_dir)
    command = shlex.join(["rlvlm", "train", name, *overrides])
    write_atomically(run.config, f"# {command}   (rlvlm {rlvlm.__version__})\n{OmegaConf.to_yaml(tree)}")
    return train(resolve_stages(recipe), run.path, recipe=name, config=tree)


def refuse_problems(recipe: Recipe) -> None:
    """Raises ``RecipeError`` with everything that ``rlvlm check`` would find."""
    problems = check_recipe(recipe).problems
    if problems:
        raise RecipeError(problems)


def mark_stopped(run_dir: Path, reason: str) -> None:
    """Says in ``summary.json`` and in the report why a run ended early."""
    run = RunDir(run_dir)
    summary = read_summary(run)
    if summary or run.metrics.exists():
        write_json(run.summary, {**summary, "status": f"stopped: {reason}"})
        write_report(run)


def closing_lines(summary: Mapping[str, Any], run_dir: Path) -> str:
    """What a person wants to know at the end: the accuracies before and after, and where the report is."""
    lines = []
    for label, key in (("sampled accuracy", "accuracy"), ("greedy accuracy", "greedy")):
        before, after = summary.get(f"{key}_before"), summary.get(f"{key}_after")
        if after is not None:
            lines.append(f"{label}: {before:.1%} → {after:.1%}" if before is not None else f"{label}: {after:.1%}")
    return "\n".join(
        [*lines, f"training took {summary.get('train_seconds', 0.0):.1f} s", f"report: {run_dir / 'report.html'}"]
    )


def _with_folder(recipe: str, folder: Path) -> tuple[str, RecipeLoader]:
    if not folder.is_dir():
        raise ConfigError(f"--config-dir '{folder}' is no folder.")
    return find_recipe(recipe, [folder.absolute()])


def _refuse(message: str) -> None:
    raise ConfigError(f"{message}.")
