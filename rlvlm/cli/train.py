"""``rlvlm train <recipe> [key=value …]``: a hydra application whose config is the recipe."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import re
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
from rlvlm.cli.check import note_line
from rlvlm.conf.check import examine
from rlvlm.conf.loader import RecipeLoader
from rlvlm.conf.problems import RecipeError
from rlvlm.conf.recipes import find_recipe, recipe_names, to_recipe
from rlvlm.conf.schema import Recipe
from rlvlm.conf.stages import resolve_stages
from rlvlm.errors import ConfigError, RlvlmError, StorageError, nearest
from rlvlm.tracking.rundir import RunDir

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
    run = run_to_resume(options)
    if run is not None:
        options.overrides.append("hydra.run.dir='{}'".format(str(run.path).replace("'", "\\'")))
    show_log()
    hydra = Hydra(task_name=name, config_loader=loader)
    GlobalHydra.instance().initialize(hydra)
    try:
        with ending_on_sigterm():
            return dispatch(hydra, name, options, parser, name if run is None else recipe_of(run))
    finally:
        GlobalHydra.instance().clear()


def run_to_resume(options: argparse.Namespace) -> RunDir | None:
    """The run whose own ``config.yaml`` is given, which goes on in its directory; none where another directory is named."""
    elsewhere = [
        word
        for word in options.overrides
        if word.startswith(("run.dir=", "run.name=", "hydra.run.dir=", "hydra.sweep."))
    ]
    if elsewhere or options.multirun or not options.recipe.endswith(".yaml"):
        return None
    return RunDir.of_config(Path(options.recipe).expanduser())


def recipe_of(run: RunDir) -> str:
    """The name of the recipe that a run was started with."""
    with contextlib.suppress(OSError):
        found = re.match(r"# rlvlm train (\S+)", run.config.read_text(encoding="utf-8"))
        if found is not None:
            return Path(found[1]).stem
    return run.path.name


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


@dataclasses.dataclass
class Jobs:
    """What became of the jobs of one command: one, or a sweep's."""

    failures: list[str] = dataclasses.field(default_factory=list)
    running: bool = False

    @contextlib.contextmanager
    def making_directories(self) -> Iterator[None]:
        """Gives one sentence where a run's directory can't be made, which hydra does before a job runs."""
        try:
            yield
        except OSError as error:
            if self.running:
                raise
            reason = (error.strerror or str(error)).lower()
            raise StorageError(
                f"the run directory '{error.filename}' can't be made ({reason}); choose another folder with run.dir."
            ) from error


def dispatch(hydra: Hydra, name: str, options: argparse.Namespace, parser: argparse.ArgumentParser, recipe: str) -> int:
    """Shows the config, or runs the recipe once or many times; returns the exit code."""
    overrides = list(options.overrides)
    if options.help:
        hydra.app_help(config_name=name, args_parser=parser, args=options)
    elif options.cfg is not None:
        hydra.show_cfg(name, overrides, cfg_type=options.cfg, package=options.package, resolve=options.resolve)
    elif options.info is not None:
        hydra.show_info(options.info, config_name=name, overrides=overrides)
    else:
        jobs = Jobs()
        task = make_task(recipe, jobs, options)
        if not options.multirun:
            check_before_run(options, overrides)  # before hydra makes the run directory
        with jobs.making_directories():
            if options.multirun:
                hydra.multirun(name, task, [*overrides, "hydra.mode=MULTIRUN"])
            else:
                hydra.run(name, task, overrides)
        return 1 if jobs.failures else 0
    return 0


