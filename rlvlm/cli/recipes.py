"""``rlvlm recipes``: the library's recipes, each with the line that its file begins with."""

from __future__ import annotations

from collections.abc import Sequence

from rlvlm.conf.recipes import recipe_names, recipes_folder


def main(argv: Sequence[str]) -> int:
    """Runs the verb."""
    if argv:
        print("rlvlm recipes lists all recipes; it takes no arguments.")
        return 0 if argv[0] in ("-h", "--help") else 2
    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        first = (recipes_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
        print(f"{name:<{width}}  {first.lstrip('# ')}")
    return 0
