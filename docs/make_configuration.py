"""Writes the table of keys in ``docs/configuration.md`` from the dataclasses and their docstrings.

``python docs/make_configuration.py`` writes it, ``--check`` says whether it is up to date (exit code 1 when not).
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvlm.conf.schema import Recipe
from rlvlm.conf.tree import annotations_of, nested
from rlvlm.engines.train.config import OptimizerGroup
from rlvlm.pipelines.config import Stage

PAGE = Path(__file__).with_name("configuration.md")
START, END = "<!-- keys: made by make_configuration.py -->", "<!-- end of keys -->"
ELSEWHERE = {"actor.optimizer.groups.<group>.": OptimizerGroup}
"""Settings that a mapping holds, and so stand in no dataclass of the tree."""


def meanings(cls: type) -> dict[str, str]:
    """What each field means: from the ``Attributes:`` of the class docstring, or from the string under the field."""
    told = {}
    doc = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.split(r"\n(?=\S)", textwrap.dedent(doc))
    for entry in entries:
        found = re.match(r"([\w, ]+):\s+(.*)", entry, re.DOTALL)
        if found is not None:
            told.update(dict.fromkeys(found[1].split(", "), " ".join(found[2].split())))
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            told[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return told


def rows(cls: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Key, default and meaning of every leaf."""
    told = meanings(cls)
    for field in dataclasses.fields(cls):
        annotation = annotations_of(cls)[field.name]
        below = nested(annotation)
        if below is not None:
            if field.default is None:
                yield f"{prefix}{field.name}", "null", told.get(field.name, "")
            yield from rows(below, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", spell(default_of(field)), told.get(field.name, "")


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default; every field of the tree has one."""
    return field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]


def spell(value: Any) -> str:
    """A value as YAML spells it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "[" + ", ".join(map(spell, value)) + "]"
    return f"{value:_}" if isinstance(value, int) and value >= 100_000 else str(value)


def table() -> str:
    """The whole table, in sections by the top of the key."""
    own = [name for name in annotations_of(Stage) if name not in annotations_of(Recipe)]
    of_stage = {f"stages[].{name}": (default, text) for name, default, text in rows(Stage) if name in own}
    lines = ["| key | default | meaning |", "|---|---|---|"]
    keys = [*rows(Recipe), *((key, *rest) for key, rest in of_stage.items())]
    for prefix, cls in ELSEWHERE.items():
        keys += [(prefix + name, default, text) for name, default, text in rows(cls)]
    for key, default, text in keys:
        escaped = text.replace("``None``", "``null``").replace("``", "`").replace("|", "\\|")
        escaped = re.sub(r":class:`~?([\w.]+)`", r"`\1`", escaped)
        lines.append(f"| `{key}` | `{default}` | {escaped} |")
    return "\n".join(lines)


def main() -> int:
    """Writes or checks the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    made = f"{before}{START}\n\n{table()}\n\n{END}{after}"
    if "--check" in sys.argv[1:]:
        if made != text:
            print(f"{PAGE.name} is not up to date; run python docs/make_configuration.py.", file=sys.stderr)
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
