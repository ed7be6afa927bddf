"""``rlvlm check``: everything that can be found wrong with a recipe without loading a model, all of it at once."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvlm.conf import places
from rlvlm.conf.idle import idle_settings
from rlvlm.conf.loader import RecipeLoader
from rlvlm.conf.recipes import find_recipe, to_tree, tree_problems
from rlvlm.conf.schema import Recipe
from rlvlm.conf.stages import build_stages
from rlvlm.conf.tree import build, strip_unknown
from rlvlm.data.config import SourceConfig
from rlvlm.errors import RlvlmError, nearest
from rlvlm.pipelines.config import Stage
from rlvlm.registry import Registry, load_plugins
from rlvlm.rewards.config import RewardConfig
from rlvlm.tracking.rundir import RunDir

if TYPE_CHECKING:
    from rlvlm.data.sources import Source


@dataclass
class Findings:
    """What a check found.

    Attributes:
        problems: what stops a run.
        notes: what a person should know: what could not be looked at, and settings that the data leaves without effect.
        changes: what presets changed of the recipe's algorithm.
        absent: those of the problems that say that something is not on this machine.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def miss(self, problem: str) -> None:
        """Adds the problem that something is not on this machine."""
        self.problems.append(problem)
        self.absent.append(problem)

    def attempt(self, work: Callable[..., Any], *given: Any) -> Any:
        """Calls ``work``; an error of ours becomes a problem and the result ``None``."""
        try:
            return work(*given)
        except RlvlmError as error:
            self.problems += error.problems
        return None

    def attempt_all(self, nodes: Iterable[Any], work: Callable[[Any], Any]) -> bool:
        """Calls ``work`` with each node and says whether none was a problem."""
        before = len(self.problems)
        for node in nodes:
            self.attempt(work, node)
        return len(self.problems) == before


def examine(
    name_or_path: str | Path, overrides: Iterable[str] = (), more: Iterable[Path] = ()
) -> tuple[Recipe | None, Findings]:
    """Composes a recipe and checks it: wrong keys and wrong parts come together, the ones do not hide the others.

    The recipe is what could be made of it, and ``None`` where nothing could. Raises ``ConfigError`` when it is not there.

    Args:
        more: folders beside the library's in which recipes are looked for.
    """
    overrides = list(overrides)
    name, loader = find_recipe(name_or_path, more)
    found = Findings()
    config = found.attempt(loader.compose_leniently, name, overrides)
    found.problems += loader.problems
    tree = found.attempt(to_tree, config) if config is not None else None
    if tree is None:
        return None, found
    recipe: Recipe = build(Recipe, strip_unknown(tree, Recipe), found.problems)
    found.problems += tree_problems(tree)
    parts = check_recipe(recipe)
    keys = {text.partition("=")[0].lstrip("+") for text in overrides}
    notes = list(parts.notes)
    for stage in build_stages(recipe, []):
        with contextlib.suppress(RlvlmError):  # sources that can't be read are told already
            notes += places.eval_not_moved(stage, keys)
    given = (
        [] if RunDir.of_config(Path(name_or_path)) is not None else loader.given(name)
    )  # a run's file holds every key
    problems = list(dict.fromkeys([*found.problems, *parts.problems, *idle_settings(recipe, given)]))
    changes = _preset_changes(name, loader, overrides, recipe) if loader.has_presets else []
    return recipe, Findings(problems, list(dict.fromkeys(notes)), changes, parts.absent)


def _preset_changes(name: str, loader: RecipeLoader, overrides: list[str], recipe: Recipe) -> list[str]:
    """What presets changed of each stage's algorithm; nothing where that can't be told, for what is wrong is told already."""
    from rlvlm.conf.presets import preset_changes
    from rlvlm.pipelines.stages import is_supervised

    ignored: list[str] = []
    try:
        tree = to_tree(loader.compose_leniently(name, overrides, presets=False))
        bare: Recipe = build(Recipe, strip_unknown(tree, Recipe), ignored)
        pairs = zip(build_stages(recipe, ignored), build_stages(bare, ignored), strict=True)
        trained = [pair for pair in pairs if not is_supervised(pair[0])]
        of_stage = {given.name: preset_changes(given.algorithm, without.algorithm) for given, without in trained}
    except RlvlmError:
        return []
    alike = len({tuple(changes) for changes in of_stage.values()}) < 2
    lines = [line if alike else f"stage '{stage}': {line}" for stage, own in of_stage.items() for line in own]
    return list(dict.fromkeys(lines))


