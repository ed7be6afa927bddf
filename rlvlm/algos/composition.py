"""Which parts make up an algorithm, and what follows from that before any tensor is seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlvlm.algos.conventions import Conventions
from rlvlm.algos.registries import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    COUNTS,
    FILTERS,
    KL_ESTIMATORS,
    OUTPUTS,
    POLICY_LOSSES,
    REGULARIZERS,
    SCOPES,
    VALUE_LOSSES,
)
from rlvlm.algos.regularizers import KLToReference
from rlvlm.algos.weighted import Weighted, build_kl_in_reward, build_value_loss, build_weighted
from rlvlm.errors import ConfigError, nearest
from rlvlm.fields import FIELDS
from rlvlm.registry import Part

WRITTEN_HERE = frozenset({"advantages", "returns", "correction_weights", "correction_mask", "group_tokens"})
"""Batch fields that an algorithm writes itself."""

_IN_LOSS_ONLY = OUTPUTS | COUNTS | {"generator"}
_ACTS_ON = ("loss", "reward", "weights")


@dataclass(frozen=True)
class Composition:
    """The parts of an algorithm; regularisers are sorted by what they act on."""

    advantage: Part
    policy_loss: Part
    aggregation: Part
    value_loss: Weighted | None
    kl_in_reward: Weighted | None
    corrections: tuple[Part, ...]
    filters: tuple[Part, ...]
    on_loss: tuple[Weighted, ...]
    on_reward: tuple[Weighted, ...]
    on_weights: tuple[Weighted, ...]

    def in_policy_loss(self) -> list[Part]:
        """Parts of the policy's loss."""
        terms = (*self.on_loss, *self.on_weights)
        return [self.policy_loss, self.aggregation, *(term.part for term in terms)]

    def in_value_loss(self) -> list[Part]:
        """Parts of the critic's loss; none where there is no critic."""
        return [] if self.value_loss is None else [self.value_loss.part, self.aggregation]

    def before_update(self) -> list[Part]:
        """Parts that run before the update."""
        return [self.advantage, *(term.part for term in self.on_reward), *self.corrections, *self.filters]

    def with_state(self) -> dict[str, Part]:
        """The parts by a name that is unique among them, for checkpoints."""
        terms = (*self.on_loss, *self.on_reward, *self.on_weights)
        single = {"advantage": self.advantage, "policy_loss": self.policy_loss, "aggregation": self.aggregation}
        lists = {f"correction.{i}": part for i, part in enumerate(self.corrections)}
        lists.update({f"filter.{i}": part for i, part in enumerate(self.filters)})
        return {**single, **lists, **{f"regularizer.{term.name}": term.part for term in terms}}

    def weighted(self) -> list[Weighted]:
        """Everything that has a weight."""
        terms = (*self.on_loss, *self.on_reward, *self.on_weights, self.kl_in_reward, self.value_loss)
        return [term for term in terms if term is not None]

    def controlled(self) -> dict[str, Weighted]:
        """The weights that move between steps, by name."""
        terms = (*self.on_loss, *([self.kl_in_reward] if self.kl_in_reward else []))
        return {term.name: term for term in terms if term.is_controlled}

    @property
    def scope(self) -> str:
        """The farthest scope of anything in the loss."""
        return farthest_scope([*self.in_policy_loss(), *self.in_value_loss()])

    @property
    def reads_before_update(self) -> frozenset[str]:
        """Batch fields that are read before the update and that others write."""
        names = _fields(self.before_update())
        if self.on_reward or self.kl_in_reward:
            names |= {"token_rewards"}
        if self.kl_in_reward:
            names |= {"prox_logp", "ref_logp"}
        return frozenset(names)

    @property
    def reads(self) -> frozenset[str]:
        """Batch fields that anything reads and that others write."""
        return self.reads_before_update | _fields([*self.in_policy_loss(), *self.in_value_loss()])

    @property
    def reads_outputs(self) -> frozenset[str]:
        """Outputs of the pass that a loss reads."""
        parts = [*self.in_policy_loss(), *self.in_value_loss()]
        return frozenset({name for part in parts for name in part.needs} & OUTPUTS)


