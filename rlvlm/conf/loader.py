"""Hydra's config loader with the two things that it lacks: parts merged by name, and all wrong keys reported at once.

Hydra finds files, works out defaults lists and groups, and reads overrides. Its merge would keep the options of a part
whose name has changed, and would stop at the first wrong key without a suggestion; so the layers that it loads are laid
over one another by :mod:`rlvlm.conf.merge`, and each is checked against the schema as it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf, flag_override, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from rlvlm.conf.merge import merge
from rlvlm.conf.overrides import STAGES, Setting, apply, as_layer, parse, to_setting
from rlvlm.conf.presets import FOLDER, lay_preset
from rlvlm.conf.problems import RecipeError
from rlvlm.conf.schema import Recipe, store_schema
from rlvlm.conf.stages import layer_problems, with_lists
from rlvlm.conf.tree import Tree, missing_keys, strip_unknown
from rlvlm.errors import ConfigError, nearest
from rlvlm.tracking.rundir import fresh_run_path

HYDRA = "hydra"


class RecipeLoader(ConfigLoaderImpl):
    """Composes recipes; raises ``RecipeError`` with every wrong key of every file and override."""

    def __init__(self, search_path: ConfigSearchPathImpl) -> None:
        super().__init__(search_path)
        self._layers: list[tuple[str, Tree]] = []
        self._settings: list[Setting] = []
        self._with_presets = True
        self.problems: list[str] = []

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """The composed config: the recipe's tree, and hydra's own node beside it."""
        config = self._load(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        if self.problems:
            raise RecipeError(self.problems)
        return config

    def compose_leniently(self, config_name: str, overrides: list[str], *, presets: bool = True) -> DictConfig:
        """What can be composed without the keys that are wrong; those are left in ``problems``.

        Args:
            presets: whether presets count; without them one sees what they change.
        """
        self._with_presets = presets
        try:
            return self._load(config_name, overrides, RunMode.RUN, from_shell=False, validate=True)
        finally:
            self._with_presets = True

    @property
    def has_presets(self) -> bool:
        """Whether what was composed last has a preset."""
        return any(path.startswith(FOLDER) for path, _ in self._layers)

    def given(self, name: str) -> list[tuple[str, Tree]]:
        """What was asked for itself, not inherited, with words for where: in the recipe's own file, its presets and overrides.

        A file whose stages are overridden is left out: its author could not know which of its keys they read.
        """
        presets = [layer for layer in self._layers if layer[0].startswith(FOLDER)]
        own = (
            [] if any(_is_of_stages(one) for one in self._settings) else [one for one in self._layers if one[0] == name]
        )
        settings = [setting for setting in self._settings if _is_plain(setting)]
        files = [(f"'{path}.yaml'", layer) for path, layer in [*own, *presets]]
        return [*files, *((f"override '{setting.text}'", as_layer(setting, {})) for setting in settings)]

    def _load(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode, from_shell: bool, validate: bool
    ) -> DictConfig:
        self._layers, self.problems = [], []
        parsed = [self._parse(text) for text in overrides]
        read = [override for override in parsed if override is not None and self._group_exists(override)]
        values = [override for override in read if self._is_value(override)]
        others = [str(override.input_line) for override in read if override not in values]
        config = self._compose(config_name, others, run_mode, from_shell, validate)
        if validate:
            self._check_sweeps(values, run_mode)
        settings = [to_setting(override) for override in values if not override.is_sweep_override()]
        self._settings = settings
        tree = self._apply(settings, self._tree())
        return _with_task(config, tree, values, read)

    def _parse(self, text: str) -> Override | None:
        try:
            return parse(text)
        except ConfigError as error:
            self.problems.append(str(error))
            return None

    def _is_value(self, override: Override) -> bool:
        """Whether an override sets a value of the recipe's tree; the others are hydra's to read: its own keys, and groups."""
        if override.is_hydra_override() or override.package is not None:
            return False
        whole_node = not override.is_sweep_override() and isinstance(override.value(), Mapping)  # model={path: …}
        return whole_node or not self.repository.group_exists(override.key_or_group)

    def _group_exists(self, override: Override) -> bool:
        """False, and a problem, for an override that can only be of a config group (``a/b``, ``a@b``) that there is not."""
        name = str(override.key_or_group)
        if self.repository.group_exists(name) or not ("/" in name or override.package is not None):
            return True
        parent = name.rpartition("/")[0]
        groups = [f"{parent}/{group}".lstrip("/") for group in self.list_groups(parent)]
        where = f"override '{override.input_line}' names the config group '{name}'"
        self.problems.append(f"{where}, which does not exist{nearest(name, groups)}.")
        return False

    def _compose(
        self, name: str | None, overrides: list[str], run_mode: RunMode, from_shell: bool, validate: bool
    ) -> DictConfig:
        try:
            return super().load_configuration(name, overrides, run_mode, from_shell, validate)
        except RecursionError as error:
            raise RecipeError(
                [f"'{name}.yaml' inherits from itself, by its own defaults or round a circle of files."]
            ) from error
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            problems, self.problems = [*self.problems, self._reword(error)], []
            raise RecipeError(problems) from error

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        """Called by hydra for each layer, in order; keeps it, and takes out what the schema does not know."""
        result = super()._load_single_config(default, repo)
        if str(default.config_path).startswith(f"{HYDRA}/"):
            return result
        layer = OmegaConf.to_container(result.config, resolve=False)
        assert isinstance(layer, dict)
        own = with_lists({str(key): value for key, value in layer.items() if key not in (HYDRA, "defaults")})
        where = f"'{default.config_path}.yaml'"
        self.problems += [f"in {where}, {problem}." for problem in layer_problems(own)]
        self._layers.append((str(default.config_path), strip_unknown(own, Recipe)))
        result.config = OmegaConf.create({key: value for key, value in layer.items() if key == HYDRA})
        return result

    def _tree(self) -> Tree:
        tree: Tree = {}
        for path, layer in self._layers:
            if not path.startswith(FOLDER):
                tree = merge(tree, layer)
            elif self._with_presets:
                tree = lay_preset(tree, layer)
        return tree

    def _apply(self, settings: list[Setting], tree: Tree) -> Tree:
        for setting in settings:
            try:
                layer = with_lists(as_layer(setting, tree))
                problems = [] if setting.delete else layer_problems(layer)
                self.problems += [f"in override '{setting.text}', {problem}." for problem in problems]
                tree = tree if problems else apply(setting, tree, layer)
            except ConfigError as error:
                self.problems.append(str(error))
        self.problems += _without_effect(settings, tree)
        return tree

    def _check_sweeps(self, values: list[Override], run_mode: RunMode) -> None:
        if run_mode == RunMode.MULTIRUN:
            return
        for override in values:
            if override.is_sweep_override():
                key = override.get_key_element()
                self.problems.append(
                    f"override '{override.input_line}' gives several values; write {key}=[…] for a list, quote the value "
                    f"for text, or add --multirun to run each."
                )

    def _reword(self, error: Exception) -> str:
        """One sentence of ours for an error of hydra's, of OmegaConf's or of the YAML reader's."""
        cause = error.__cause__ if isinstance(error, HydraException) and error.__cause__ is not None else error
        text = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
        if isinstance(error, MissingConfigException) and error.missing_cfg_file:
            group, _, name = str(error.missing_cfg_file).rpartition("/")
            what = f"config group '{group}' has no choice" if group else "there is no config called"
            return f"{what} '{name}'{nearest(name, self.get_group_options(group))}."
        if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and OmegaConf.is_dict(cause.parent_node):
            parent = str(cause.full_key).rpartition(".")[0]
            there = [f"{parent}.{name}".lstrip(".") for name in cause.parent_node]
            return f"the key '{cause.full_key}' does not exist{nearest(str(cause.full_key), there)}."
        if "No match in the defaults list" in text:
            group = text.split("'")[1]
            return f"this recipe makes no choice of '{group}' that could be changed; add one with +{group}=…."
        if isinstance(cause, YAMLError):
            return f"a recipe file is no valid YAML: {text}."
        return f"the recipe can't be composed: {text}."


