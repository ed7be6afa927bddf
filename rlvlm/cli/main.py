"""``rlvlm <verb> …``: sets what must be set before torch is imported, then loads the verb that is named."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

import rlvlm
from rlvlm.errors import ConfigError, RlvlmError, nearest

VERBS: dict[str, tuple[str, str]] = {
    "train": ("rlvlm.cli.train", "run a recipe, with overrides: rlvlm train quickstart actor.epochs=2"),
    "check": ("rlvlm.cli.check", "find everything wrong with a recipe without loading a model"),
    "recipes": ("rlvlm.cli.recipes", "list the recipes"),
    "parts": ("rlvlm.cli.parts", "list the parts of each kind, their options and what they read"),
    "report": ("rlvlm.cli.report", "make report.html again from a run directory"),
    "score": ("rlvlm.cli.score", "score completions in a file with reward rules"),
    "rewards": ("rlvlm.cli.rewards", "list the reward rules with examples"),
    "data": ("rlvlm.cli.data", "look at, select, balance and pack data"),
}

USAGE_ERROR, FAILURE, INTERRUPTED, TERMINATED = 2, 1, 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit code: 0 done, 1 it failed, 2 it was asked for wrongly."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return answer(given)
        finally:
            sys.stdout.flush()  # here, and not while Python shuts down, a reader that has gone is noticed
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has nothing to be closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def answer(given: list[str]) -> int:
    """The exit code of one verb with its arguments, its errors told on standard error."""
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if given[0] in ("-V", "--version", "version"):
        print(f"rlvlm {rlvlm.__version__}")
        return 0
    prepare_environment()
    try:
        return run_verb(given[0], given[1:])
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        ending = _ending_behind(error)
        if isinstance(ending, KeyboardInterrupt):
            print(f"\nrlvlm {given[0]}: interrupted.", file=sys.stderr)
            return INTERRUPTED
        if isinstance(ending, SystemExit) and ending.code == TERMINATED:
            print(f"\nrlvlm {given[0]}: terminated.", file=sys.stderr)
            raise SystemExit(TERMINATED) from None
        if isinstance(error, RlvlmError):
            print(f"rlvlm {given[0]}: {error}", file=sys.stderr)
            return USAGE_ERROR if isinstance(error, ConfigError) else FAILURE
        raise


def _ending_behind(error: BaseException) -> BaseException | None:
    """The interrupt that an error came from: a library that is interrupted may fail while it cleans up, and hide it."""
    while error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return error


def run_verb(verb: str, argv: list[str]) -> int:
    """Loads a verb and runs it; raises ``ConfigError`` for an unknown one."""
    if verb not in VERBS:
        raise ConfigError(f"there is no verb '{verb}'{nearest(verb, VERBS)}.")
    code: int = importlib.import_module(VERBS[verb][0]).main(argv)
    return code


def usage() -> str:
    """The help text."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {summary}" for verb, (_, summary) in VERBS.items()]
    return "\n".join(
        [
            "rlvlm: reinforcement learning for vision-language models",
            "",
            "rlvlm <verb> …",
            "",
            *lines,
            "",
            "rlvlm <verb> --help says more; rlvlm --version prints the version.",
        ]
    )


def prepare_environment() -> None:
    """Settings that are read once, when torch or a tokenizer is loaded; a value that is set already stays.

    Threads that wait for work by spinning cost a multiple of the time on a machine that does anything else, so they
    are told to sleep. Several processes of one launch share the cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # a bar for each file of weights, amid our own progress


if __name__ == "__main__":
    sys.exit(main())
