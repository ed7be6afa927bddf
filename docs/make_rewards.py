"""Writes the tables of ``docs/rewards.md`` from the registry and the docstrings of the rules; the text around them is kept.

python docs/make_rewards.py            # write them
python docs/make_rewards.py --check    # fail if they are not what would be written
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from rlvlm.registry import Entry, Option
from rlvlm.rewards.compose import ANSWER_TYPES
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.rule import DERIVED, INJECTED, REWARDS

PAGE = Path(__file__).with_name("rewards.md")


def main() -> int:
    """Writes the page, or tells whether it is as it would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    new = fill(old)
    if check and new != old:
        print(f"{PAGE} is not up to date; run python docs/make_rewards.py.", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    return 0


def fill(page: str) -> str:
    """The page with what stands between ``<!-- name -->`` and ``<!-- /name -->`` made anew."""
    made = {"rules": rules(), "options": options(), "names": names(), "settings": settings(), "types": types()}
    for name, lines in made.items():
        block = "\n".join([f"<!-- {name} -->", *lines, f"<!-- /{name} -->"])
        page, count = re.subn(
            rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, block=block: block, page, flags=re.DOTALL
        )  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} blocks called '{name}', expected one.")
    return page


def rules() -> list[str]:
    """A row for each rule."""
    lines = ["| rule | scores | range | reads | options | example |", "|---|---|---|---|---|---|"]
    for entry in REWARDS.own_entries():
        reads = ", ".join([*(f"`{one}`" for one in entry.needs), *(f"`{one}`?" for one in entry.optional)])
        listed = ", ".join(_option(option) for option in entry.options.values()) or "none"
        cells = [f"`{entry.name}`", _tidy(entry.summary), _range(entry.traits["range"]), reads, listed, _example(entry)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def options() -> list[str]:
    """What the docstrings say of every option."""
    lines = []
    for entry in REWARDS.own_entries():
        allowed = {name: bounds.expected for bounds in entry.traits["ranges"] for name in bounds.names}
        for group, meaning in _described(entry).items():
            bounds = "; ".join(dict.fromkeys(allowed[one] for one in group if one in allowed))
            told = f" ({bounds})" if bounds else ""
            lines.append(f"- `{entry.name}`: " + ", ".join(f"`{one}`" for one in group) + f"{told} — {meaning}")
    return lines


def names() -> list[str]:
    """The names that a rule may read beside the record's columns."""
    lines = ["| name | stands for |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in INJECTED.items()]
    return lines + [
        f"| `{name}` | {meaning} (the record's own column of this name comes first) |"
        for name, meaning in DERIVED.items()
    ]


def settings() -> list[str]:
    """The keys under ``reward``."""
    document = inspect.getdoc(RewardConfig) or ""
    lines = []
    for names, meaning in re.findall(
        r"^    ([\w, ]+): (.*?)(?=^    \w[\w, ]*: |\Z)", document.split("Attributes:")[1], re.MULTILINE | re.DOTALL
    ):
        keys = [name.strip() for name in names.split(",")]
        defaults = ", ".join(f"`{key}: {_value(getattr(RewardConfig, key, {}))}`" for key in keys)
        lines.append(f"- {defaults} — {_tidy(meaning)}")
    return lines


def types() -> list[str]:
    """The values of an ``answer_type`` column that are known beside the rules' names."""
    return ["| value | rule |", "|---|---|", *(f"| `{value}` | `{rule}` |" for value, rule in ANSWER_TYPES.items())]


def _option(option: Option) -> str:
    if option.default is Option.REQUIRED:
        return f"`{option.name}` (required)"
    text = _value(option.default)
    return f"`{option.name}: {text if len(text) <= 20 else '…'}`"


def _described(entry: Entry) -> dict[tuple[str, ...], str]:
    """Options with what ``Args:`` says of them; options that are described together stay together."""
    _, _, arguments = (inspect.getdoc(entry.target) or "").partition("\nArgs:\n")
    found = {}
    for item in re.split(r"\n(?=    \w)", arguments.split("\n\n")[0]):
        names, colon, meaning = item.partition(": ")
        group = tuple(name.strip() for name in names.split(","))
        if colon and all(name in entry.options for name in group):
            found[group] = _tidy(meaning)
    missing = set(entry.options) - {name for group in found for name in group}
    if missing:
        raise SystemExit(f"the docstring of reward '{entry.name}' says nothing of its options {sorted(missing)}.")
    return found


def _example(entry: Entry) -> str:
    example = entry.traits["example"]
    pairs = [_code(example["completion"])]
    if "answer" in example:
        pairs.append(f"gold {_code(json.dumps(example['answer'], ensure_ascii=False))}")
    for key, value in {**example.get("record", {}), **example.get("options", {})}.items():
        pairs.append(_code(f"{key}: {json.dumps(value, ensure_ascii=False)}"))
    return ", ".join(pairs)


def _code(text: str) -> str:
    """Text as code in a cell: a new line as \\n, and a longer fence where the text has back-quotes of its own."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return fence + space + text.replace("\n", "\\n") + space + fence


def _range(bounds: tuple[float, float]) -> str:
    return " … ".join("∞" if bound == math.inf else "-∞" if bound == -math.inf else f"{bound:g}" for bound in bounds)


def _value(value: Any) -> str:
    if value is None or isinstance(value, (bool, dict, list)):
        return json.dumps(value)
    return f"{value:.1f}" if isinstance(value, float) and value == int(value) else str(value)


def _tidy(text: str) -> str:
    return (
        re.sub(r"\s+", " ", text).strip().replace("``", "`").replace("`None`", "`null`").replace("`False`", "`false`")
    )


if __name__ == "__main__":
    sys.exit(main())
