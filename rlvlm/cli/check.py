"""``rlvlm check <recipe> [key=value …]``: everything wrong with a recipe, one sentence each, without loading a model."""

from __future__ import annotations

from collections.abc import Sequence

from rlvlm.conf.check import examine
from rlvlm.conf.recipes import recipe_names
from rlvlm.conf.schema import Recipe
from rlvlm.conf.stages import resolve_stages
from rlvlm.errors import ConfigError, nearest


def main(argv: Sequence[str]) -> int:
    """Runs the verb: exit code 0 when nothing is wrong, 1 otherwise."""
    if not argv or argv[0] in ("-h", "--help"):
        print(f"rlvlm check <recipe> [key=value …]\n\nRecipes: {', '.join(recipe_names())}.")
        return 0
    if "=" in argv[0]:
        raise ConfigError(
            f"the recipe comes first: rlvlm check <recipe> {' '.join(argv)}{nearest('', recipe_names())}."
        )
    recipe, found = examine(argv[0], argv[1:])
    for problem in found.problems:
        print(f"error: {problem}")
    for change in found.changes:
        print(f"preset: {change}.")
    for note in found.notes:
        print(note_line(note))
    if found.problems or recipe is None:
        count = len(found.problems)
        print(f"{argv[0]}: {count} {'problem' if count == 1 else 'problems'}.")
        return 1
    print(f"{argv[0]}: nothing is wrong. {describe(recipe)}")
    return 0


def note_line(note: str) -> str:
    """A note as ``check`` and ``train`` print it."""
    return f"note: {note}"


def describe(recipe: Recipe) -> str:
    """The stages in a line."""
    spelled = []
    for stage in resolve_stages(recipe):
        what = f"{stage.run.steps} steps of {stage.pipeline}"
        if stage.pipeline == "rlvr":
            what += f", {_name(stage.algorithm.advantage)} with {_name(stage.algorithm.policy_loss)}"
        spelled.append(f"{stage.name} ({what})")
    return "It runs " + ", then ".join(spelled) + "."


def _name(node: object) -> str:
    return str(node["name"]) if isinstance(node, dict) else str(node)
