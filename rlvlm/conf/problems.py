"""All that is wrong with a recipe, in one error."""

from __future__ import annotations

from rlvlm.errors import SettingsError


class RecipeError(SettingsError):
    """What is wrong with a recipe: one sentence for each problem, one to a line."""