def compose(
    *,
    advantage: Any,
    policy_loss: Any,
    value_loss: Any,
    regularizers: Mapping[str, Any],
    kl_in_reward: Any,
    correction: Any,
    aggregation: Any,
    filters: Iterable[Any],
    conventions: Mapping[str, Any],
) -> Composition:
    """Builds the parts from the nodes of the settings and checks that they go together.

    Raises ``RegistryError`` for a node that can't be built and ``ConfigError`` for parts that exclude each other.
    """
    defaults = Conventions(conventions)
    terms = [
        build_weighted(REGULARIZERS, key, defaults.fill(REGULARIZERS, node, key), "algorithm.regularizers")
        for key, node in regularizers.items()
    ]
    for term in terms:
        _check_regularizer(term)
    composition = Composition(
        advantage=ADVANTAGES.build(defaults.fill(ADVANTAGES, advantage)),
        policy_loss=POLICY_LOSSES.build(defaults.fill(POLICY_LOSSES, policy_loss)),
        aggregation=AGGREGATIONS.build(defaults.fill(AGGREGATIONS, aggregation)),
        value_loss=build_value_loss(defaults.fill(VALUE_LOSSES, value_loss)),
        kl_in_reward=build_kl_in_reward(_with_estimator(kl_in_reward, defaults)),
        corrections=tuple(CORRECTIONS.build(defaults.fill(CORRECTIONS, node)) for node in _listed(correction)),
        filters=tuple(FILTERS.build(defaults.fill(FILTERS, node)) for node in filters),
        on_loss=tuple(term for term in terms if term.part.traits["acts_on"] == "loss"),
        on_reward=tuple(term for term in terms if term.part.traits["acts_on"] == "reward"),
        on_weights=tuple(term for term in terms if term.part.traits["acts_on"] == "weights"),
    )
    for part in (*composition.before_update(), *composition.in_policy_loss(), *composition.in_value_loss()):
        _try_options(part)
    for part in _inside(composition):
        _try_options(part)
    _check_scopes(composition)
    _check_controllers(composition)
    _check_together(composition)
    return composition


def _with_estimator(kl_in_reward: Any, defaults: Conventions) -> Any:
    """The node of the KL in the reward, its estimator with the options that it has by convention."""
    if not isinstance(kl_in_reward, Mapping) or not kl_in_reward.get("estimator"):
        return kl_in_reward
    return {**kl_in_reward, "estimator": defaults.fill(KL_ESTIMATORS, kl_in_reward["estimator"])}


def farthest_scope(parts: Iterable[Part]) -> str:
    """How far any of the parts of a loss looks; one that does not say, such as an aggregation, looks at one token."""
    return max((part.traits.get("scope", "token") for part in parts), key=SCOPES.index)


def _fields(parts: Iterable[Part]) -> frozenset[str]:
    """Batch fields that the parts read, without those that the Algorithm itself provides."""
    names = {name for part in parts for name in part.needs} - WRITTEN_HERE - _IN_LOSS_ONLY - {"token_loss"}
    return frozenset("scores" if name == "scores_by_rule" else name for name in names)


def _listed(node: Any) -> list[Any]:
    if node is None:
        return []
    return [node] if isinstance(node, (str, Mapping)) else list(node)


def _check_regularizer(term: Weighted) -> None:
    acts_on = term.part.traits["acts_on"]
    if acts_on not in _ACTS_ON:
        raise ConfigError(f"regularizer '{term.part.name}' acts on '{acts_on}'{nearest(acts_on, _ACTS_ON)}.")
    late = sorted(_IN_LOSS_ONLY.intersection(term.part.needs))
    if acts_on == "reward" and late:
        raise ConfigError(
            f"regularizer '{term.part.name}' acts on the reward, before the update, and reads '{late[0]}', which only "
            "the update has; register it with acts_on='loss', or read a batch field."
        )