def make_task(name: str, jobs: Jobs, options: argparse.Namespace) -> Callable[[DictConfig], float | None]:
    """The function that hydra calls with the composed config of each job; it returns what a sweeper may maximise."""

    def task(config: DictConfig) -> float | None:
        job = HydraConfig.get()
        run_dir = Path(job.runtime.output_dir)
        if job.mode == RunMode.MULTIRUN:
            print(f"job {job.job.num}: {shlex.join(job.overrides.task)}")
        print(f"run directory: {run_dir}", file=sys.stderr)
        jobs.running = True
        try:
            recipe = to_recipe(config)
            if job.mode == RunMode.MULTIRUN:
                check_before_run(options, list(job.overrides.task))
            summary = run_recipe(name, recipe, run_dir, list(job.overrides.task))
        except RlvlmError as error:
            print(f"rlvlm train: {error}", file=sys.stderr)
            jobs.failures.append(str(error))
            return None
        except (KeyboardInterrupt, SystemExit):
            print(how_to_resume(run_dir), file=sys.stderr)
            raise
        finally:
            jobs.running = False
        print(closing_lines(summary, run_dir))
        after = summary.get("accuracy_after")
        return None if after is None else float(after)

    return task


def run_recipe(name: str, recipe: Recipe, run_dir: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Trains, and leaves a ``config.yaml`` with which the run goes on, or another repeats it; returns the summary."""
    from rlvlm.pipelines.run import train

    tree = dataclasses.asdict(recipe)
    command = shlex.join(["rlvlm", "train", name, *overrides])
    text = f"# {command}   (rlvlm {rlvlm.__version__})\ndefaults: [base, _self_]\n{OmegaConf.to_yaml(resuming(tree))}"
    return train(resolve_stages(recipe), run_dir, recipe=name, config=tree, config_text=text)


def resuming(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's tree without ``resume: never``: the file that a run leaves goes on with it, and does not begin it anew."""
    again = {**tree, "run": {**tree["run"], "resume": "auto"}}
    again["stages"] = [
        {**stage, "run": {**stage["run"], "resume": "auto"}} if "resume" in stage.get("run", {}) else stage
        for stage in tree["stages"]
    ]
    return again


def check_before_run(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Prints the notes of ``rlvlm check`` and raises ``RecipeError`` with all that it finds wrong."""
    more = [Path(options.config_dir).absolute()] if options.config_dir is not None else []
    _, found = examine(options.recipe, overrides, more)
    for note in found.notes:
        print(note_line(note), file=sys.stderr)
    if found.problems:
        raise RecipeError(found.problems)


def how_to_resume(run_dir: Path) -> str:
    """The command that goes on with a run, where there is anything to go on with."""
    run = RunDir(run_dir)
    if not run.config.exists():
        return "the run was ended before it began."
    return f"go on with: {shlex.join(['rlvlm', 'train', shown(run.config)])}"


def closing_lines(summary: Mapping[str, Any], run_dir: Path) -> str:
    """What a person wants to know at the end: the accuracies before and after, and where model and report are."""
    lines = []
    if summary.get("already_finished"):
        lines.append(
            f"this run is finished already, with {summary.get('steps', 0)} steps: nothing was done; a larger run.steps makes it "
            "longer, run.resume=never begins it anew"
        )
    stages = {name: told for name, told in summary.get("details", {}).items() if "accuracy_after" in told}
    for stage, told in stages.items():
        of_stage = f"{stage}: " if len(stages) > 1 else ""
        lines += [f"{of_stage}{line}" for line in _changes(told)]
    run = RunDir(run_dir)
    return "\n".join(
        [
            *lines,
            f"training took {summary.get('train_seconds', 0.0):.1f} s",
            f"model: {shown(run.policy)}",
            f"report: {shown(run.report)}",
        ]
    )


def shown(path: Path) -> str:
    """A path as a command of this shell can take it: relative where it lies below the current folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _changes(numbers: Mapping[str, Any]) -> Iterator[str]:
    for label, key in (("sampled accuracy", "accuracy"), ("greedy accuracy", "greedy")):
        before, after = numbers.get(f"{key}_before"), numbers.get(f"{key}_after")
        if after is None and f"{key}_after" in numbers:
            yield f"{label}: none, for no held-out answer could be scored"
        elif after is not None:
            yield f"{label}: {before:.1%} → {after:.1%}" if before is not None else f"{label}: {after:.1%}"


def _with_folder(recipe: str, folder: Path) -> tuple[str, RecipeLoader]:
    if not folder.is_dir():
        raise ConfigError(f"--config-dir '{folder}' is no folder.")
    return find_recipe(recipe, [folder.absolute()])


def _refuse(message: str) -> None:
    raise ConfigError(f"{message}.")
