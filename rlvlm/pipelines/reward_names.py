"""Whether the rewards that parts of an algorithm name are there: rules, and numbers that rules tell beside their scores."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos.registries import ADVANTAGES, FILTERS
from rlvlm.errors import RlvlmError, SettingsError, nearest
from rlvlm.registry import Entry, Part, Registry
from rlvlm.rewards.compose import Rule
from rlvlm.rewards.rule import REWARDS

_NUMBERS = ("float", "int", "bool", "list[float]")


def check_reward_names(config: AlgorithmConfig, rules: Sequence[Rule]) -> list[str]:
    """Checks every name of a reward that filters and the advantage give.

    A name that no rule has may still be a key of what a rule returns, where a rule does not declare those (``details=…``
    when it is registered): then it is not wrong, and what could not be looked at is returned, one sentence for each.

    Raises ``SettingsError`` with a sentence for each name that nothing gives, and for each part that can't be built.
    """
    labels = [rule.label for rule in rules]
    known, open_rules = _told_by(rules)
    problems: list[str] = []
    notes: list[str] = []
    for part, of in _named_by_filters(config, problems):
        if of in ("rewards", "scores", *labels, *known):
            continue
        wrong = f"filter '{part}' looks at '{of}', which no rule of reward.rules gives"
        if open_rules:
            notes.append(
                f"{wrong} as its score; whether {_listed(open_rules)} tells it beside the score shows when it runs, "
                "since it does not declare its 'details'."
            )
        else:
            problems.append(f"{wrong}{nearest(of, ['rewards', 'scores', *labels, *known])}.")
    for node in _built(ADVANTAGES, [config.advantage], problems):
        weights = node.options.get(node.traits["names_rules"] or "") or {}
        problems += [
            f"advantage '{node.name}' weighs the rule '{rule}', which is none of reward.rules{nearest(rule, labels)}."
            for rule in weights
            if rule not in labels
        ]
    if problems:
        raise SettingsError(problems)
    return notes


def _built(registry: Registry, nodes: Iterable[Any], problems: list[str]) -> Iterator[Part]:
    for node in nodes:
        try:
            yield registry.build(node)
        except RlvlmError as error:
            problems += error.problems


def _named_by_filters(config: AlgorithmConfig, problems: list[str]) -> Iterator[tuple[str, str]]:
    """The name of each filter that looks at a reward, and of that reward."""
    for part in _built(FILTERS, config.filters, problems):
        option = part.traits["names_reward"]
        if option is not None:
            usual = config.conventions.get(FILTERS.group, {}).get(part.name, {})
            given = {option: part.entry.options[option].default, **usual, **part.options}[option]
            yield part.name, str(given)


def _told_by(rules: Iterable[Rule]) -> tuple[list[str], list[str]]:
    """The details that rules declare, by key and as ``rule.key``, and the labels of rules that do not declare theirs."""
    known: list[str] = []
    unknown: list[str] = []
    for rule in rules:
        chosen = [*rule.choices.values(), *([rule.default] if rule.default else [])] if rule.part is None else [rule]
        for part in (one.part for one in chosen if one.part is not None):
            details = _details_of(part)
            if details is None:
                unknown.append(rule.label)
            else:
                known += [name for key in details for name in (key, f"{rule.label}.{key}")]
    return known, list(dict.fromkeys(unknown))


def _details_of(part: Part) -> Sequence[str] | None:
    """The keys that a rule may tell beside its score; ``None`` where neither it nor its annotation says."""
    declared: Sequence[str] | None = part.traits["details"]
    if declared is None and (part.entry in REWARDS.own_entries() or _gives_numbers(part.entry)):
        return ()
    return declared


def _gives_numbers(entry: Entry) -> bool:
    """Whether the function is annotated to give plain numbers."""
    function = entry.target.__call__ if entry.is_class else entry.target  # type: ignore[operator]
    given = inspect.signature(function).return_annotation
    return (given if isinstance(given, str) else getattr(given, "__name__", str(given))) in _NUMBERS


def _listed(labels: Sequence[str]) -> str:
    return "rule " + " or ".join(f"'{label}'" for label in labels)
