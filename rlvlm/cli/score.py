"""``rlvlm score completions.jsonl --reward math=0.9 --reward format=0.1``: scores completions of a file."""

from __future__ import annotations

import argparse
import codecs
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlvlm.errors import ConfigError, DataError, nearest
from rlvlm.registry import load_plugins
from rlvlm.rewards.config import UNMARKED, RewardConfig
from rlvlm.rewards.printing import escaped
from rlvlm.rewards.runner import Result, Runner

SHOWN_ROWS = 20
SHOWN_ERRORS = 10
_GIVEN = ("response_length", "max_length", "truncated", "completion_ids", "prompt_ids")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the verb; gives 1 when more rewards failed than ``--max-error-rate`` allows, else 0."""
    arguments = _parser().parse_args(argv)
    load_plugins(arguments.plugins)
    config = RewardConfig(
        rules=parse_rules(arguments.reward),
        scale=arguments.scale,
        bias=arguments.bias,
        max_error_rate=arguments.max_error_rate,
        timeout=arguments.timeout,
        workers=arguments.workers,
        unmarked=arguments.unmarked,
        think_prefilled=arguments.think_prefilled,
    )
    runner = Runner(config)
    check_output(arguments.output)
    rows = list(read_rows(arguments.file, arguments.completion_column))
    if not rows:
        raise DataError(f"{arguments.file} holds no rows; give JSON lines with '{arguments.completion_column}'.")
    try:
        result = score_rows(runner, rows, arguments.completion_column, arguments.answer_column)
    finally:
        runner.close()
    print(_printable(report(rows, result, config, verbose=arguments.verbose)))  # first, since writing may fail
    if arguments.output:
        write_scores(arguments.output, rows, result, config)
    too_many = len(result.failures) > config.max_error_rate * len(rows)
    if too_many:
        print(
            f"{len(result.failures)} of {len(rows)} rewards failed, above --max-error-rate {config.max_error_rate:g}.",
            file=sys.stderr,
        )
    return int(too_many)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("rlvlm score", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "file", help="JSON lines with 'completion', 'answer' and any other columns that the rewards read; - reads stdin"
    )
    parser.add_argument(
        "--reward",
        action="append",
        required=True,
        metavar="NAME=WEIGHT[,OPTION=VALUE…]",
        help="a rule, such as math=0.9 or bbox=0.1,iou_threshold=0.5",
    )
    parser.add_argument("--output", help="write every row's score, parts and error to this file, as JSON lines")
    parser.add_argument("--completion-column", default="completion")
    parser.add_argument("--answer-column", default="answer")
    parser.add_argument("--plugins", nargs="+", default=[], metavar="FILE", help="files with rewards of your own")
    parser.add_argument("--scale", type=float, default=1.0, help="the reward is (score + bias) * scale")
    parser.add_argument("--bias", type=float, default=0.0)
    parser.add_argument(
        "--max-error-rate",
        type=float,
        default=RewardConfig.max_error_rate,
        help="share of rows that may fail (default %(default)s)",
    )
    parser.add_argument(
        "--timeout", type=float, default=RewardConfig.timeout, help="seconds for one completion (default %(default)s)"
    )
    parser.add_argument("--workers", type=int, help="processes; the number of cores by default")
    parser.add_argument(
        "--unmarked",
        choices=UNMARKED,
        default=RewardConfig.unmarked,
        help="what counts when nothing is marked (default %(default)s)",
    )
    parser.add_argument("--think-prefilled", action="store_true", help="the prompt ended with <think>")
    parser.add_argument("-v", "--verbose", action="store_true", help=f"show all rows, not only the first {SHOWN_ROWS}")
    return parser


def parse_rules(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Every ``--reward`` by its label; raises ``ConfigError`` for a label that comes twice."""
    rules: dict[str, dict[str, Any]] = {}
    for label, node in map(parse_rule, texts):
        if label in rules:
            raise ConfigError(
                f"--reward gives '{label}' twice; keep one, or give the other a label of its own: {label}_2=1,name={label}."
            )
        rules[label] = node
    return rules


def parse_rule(text: str) -> tuple[str, dict[str, Any]]:
    """``bbox=0.1,iou_threshold=0.5`` as label and node; values are YAML. Raises ``ConfigError`` for another form."""
    head, *pairs = split_outside_brackets(text)
    name, _, weight = head.partition("=")
    node: dict[str, Any] = {"weight": _value(weight, text) if weight else 1.0}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--reward {text!r}: an option is written option=value, got {pair!r}.")
        node[key.strip()] = _value(value, text)
    return name.strip(), node


def split_outside_brackets(text: str) -> list[str]:
    """The text split at commas outside of brackets, so that lists and mappings can be option values."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "[{(") - (char in ")}]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _value(text: str, whole: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--reward {whole!r}: {text!r} is no YAML value.") from error


def read_rows(file: str, completion_column: str) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file; raises ``DataError`` with the line that is no UTF-8, no JSON, or has no completion."""
    if file != "-" and (not Path(file).exists() or Path(file).is_dir()):
        raise DataError(f"there is no file '{file}'.")
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"{file} can't be read ({error.strerror}).") from error
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if line.strip():
            yield _row(f"{file}, line {number}", line, completion_column)


