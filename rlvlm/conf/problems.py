"""All that is wrong with a recipe, in one error."""

from __future__ import annotations

from collections.abc import Sequence

from rlvlm.errors import ConfigError


class RecipeError(ConfigError):
    """What is wrong with a recipe: one sentence for each problem, one to a line."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))
