"""Recipes: their schema, how they are composed, and how they are checked."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Recipe": "rlvlm.conf.schema",
        "RecipeError": "rlvlm.conf.problems",
        "load_recipe": "rlvlm.conf.recipes",
        "resolve_stages": "rlvlm.conf.stages",
        "check_recipe": "rlvlm.conf.check",
    },
)
