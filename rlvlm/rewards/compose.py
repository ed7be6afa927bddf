"""From ``reward.rules`` to rules with weights: names, options, gates and the choice of a rule by a record's column."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvlm.errors import ConfigError, nearest
from rlvlm.ranges import above
from rlvlm.registry import Part
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.extras import check_installed
from rlvlm.rewards.options import check_options
from rlvlm.rewards.rule import REWARDS

PEER_STYLES = ("verl", "easyr1", "trl", "verl_batch", "areal", "openrlhf", "swift")
"""A node whose ``style`` is one of these names a reward function of another library by ``path`` and ``function``."""

_SETTINGS = ("weight", "name", "gate", "timeout", "by", "table", "default")
GATE_HOLDS = 0.5
"""A gate holds where the gating rule's score is at least this."""

ANSWER_TYPES: dict[str, str] = {
    "multiple-choice": "multiple_choice",
    "math-expressions": "math",
    "html-code": "html",
    "svg-code": "svg",
    "general-code": "code",
    "boolean": "bool",
    "ocrtext": "ocr",
    "any": "string",
}
"""Values of an ``answer_type`` column beside the rules' own names, and the rule that each picks (those of LLaVA-OneVision-1.5-RL)."""


@dataclass(frozen=True)
class Rule:
    """A part with its place in the composition.

    Attributes:
        label: the name its scores are kept under.
        node: the name and options that it was built from; with it a worker process builds the same rule.
        part: the built part; ``None`` where a column picks one of ``choices``.
        gate: the label of a rule whose score must be at least ``GATE_HOLDS``, else this one scores 0 without being run.
        in_process: never in the pool, since another process could not find the function.
        by: the record column that picks a rule, and ``choices``, the rule for each of its values; ``default`` for others.
    """

    label: str
    weight: float
    timeout: float
    node: dict[str, Any]
    part: Part | None
    gate: str | None = None
    in_process: bool = False
    by: str | None = None
    choices: dict[str, Rule] = field(default_factory=dict)
    default: Rule | None = None


def build_rules(config: RewardConfig) -> list[Rule]:
    """Builds every rule of a config, those that gate before those that they gate.

    Raises ``ConfigError`` for an unknown rule, option, gate or setting, or a weight that is no finite number.
    """
    if not config.rules:
        raise ConfigError("reward.rules is empty; name at least one rule, such as {math: 0.9, format: 0.1}.")
    rules = {str(label): _build(str(label), node, config) for label, node in config.rules.items()}
    for rule in rules.values():
        if rule.gate is not None and (rule.gate not in rules or rule.gate == rule.label):
            raise ConfigError(
                f"reward rule '{rule.label}' is gated by '{rule.gate}', which is no other rule of reward.rules{nearest(rule.gate, rules)}."
            )
    return _gates_first(rules)


def _gates_first(rules: Mapping[str, Rule]) -> list[Rule]:
    ordered: dict[str, Rule] = {}
    while len(ordered) < len(rules):
        ready = [
            rule
            for label, rule in rules.items()
            if label not in ordered and (rule.gate is None or rule.gate in ordered)
        ]
        if not ready:
            circle = ", ".join(label for label in rules if label not in ordered)
            raise ConfigError(f"reward rules {circle} gate each other in a circle; take one gate out.")
        ordered.update({rule.label: rule for rule in ready})
    return list(ordered.values())


def _build(label: str, node: Any, config: RewardConfig) -> Rule:
    if isinstance(node, (int, float)) and not isinstance(node, bool):
        node = {"weight": node}
    if not isinstance(node, Mapping):
        raise ConfigError(f"reward.rules.{label} is a weight or a mapping with 'weight' and options, got {node!r}.")
    settings = {key: node[key] for key in _SETTINGS if key in node}
    options = {str(key): value for key, value in node.items() if key not in _SETTINGS}
    weight, timeout, gate = settings.pop("weight", 1.0), settings.pop("timeout", None), settings.pop("gate", None)
    if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not math.isfinite(weight):
        raise ConfigError(f"the weight of reward.rules.{label} is a finite number, got {weight!r}.")
    limit = _seconds(label, timeout, config.timeout)
    if "by" in settings:
        return _choice(label, float(weight), limit, gate, settings, options, config)
    part, spec = build_part(settings, options, label)
    return Rule(label, float(weight), limit, spec, part, gate)


def _seconds(label: str, timeout: Any, otherwise: float) -> float:
    if timeout is None:
        return float(otherwise)
    if not above(0).holds(timeout):
        raise ConfigError(f"the timeout of reward.rules.{label} is a positive number of seconds, got {timeout!r}.")
    return float(timeout)


def build_part(settings: Mapping[str, Any], options: Mapping[str, Any], label: str) -> tuple[Part, dict[str, Any]]:
    """Builds one part and gives the node it can be built from again, in another process."""
    for key in ("table", "default"):
        if key in settings:
            raise ConfigError(f"reward.rules.{label} has '{key}' without 'by', the record column that picks a rule.")
    if options.get("style") in PEER_STYLES:
        from rlvlm.compat.rewards import load_reward  # peers' functions only where one is named

        return load_reward(label, options), {"name": label, "options": dict(options)}
    name = str(settings.get("name", label))
    if "style" in options and (name not in REWARDS.names() or "style" not in REWARDS.get(name).options):
        style = str(options["style"])
        raise ConfigError(
            f"the style of reward.rules.{label} is one of {', '.join(PEER_STYLES)}, got '{style}'{nearest(style, PEER_STYLES)}."
        )
    entry = REWARDS.get(name)
    check_installed(name, entry.traits["imports"])
    part = REWARDS.build({"name": name, **options})
    check_options(entry, options)
    return part, {"name": name, "options": dict(options)}


def _choice(
    label: str,
    weight: float,
    timeout: float,
    gate: str | None,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    config: RewardConfig,
) -> Rule:
    """A rule that a record's column picks: the table of the config, the known answer types, the rules' own names."""
    if options:
        raise ConfigError(
            f"reward.rules.{label} picks rules by column '{settings['by']}'; it takes no option '{next(iter(options))}' itself, "
            "so give that to a rule in 'table'."
        )
    table = settings.get("table") or {}
    if not isinstance(table, Mapping):
        raise ConfigError(f"reward.rules.{label}.table is a mapping of column values to rules, got {table!r}.")
    names = {**{name: name for name in REWARDS.names()}, **ANSWER_TYPES, **table}
    default = settings.get("default")
    choices: dict[str, Rule] = {}
    for value, node in names.items():
        if value in table or not _requires_options(str(node)):
            choices[str(value)] = _chosen(label, node, timeout)
    return Rule(
        label,
        weight,
        timeout,
        {},
        None,
        gate,
        by=str(settings["by"]),
        choices=choices,
        default=None if default is None else _chosen(label, default, timeout),
    )


def _requires_options(name: str) -> bool:
    options = REWARDS.get(name).options.values()
    return any(option.default is option.REQUIRED for option in options)


def _chosen(label: str, node: Any, timeout: float) -> Rule:
    if isinstance(node, str):
        node = {"name": node}
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
        raise ConfigError(
            f"in reward.rules.{label}, a rule is a name or a mapping with 'name' and options, got {node!r}."
        )
    options = {str(key): value for key, value in node.items() if key not in ("name", "timeout")}
    part, spec = build_part({"name": node["name"]}, options, label)
    return Rule(label, 1.0, _seconds(label, node.get("timeout"), timeout), spec, part)