def _check_controllers(composition: Composition) -> None:
    for term in (*composition.on_reward, *composition.on_weights, composition.value_loss):
        if term is not None and term.is_controlled:
            raise ConfigError(
                f"the weight of '{term.name}' can't have a controller: one follows a penalty of the loss, or algorithm.kl_in_reward; "
                "take 'controller' out."
            )
    for term in composition.controlled().values():
        if term.weight == 0 and term.controller.entry.is_own:  # ours multiply the weight
            raise ConfigError(
                f"the weight of '{term.name}' is 0, and controller '{term.controller.name}' multiplies it, so that it stays 0; "
                "set a weight above 0, or take 'controller' out."
            )


def _check_scopes(composition: Composition) -> None:
    for part in (*composition.in_policy_loss(), *composition.in_value_loss()):
        scope = part.traits.get("scope", "token")
        if scope not in SCOPES:
            raise ConfigError(f"{part.entry.kind} '{part.name}' declares the scope '{scope}'{nearest(scope, SCOPES)}.")


def _check_together(composition: Composition) -> None:
    policy_loss, advantage = composition.policy_loss, composition.advantage
    if policy_loss.traits["weighs_behaviour"] and composition.corrections:
        raise ConfigError(
            f"policy loss '{policy_loss.name}' applies the behaviour weight itself, and algorithm.correction "
            f"'{composition.corrections[0].name}' would apply it twice; set correction: null, or policy_loss: ppo_clip."
        )
    if "values" in composition.reads_before_update and composition.value_loss is None:
        raise ConfigError(
            f"advantage '{advantage.name}' reads the values of a critic, which no pipeline here trains; choose one that does "
            "without, such as grpo or reinforce_plus_plus, or in a loop of your own with a critic give a value_loss."
        )
    shaping = [term.name for term in (*composition.on_reward, composition.kl_in_reward) if term is not None]
    if shaping and not {"rewards", "token_rewards"}.intersection(advantage.needs):
        raise ConfigError(
            f"advantage '{advantage.name}' reads neither rewards nor token_rewards, so '{shaping[0]}' would change nothing; "
            "take it out, or choose another advantage."
        )


def _try_options(part: Part) -> None:
    """Calls one of the library's own functions on a single token: it raises ``ConfigError`` for an option out of range."""
    if part.entry.is_own and not part.entry.is_class:
        given = {name: _one_token(name) for name in part.needs if name != "scores_by_rule"}
        if "scores_by_rule" in (*part.needs, *part.optional):
            given["scores_by_rule"] = {rule: torch.zeros(1) for rule in (*_words(part.options), "any rule")}
        part(given)


def _inside(composition: Composition) -> Iterator[Part]:
    """Parts that other parts hold: controllers of weights, and estimators of a KL."""
    if composition.kl_in_reward is not None:
        yield composition.kl_in_reward.part
    for term in composition.weighted():
        yield term.controller
        if isinstance(term.part.call, KLToReference):
            yield term.part.call.estimator


def _words(options: Mapping[str, Any]) -> list[str]:
    """What the options name, among it the reward rules of the run; those are checked when there are scores."""
    values = [*options.values(), *(key for value in options.values() if isinstance(value, Mapping) for key in value)]
    return [value for value in values if isinstance(value, str)]


def _one_token(name: str) -> Any:
    if name in COUNTS or name in ("weight", "measured", "num_samples"):  # the last are what a controller reads
        return 1.0
    if name == "generator":
        return torch.Generator()
    if name in OUTPUTS or name == "token_loss":
        return torch.zeros(1, 1)
    declared = FIELDS[name]
    return torch.full([1] * len(declared.dims), declared.dtype == torch.bool, dtype=declared.dtype)
