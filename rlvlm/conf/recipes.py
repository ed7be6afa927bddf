"""Recipes by name or path: where they lie, and how one is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import rlvlm
from rlvlm.conf.loader import HYDRA, RecipeLoader, make_search_path
from rlvlm.conf.problems import RecipeError
from rlvlm.conf.schema import Recipe
from rlvlm.conf.stages import layer_problems
from rlvlm.conf.tree import build, known_paths, missing_keys, suggest
from rlvlm.errors import ConfigError, nearest

_SUFFIXES = (".yaml", ".yml")


def recipes_folder() -> Path:
    """The folder of the library's recipes: inside the installed package, or at the top of a checkout."""
    package = Path(rlvlm.__file__).parent
    for folder in (package / "recipes", package.parent / "recipes"):
        if (folder / "quickstart.yaml").is_file():
            return folder
    raise ConfigError(f"the library's recipes are missing beside '{package}'; install rlvlm again.")


def recipe_names() -> list[str]:
    """Names of the library's recipes, sorted."""
    return sorted(path.stem for path in recipes_folder().glob("*.yaml"))


def find_recipe(name_or_path: str | Path, more: Iterable[Path] = ()) -> tuple[str, RecipeLoader]:
    """The config name of a recipe and the loader that finds it, and looks in the folders ``more`` too.

    A file may inherit from recipes in its own folder and from the library's. Raises ``ConfigError`` for an unknown
    name or a path where no file is.
    """
    text = str(name_or_path)
    folders = [recipes_folder(), *more]
    if "/" in text or text.endswith(_SUFFIXES):
        path = Path(text).expanduser().absolute()
        if not path.is_file():
            raise ConfigError(f"there is no recipe file '{text}'{_beside(path)}.")
        if path.suffix not in _SUFFIXES:
            raise ConfigError(f"recipe file '{text}' does not end in .yaml; rename it.")
        folders = [path.parent, *(folder for folder in folders if folder != path.parent)]
        return path.stem, RecipeLoader(make_search_path(folders))
    if text not in recipe_names():
        raise ConfigError(
            f"there is no recipe '{text}'{nearest(text, recipe_names())}; a file is given by its path, my.yaml."
        )
    return text, RecipeLoader(make_search_path(folders))


def load_recipe(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Composes a recipe from its file, the files that it inherits from, and overrides such as ``"actor.epochs=2"``.

    Raises ``RecipeError`` with one sentence for each wrong key or value, or ``ConfigError`` for a recipe that is not there.
    """
    name, loader = find_recipe(name_or_path)
    return to_recipe(loader.load_configuration(name, list(overrides), RunMode.RUN, from_shell=False))


def to_recipe(config: DictConfig) -> Recipe:
    """The typed recipe of a composed config, interpolations resolved; raises ``RecipeError``."""
    tree = to_tree(config)
    problems = tree_problems(tree)
    if problems:
        raise RecipeError(problems)
    recipe: Recipe = build(Recipe, tree, problems)
    if problems:
        raise RecipeError(problems)
    return recipe


def tree_problems(tree: Mapping[str, Any]) -> list[str]:
    """What is wrong with a composed tree: values that are still to be given, and what interpolations have become."""
    missing = [f"the key '{key}' has no value; set it in the recipe or with {key}=…." for key in missing_keys(tree)]
    return [*missing, *(f"{problem}." for problem in layer_problems(tree))]


def to_tree(config: DictConfig) -> dict[str, Any]:
    """The plain tree of a composed config, without hydra's node, interpolations resolved."""
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != HYDRA])
    try:
        tree = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException as error:
        raise RecipeError([_reword(error)]) from error
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _reword(error: OmegaConfBaseException) -> str:
    found = re.search(r"Interpolation key '(.+?)' not found", str(error))
    if found is not None:
        key = found.group(1)
        return f"the key '{error.full_key}' refers to '{key}', which does not exist{suggest(key, known_paths(Recipe))}."
    return f"the recipe can't be resolved: {' '.join(str(error).split())}."


def _beside(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" (nor a folder '{folder}')"
    return nearest(path.name, [file.name for file in folder.iterdir() if file.suffix in _SUFFIXES])