def make_search_path(folders: list[Path]) -> ConfigSearchPathImpl:
    """Where configs are looked for: the given folders, then the library's own groups, then the schema."""
    setup_globals()
    if not isinstance(version.getbase(), version.Version):  # unset: this process is no hydra app of the user's own
        version.setbase("1.3")
    store_schema()
    search_path = ConfigSearchPathImpl()
    search_path.append(HYDRA, "pkg://hydra.conf")
    for index, folder in enumerate(folders):
        search_path.append("main" if index == 0 else "recipes", f"file://{folder}")
    search_path.append("rlvlm", "pkg://rlvlm.conf")
    search_path.append("schema", "structured://")
    for plugin in Plugins.instance().discover(SearchPathPlugin):  # hydra's own plug-ins, such as an installed launcher
        cast(SearchPathPlugin, plugin()).manipulate_search_path(search_path)
    return search_path


def _with_task(config: DictConfig, tree: Tree, values: list[Override], all_read: list[Override]) -> DictConfig:
    """Hydra's config with the tree as its task part, typed by the schema, and with all overrides on record."""
    typed = OmegaConf.structured(Recipe)
    try:
        typed.merge_with(tree)
    except OmegaConfBaseException as error:
        raise RecipeError([f"the recipe can't be composed: {' '.join(str(error).split())}."]) from error
    with open_dict(config), flag_override(config, "no_deepcopy_set_nodes", True):
        config.merge_with(typed)
        for key in missing_keys(tree):  # a merge passes over what is still to be given
            OmegaConf.update(config, key, MISSING)
        config.hydra.overrides.task.extend([str(override.input_line) for override in values])
        job = config.hydra.job
        job.override_dirname = get_overrides_dirname(
            overrides=[override for override in all_read if not override.is_hydra_override()],
            kv_sep=job.config.override_dirname.kv_sep,
            item_sep=job.config.override_dirname.item_sep,
            exclude_keys=job.config.override_dirname.exclude_keys,
        )
    OmegaConf.set_struct(config, True)
    return config