def check_recipe(recipe: Recipe) -> Findings:
    """Checks plug-ins, the parts of every stage with their options and needs, rewards against records, and engines."""
    found = Findings()
    found.attempt_all(recipe.plugins, lambda plugin: load_plugins([plugin]))
    _check_trackers(recipe, found)
    stages = build_stages(recipe, found.problems)
    of_stage = {stage.name: check_stage(stage, stages) for stage in stages}
    for name, own in of_stage.items():
        for problem in own.problems:
            everywhere = all(problem in other.problems for other in of_stage.values())
            told = problem if everywhere else f"stage '{name}': {problem}"
            (found.miss if problem in own.absent else found.problems.append)(told)
        found.notes += own.notes
    if all(stage.actor.optimizer.schedule == "constant" and stage.actor.optimizer.min_lr_ratio for stage in stages):
        found.notes.append("actor.optimizer.min_lr_ratio does nothing while actor.optimizer.schedule is constant.")
    problems, notes, absent = (list(dict.fromkeys(told)) for told in (found.problems, found.notes, found.absent))
    return Findings(problems, notes, absent=absent)


def check_stage(stage: Stage, stages: Iterable[Stage] = ()) -> Findings:
    """Checks one complete stage.

    Args:
        stages: all of the run.
    """
    from rlvlm.engines.train.optim import check_optimizer, check_rounding
    from rlvlm.pipelines.contradictions import contradictions
    from rlvlm.pipelines.stages import PIPELINES, is_supervised

    found = Findings()
    found.attempt(PIPELINES.build, stage.pipeline)
    supervised = is_supervised(stage)
    found.attempt(check_optimizer, stage.actor.optimizer)
    found.attempt(check_rounding, stage.actor.optimizer, ["float32" if stage.model.lora else stage.model.dtype])
    sampling = [one for one in stages if not is_supervised(one)]
    found.problems += contradictions(stage, supervised=supervised, shared_with=sampling)
    _check_model(stage, found)
    _check_engines(stage, found)
    if not supervised:
        _check_algorithm(stage, found)
    if not supervised or stage.reward.rules or stage.run.stop_at is not None or stage.run.eval_every:
        _check_rewards(stage, found)
    if not supervised:
        _check_reward_names(stage, found)
    _check_data(stage, found)
    return found


def _check_trackers(recipe: Recipe, found: Findings) -> None:
    from rlvlm.tracking.trackers import TRACKERS

    def check(node: Any) -> None:
        package = TRACKERS.build(node).traits["package"]
        if package is not None and importlib.util.find_spec(package) is None:
            found.problems.append(
                f"tracker '{package}' needs the package '{package}'; pip install 'rlvlm[trackers]', or take it out of run.trackers."
            )

    found.attempt_all(recipe.run.trackers, check)


def _check_model(stage: Stage, found: Findings) -> None:
    path, node = stage.model.path, stage.model.build
    if stage.init == "previous":
        return
    if (path is None) == (node is None):
        found.problems.append("a model is either loaded or built; give exactly one of model.path and model.build.")
    elif node is not None:
        from rlvlm.models.loading import BUILDERS

        found.attempt(BUILDERS.build, node)
    elif path is not None and (problem := places.model_problem(path)) is not None:
        (found.problems.append if Path(path).expanduser().exists() else found.miss)(problem)


def _check_engines(stage: Stage, found: Findings) -> None:
    from rlvlm.engines.inference.base import check_inference_engine
    from rlvlm.engines.train.base import TRAIN_ENGINES
    from rlvlm.roles.rollout import sampling_params

    found.attempt(TRAIN_ENGINES.build, stage.train_engine)
    params = found.attempt(sampling_params, stage.rollout, stage.run.seed)
    found.attempt(lambda: check_inference_engine(stage.inference_engine, params=params))


def _check_algorithm(stage: Stage, found: Findings) -> None:
    from rlvlm.algorithm import Algorithm
    from rlvlm.algos.registries import ADVANTAGES, AGGREGATIONS, CORRECTIONS, FILTERS, POLICY_LOSSES, REGULARIZERS
    from rlvlm.algos.weighted import build_kl_in_reward, build_value_loss, build_weighted
    from rlvlm.pipelines.planner import plan_passes

    config = stage.algorithm
    named: list[tuple[Registry, Any]] = [
        (ADVANTAGES, config.advantage),
        (POLICY_LOSSES, config.policy_loss),
        (AGGREGATIONS, config.aggregation),
        *((CORRECTIONS, node) for node in _listed(config.correction)),
        *((FILTERS, node) for node in config.filters),
    ]
    sound = [
        found.attempt_all(named, lambda pair: pair[0].build(pair[1])),
        found.attempt_all(
            config.regularizers.items(),
            lambda item: build_weighted(REGULARIZERS, item[0], item[1], "algorithm.regularizers"),
        ),
        found.attempt_all([config.value_loss], build_value_loss),
        found.attempt_all([config.kl_in_reward], build_kl_in_reward),
    ]
    algorithm = found.attempt(Algorithm, config) if all(sound) else None
    if algorithm is not None:
        found.attempt(
            lambda: plan_passes(
                algorithm.needs,
                algorithm.reads_before_update,
                optimizer_steps=stage.actor.epochs * stage.actor.mini_batches,
                dropout_active=False,
            )
        )