def _row(where: str, line: bytes, completion_column: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 ({error.reason}); save the file as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON ({error}).") from error
    if not isinstance(row, dict) or not isinstance(row.get(completion_column), str):
        has = nearest(completion_column, row) if isinstance(row, dict) else ""
        raise DataError(f"{where} has no text in '{completion_column}'{has}; name the column by --completion-column.")
    return row


def score_rows(runner: Runner, rows: Sequence[Mapping[str, Any]], completion_column: str, answer_column: str) -> Result:
    """Scores rows; of the names that rewards fill in, token numbers are taken from the file where it has them."""
    known = {name: [row.get(name) for row in rows] for name in _GIVEN if any(name in row for row in rows)}
    left_out = {completion_column, answer_column, *known}
    records = []
    for row in rows:
        record = {name: value for name, value in row.items() if name not in left_out}
        records.append({**record, "answer": row[answer_column]} if answer_column in row else record)
    return runner.score(runner.samples([row[completion_column] for row in rows], records, **known))


def report(rows: Sequence[Mapping[str, Any]], result: Result, config: RewardConfig, *, verbose: bool = False) -> str:
    """Scores of the rows, the failures, and a table by part."""
    labels = list(result.parts)
    lines = [_line("row", ["score", *labels])]
    shown = range(len(rows)) if verbose else range(min(len(rows), SHOWN_ROWS))
    lines += [
        _line(str(row), [_shown(result.scores[row]), *(_shown(result.parts[label][row]) for label in labels)])
        for row in shown
    ]
    if len(shown) < len(rows):
        lines.append(f"… {len(rows) - len(shown)} more rows (--verbose shows them, --output writes them)")
    lines += ["", *_errors(result), _line("part", ["weight", "mean", "std", "min", "max", "scored", "errors"])]
    weights = {
        label: node.get("weight", 1.0) if isinstance(node, Mapping) else node for label, node in config.rules.items()
    }
    for label in labels:
        own = sum(failure.rule == label for failure in result.failures.values())
        lines.append(_line(label, [f"{weights[label]:g}", *_statistics(result.parts[label]), str(own)]))
    lines.append(_line("score", ["", *_statistics(result.scores), str(len(result.failures))]))
    return "\n".join(lines)


def _errors(result: Result) -> list[str]:
    if not result.failures:
        return []
    lines = [f"row {row}: {failure.message}" for row, failure in sorted(result.failures.items())]
    more = [f"… {len(lines) - SHOWN_ERRORS} more errors"] if len(lines) > SHOWN_ERRORS else []
    return ["errors:", *lines[:SHOWN_ERRORS], *more, ""]


def _statistics(values: Sequence[float | None]) -> list[str]:
    known = [value for value in values if value is not None]
    if not known:
        return ["-", "-", "-", "-", "0"]
    spread = statistics.pstdev(known)
    return [*(f"{value:.4f}" for value in (statistics.fmean(known), spread, min(known), max(known))), str(len(known))]


def _line(head: str, cells: Sequence[str]) -> str:
    return f"{head:<18}" + "".join(f" {cell:>12}" for cell in cells)


def _shown(value: float | None) -> str:
    return "error" if value is None else f"{value:.4f}"


def check_output(path: str | None) -> None:
    """Raises ``ConfigError`` for a path that no file can be written to, before anything is scored for it."""
    if not path:
        return
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"--output '{path}' is a folder; name a file in it.")
    if not target.parent.is_dir():
        raise ConfigError(f"--output '{path}' lies in a folder that is not there; make '{target.parent}' first.")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise ConfigError(f"--output '{path}' may not be written; name another file.")


def _printable(text: str) -> str:
    """The text with control characters, and what the output can't show, such as lone surrogates, as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    return escaped(text, keep_lines=True).encode(encoding, "backslashreplace").decode(encoding)


def write_scores(path: str, rows: Sequence[Mapping[str, Any]], result: Result, config: RewardConfig) -> None:
    """Writes each row's reward, score, parts, details and error as JSON lines; raises ``DataError`` when it can't."""
    try:
        _write_scores(Path(path), rows, result, config)
    except OSError as error:
        raise DataError(f"the scores can't be written to '{path}' ({error.strerror}).") from error


def _write_scores(path: Path, rows: Sequence[Mapping[str, Any]], result: Result, config: RewardConfig) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(len(rows)):
            score, failure = result.scores[number], result.failures.get(number)
            line = {
                "row": number,
                "score": score,
                "reward": None if score is None else (score + config.bias) * config.scale,
                "parts": {label: values[number] for label, values in result.parts.items()},
                "details": {label: dict(found[number]) for label, found in result.details.items() if number in found},
                "error": None
                if failure is None
                else {"rule": failure.rule, "kind": failure.kind, "message": failure.message},
            }
            file.write(json.dumps(line, default=str) + "\n")