def _without_effect(settings: list[Setting], tree: Tree) -> list[str]:
    """Settings that every stage sets otherwise itself, so that nothing would come of them."""
    stages = [stage for stage in tree.get("stages") or [] if isinstance(stage, Mapping)]
    problems = []
    for setting in settings:
        path = setting.key.split(".")
        if stages and path[0] != "stages" and all(_sets(stage, path) for stage in stages):
            problems.append(
                f"override '{setting.text}' has no effect, since each stage sets {setting.key} itself; write stages.<name>.{setting.key}=…."
            )
    return problems


def _is_plain(setting: Setting) -> bool:
    """Whether a setting gives a value to a key of the whole recipe."""
    return not setting.delete and setting.value is not None and not setting.key.startswith(STAGES)


def _is_of_stages(setting: Setting) -> bool:
    """Whether a setting may change what the stages of a recipe read."""
    return setting.key.startswith((STAGES, "run.eval_every", "run.stop_at", "reward"))


def _sets(stage: Any, path: list[str]) -> bool:
    for name in path:
        if not isinstance(stage, Mapping) or name not in stage:
            return False
        stage = stage[name]
    return not isinstance(stage, Mapping)


def _run_path(folder: str, name: str | None, recipe: str) -> str:
    """The directory of a run: of its name if it has one, else a fresh one, made at once so that no other run takes it."""
    if name:
        return str(Path(folder) / name)
    while True:
        path = fresh_run_path(Path(folder).expanduser(), recipe)
        try:
            path.mkdir(parents=True)
        except FileExistsError:  # another run took it between the look and the making
            continue
        except OSError:  # whoever writes there next says so; OmegaConf would hide the kind of an error of this function
            pass
        return str(path)


OmegaConf.register_new_resolver("rlvlm_run_path", _run_path, use_cache=True, replace=True)