def _check_rewards(stage: Stage, found: Findings) -> None:
    from rlvlm.rewards.compose import build_rules

    def alone(item: tuple[str, Any]) -> None:
        label, node = item
        if isinstance(node, Mapping):
            node = {
                key: value for key, value in node.items() if key != "gate"
            }  # gates are checked with all rules at hand
        build_rules(RewardConfig(rules={label: node}))

    if found.attempt_all(stage.reward.rules.items(), alone):
        found.attempt(build_rules, stage.reward)
    rule = stage.run.accuracy_rule
    if rule is not None and rule not in stage.reward.rules:
        found.problems.append(
            f"run.accuracy_rule is '{rule}', which is none of reward.rules{nearest(rule, stage.reward.rules)}."
        )


def _check_reward_names(stage: Stage, found: Findings) -> None:
    from rlvlm.pipelines.reward_names import check_reward_names
    from rlvlm.rewards.compose import build_rules

    try:
        rules = build_rules(stage.reward)
    except RlvlmError:
        return  # told already
    found.notes += found.attempt(check_reward_names, stage.algorithm, rules) or []


def _check_data(stage: Stage, found: Findings) -> None:
    from rlvlm.data.prompts import find_template

    found.attempt(find_template, stage.data.template)
    if stage.data.train is None:
        found.problems.append("data.train is empty; name a file, a source or a list of them.")
    for missing in found.attempt(lambda: list(places.folder_problems(stage))) or []:
        found.miss(missing)
    for split in ("train", "eval"):
        _check_records(stage, split, found)
    found.notes += found.attempt(lambda: list(places.left_behind(stage))) or []


def _check_records(stage: Stage, split: str, found: Findings) -> None:
    """Opens each source and reads its first record: its format, its columns, and what the reward rules read of them."""
    from rlvlm.data.config import read_sources
    from rlvlm.data.loader import as_prompt
    from rlvlm.data.sources import open_source
    from rlvlm.rewards.samples import check_columns

    for source in found.attempt(read_sources, getattr(stage.data, split), f"data.{split}") or []:
        gone = source.path is not None and not places.is_there(source.path)
        unnamed = (
            gone and source.name is None and places.is_hub_name(source.path or "")
        )  # owner/name: a hub's, without its split
        if not unnamed and not _check_source(source, f"data.{split}", found):
            continue
        if gone:
            told, only_note = places.data_problem(str(source.path), f"data.{split}")
            (found.notes.append if only_note else found.miss)(told)
            continue
        opened = found.attempt(open_source, source, stage.data, split, stage.run.seed)
        if opened is not None and not len(opened):
            found.problems.append(f"data.{split} '{opened.name}' has no records.")
        record = found.attempt(opened.__getitem__, 0) if opened else None
        if record is not None and stage.reward.rules and "samples" not in record:
            found.attempt(check_columns, record)
            prompt = found.attempt(as_prompt, record, source.template or stage.data.template, stage.data.system)
            if prompt is None:
                continue
            record = prompt[1]  # as the loader gives it out: a dialogue's last turn is its answer
            _check_reads(stage, record, f"data.{split} '{opened.name}'", found)
        if record is not None:
            found.notes += places.silent_settings(stage, source, _first(opened), f"data.{split} '{opened.name}'")


def _first(source: Source) -> list[Mapping[str, Any]]:
    """The first records of a source that can be read; those that can't are for ``rlvlm data check`` to tell."""
    records = []
    for index in range(min(len(source), places.LOOKED_AT)):
        with contextlib.suppress(RlvlmError):
            records.append(source[index])
    return [record for record in records if record is not None]


def _check_source(source: SourceConfig, key: str, found: Findings) -> bool:
    """Whether the source's name, its keys and its format are known; opens nothing."""
    from rlvlm.data.records import FORMATS
    from rlvlm.data.sources import SOURCES, container_of

    path = source.path or ""
    if source.name is None and Path(path.rpartition("@")[0] or path).is_dir():
        return True  # which source reads it shows when its files are opened
    name = source.name or found.attempt(container_of, path)
    entry = found.attempt(SOURCES.get, name) if name else None
    if entry is None:
        return False
    known = [item.name for item in dataclasses.fields(source) if item.name != "options"]
    wrong = [option for option in source.options if option not in entry.options]
    found.problems += [
        f"{key} has the key '{option}', which source '{name}' does not take{nearest(option, [*known, *entry.options])}."
        for option in wrong
    ]
    if wrong:
        return False
    built = found.attempt(SOURCES.build, {"name": name, **source.options}) is not None
    return built and (source.format is None or found.attempt(FORMATS.build, source.format) is not None)


def _check_reads(stage: Stage, record: Mapping[str, Any], where: str, found: Findings) -> None:
    from rlvlm.rewards.compose import build_rules
    from rlvlm.rewards.samples import known_names

    try:
        rules = build_rules(stage.reward)
    except RlvlmError:
        return  # told already
    there = {*known_names(), *record}
    for rule in rules:
        for name in rule.part.needs if rule.part is not None else ():
            if name not in there:
                found.problems.append(
                    f"reward rule '{rule.label}' reads '{name}', which the records of {where} do not have{nearest(name, there)}."
                )


def _listed(node: Any) -> list[Any]:
    if node is None:
        return []
    return list(node) if isinstance(node, list) else [node]
