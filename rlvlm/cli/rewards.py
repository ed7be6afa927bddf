"""``rlvlm rewards [name]``: the reward rules, their options and examples, and the styles of other libraries' functions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rlvlm.cli.parts import describe
from rlvlm.compat.styles import STYLES
from rlvlm.registry import Entry, Option, load_plugins
from rlvlm.rewards.rule import REWARDS

SHOWN_CHARS = 30


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the verb."""
    parser = argparse.ArgumentParser("rlvlm rewards", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", nargs="?", help="one rule, with all that is to say of it")
    parser.add_argument("--plugins", nargs="+", default=[], metavar="FILE", help="files with rewards of your own")
    arguments = parser.parse_args(argv)
    load_plugins(arguments.plugins)
    if arguments.name is not None:
        entry = REWARDS.get(arguments.name)
        print("\n".join([describe(entry), *example_lines(entry)]))
        return 0
    for name in REWARDS.names():
        entry = REWARDS.get(name)
        print(
            "\n".join(
                [
                    f"{name}: {entry.summary}",
                    *(f"    {line}" for line in (options_line(entry), *example_lines(entry))),
                    "",
                ]
            )
        )
    print("\n".join(style_lines()))
    return 0


def style_lines() -> list[str]:
    """Every style of a reward function of another library, with how it is called."""
    head = "reward functions of other libraries, by 'style', 'path' and 'function' (--reward mine=1,style=trl,path=theirs.py:name):"
    return [head, *(f"    {name}: {style.form}" for name, style in STYLES.items())]


def options_line(entry: Entry) -> str:
    """The options with their defaults, in one line."""
    listed = [
        f"{option.name} (required)" if option.default is Option.REQUIRED else f"{option.name}={_short(option.default)}"
        for option in entry.options.values()
    ]
    return "options: " + (", ".join(listed) or "none")


def _short(default: Any) -> str:
    text = repr(default)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def example_lines(entry: Entry) -> list[str]:
    """The example that the rule declared, as a call of ``score``."""
    example: Mapping[str, Any] | None = entry.traits["example"]
    return [] if example is None else ["example: " + example_call(entry.name, example)]


def example_call(name: str, example: Mapping[str, Any]) -> str:
    """An example as Python: ``score('number', '<answer>12</answer>', '12')``."""
    named = {**example.get("record", {}), **example.get("options", {})}
    arguments = [repr(name), repr(example["completion"])]
    if "answer" in example:
        arguments.append(repr(example["answer"]))
    return f"score({', '.join([*arguments, *(f'{key}={value!r}' for key, value in named.items())])})"
