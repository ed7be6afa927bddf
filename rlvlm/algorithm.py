"""``Algorithm``: composes estimator, losses, regularisers, correction, aggregation and filters, and says what it needs.

It holds no mathematics of its own: the parts are pure functions of ``rlvlm.algos``, called with the fields that their
parameters name. What stands outside the mask is replaced by zeros before any part sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos.correction import mismatch
from rlvlm.algos.grouping import group_sizes_of_tokens
from rlvlm.algos.metrics import token_means, token_shares
from rlvlm.algos.numerics import fill_masked
from rlvlm.algos.registries import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    COUNTS,
    FILTERS,
    OUTPUTS,
    POLICY_LOSSES,
    REGULARIZERS,
    SCOPES,
)
from rlvlm.algos.results import AdvantageEstimate, TokenLoss
from rlvlm.algos.value_losses import explained_variance
from rlvlm.algos.weighted import Weighted, build_kl_in_reward, build_value_loss, build_weighted
from rlvlm.batch import Batch
from rlvlm.errors import ConfigError, FieldError, nearest
from rlvlm.fields import field_of
from rlvlm.registry import Part

_WRITTEN_HERE = frozenset({"advantages", "returns", "correction_weights", "correction_mask", "group_tokens"})
_GIVEN_HERE = OUTPUTS | COUNTS | _WRITTEN_HERE | {"generator", "token_loss"}


class Outputs(Protocol):
    """What a pass of the policy gives: [B, L] each, zero outside ``loss_mask``; the last two may be absent."""

    logp: Tensor
    entropy: Tensor | None
    value_preds: Tensor | None


@dataclass(frozen=True)
class OutputGradients:
    """The loss of a whole mini-batch and its gradients with respect to the outputs of the pass.

    Attributes:
        loss: scalar.
        logp, entropy, value_preds: [B, L], or ``None`` where the loss does not depend on that output.
        metrics: as of :meth:`Algorithm.loss`.
    """

    loss: Tensor
    logp: Tensor | None
    entropy: Tensor | None
    value_preds: Tensor | None
    metrics: dict[str, Tensor]


class Algorithm:
    """An algorithm, composed by name.

    Args:
        config: which parts, with which options; GRPO with PPO's clip by default.

    Raises ``ConfigError`` (``RegistryError`` for a part) for an unknown name or option and for parts that exclude each other.
    """

    def __init__(self, config: AlgorithmConfig | None = None) -> None:
        config = config or AlgorithmConfig()
        self.config = config
        self._advantage = ADVANTAGES.build(config.advantage)
        self._policy_loss = POLICY_LOSSES.build(config.policy_loss)
        self._aggregation = AGGREGATIONS.build(config.aggregation)
        self._corrections = [CORRECTIONS.build(node) for node in _listed(config.correction)]
        self._filters = [FILTERS.build(node) for node in config.filters]
        self._value_loss = build_value_loss(config.value_loss)
        self._kl_in_reward = build_kl_in_reward(config.kl_in_reward)
        regularizers = [
            build_weighted(REGULARIZERS, key, node, "algorithm.regularizers")
            for key, node in config.regularizers.items()
        ]
        self._on_loss = [term for term in regularizers if term.part.traits["acts_on"] == "loss"]
        self._on_reward = [term for term in regularizers if term.part.traits["acts_on"] == "reward"]
        self._on_weights = [term for term in regularizers if term.part.traits["acts_on"] == "weights"]
        self._generator = torch.Generator().manual_seed(config.seed)
        self._measured_kl: float | None = None
        self._num_samples = 0
        self._check()

    # ---------------------------------------------------------------- what it needs

    @property
    def needs(self) -> frozenset[str]:
        """Batch fields that anything composed here reads and that others write; a weight of 0 changes nothing."""
        return self.reads_before_update | self._reads(self._parts_in_loss())

    @property
    def reads_before_update(self) -> frozenset[str]:
        """Those of :attr:`needs` that are read before the update: by estimator, reward shaping, correction or filters."""
        shaping = [term.part for term in self._on_reward]
        reads = self._reads([self._advantage, *shaping, *self._corrections, *self._filters])
        if self._on_reward or self._kl_in_reward:
            reads |= {"token_rewards"}
        return reads | {"prox_logp", "ref_logp"} if self._kl_in_reward else reads

    @property
    def reads_outputs(self) -> frozenset[str]:
        """Which outputs of the pass the loss reads: of ``logp``, ``entropy``, ``value_preds``."""
        return frozenset(name for part in self._parts_in_loss() for name in part.needs if name in OUTPUTS)

    @property
    def needs_critic(self) -> bool:
        """True when something reads the values of a critic."""
        return "values" in self.needs or self._value_loss is not None

    @property
    def loss_scope(self) -> str:
        """How far the loss looks: ``token``, ``sequence``, or ``minibatch`` (then use :meth:`output_gradients`)."""
        scopes = [part.traits["scope"] for part in self._parts_in_loss() if "scope" in part.traits]
        return max(scopes, key=SCOPES.index)

    # ---------------------------------------------------------------- before the update

    def filter(self, batch: Batch) -> Batch:
        """Drops the groups that a filter does not want; call it before :meth:`estimate_advantages`.

        A group stays if the filter keeps all of its samples. ``meta["filtered"]`` lists what was dropped, by group:
        ``{"filter", "uid", "group_id", "samples"}``; ``meta["metrics"]`` counts it.
        """
        dropped: list[dict[str, Any]] = []
        counts: dict[str, float] = {}
        for part in self._filters:
            keep = part(self._before_update(batch, part))
            kept, lost = _whole_groups(batch, keep, part.name)
            counts[f"sum/filter/{part.name}/dropped_groups"] = float(len(lost))
            dropped.extend(lost)
            batch = kept
        if not self._filters:
            return batch
        return _with_metrics(batch.with_meta(filtered=[*batch.meta.get("filtered", []), *dropped]), counts)

    def estimate_advantages(self, batch: Batch) -> Batch:
        """Shapes the rewards, then writes ``advantages``, ``returns`` where the estimator gives them, the correction's
        ``correction_weights`` and ``correction_mask``, and metrics into ``meta["metrics"]``.

        Statistics are taken over the rows that it is given: gather the small fields of all ranks first.
        Raises ``FieldError`` for a field that is missing.
        """
        metrics: dict[str, Tensor] = {}
        self._num_samples = len(batch)
        batch = self._shape_rewards(batch, metrics)
        batch = self._correct(batch, metrics)
        batch = self._estimate(batch, metrics)
        if "group_tokens" in self._aggregation.needs:
            batch = batch.with_(group_tokens=group_sizes_of_tokens(self.policy_mask(batch), batch["group_ids"]))
        values = dict(zip(metrics, torch.stack([value.float() for value in metrics.values()]).tolist(), strict=True))
        self._measured_kl = values.get("mean/kl_in_reward")
        return _with_metrics(batch, values)

    # ---------------------------------------------------------------- the update

    def policy_mask(self, batch: Batch) -> Tensor:
        """The tokens [B, L] that count: of ``loss_mask``, not rejected by the correction, not of a masked truncated sample."""
        mask = batch["loss_mask"]
        rejected = batch.get("correction_mask")
        if rejected is not None:
            mask = mask & rejected
        return mask & ~batch["truncated"].unsqueeze(-1) if self.config.mask_truncated else mask

    def denominators(self, batch: Batch) -> dict[str, float]:
        """Counts ``tokens``, ``sequences``, ``prompts`` and ``rows`` of a whole mini-batch.

        Add them up over ranks, before the first backward; pass the same sums with every micro-batch.
        """
        mask = self.policy_mask(batch)
        present = mask.any(-1)
        prompts = batch["group_ids"][present].unique().numel()
        tokens, sequences = torch.stack([mask.sum(), present.sum()]).tolist()
        return {
            "tokens": float(tokens),
            "sequences": float(sequences),
            "prompts": float(prompts),
            "rows": float(len(batch)),
        }

    def loss(
        self, outputs: Outputs, batch: Batch, denominators: Mapping[str, float], *, prox_from_logp: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch of whole samples and its metrics; both are shares that add up to the mini-batch's.

        Args:
            outputs: of the pass over these rows.
            denominators: what :meth:`denominators` counted over the whole mini-batch, added up over ranks.
            prox_from_logp: take ``logp.detach()`` where the batch has no ``prox_logp``; right only if this is the one
                optimiser step on the batch.

        Raises ``FieldError`` for a missing field or output, ``ConfigError`` for a ``minibatch`` loss on part of its mini-batch.
        """
        self._check_denominators(batch, denominators)
        mask = self.policy_mask(batch)
        given = self._in_loss(outputs, batch, mask, denominators, prox_from_logp)
        term = _token_loss(self._policy_loss(given))
        metrics = dict(term.metrics)
        weights = self._token_weights(given)
        total = self._aggregate(term.loss if weights is None else term.loss * weights, given)
        shares = {"mean/loss/policy": total.detach()}
        for weighted in self._on_loss:
            total = total + self._weighted_term(weighted, given, metrics, shares)
        if self._value_loss is not None and outputs.value_preds is not None:
            total = total + self._weighted_term(self._value_loss, given, metrics, shares)
        if outputs.entropy is not None:
            metrics["mean/entropy"] = outputs.entropy.detach()
        shares["mean/loss"] = total.detach()
        return total, {**token_shares(metrics, mask, denominators["tokens"]), **shares}

    def critic_loss(
        self, outputs: Outputs, batch: Batch, denominators: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The value loss alone, for a critic that is a model of its own; shares as of :meth:`loss`."""
        if self._value_loss is None:
            raise ConfigError("there is no value loss to train a critic with; set algorithm.value_loss: clipped.")
        self._check_denominators(batch, denominators)
        mask = self.policy_mask(batch)
        given = self._in_loss(outputs, batch, mask, denominators, prox_from_logp=False, parts=[self._value_loss.part])
        metrics: dict[str, Tensor] = {}
        shares: dict[str, Tensor] = {}
        total = self._weighted_term(self._value_loss, given, metrics, shares)
        return total, {**token_shares(metrics, mask, denominators["tokens"]), **shares}

    def output_gradients(
        self, outputs: Outputs, batch: Batch, denominators: Mapping[str, float], *, prox_from_logp: bool = False
    ) -> OutputGradients:
        """Loss and gradients with respect to the outputs of a no-grad pass over the *whole* mini-batch (of all ranks).

        The engine then runs ``(logp * gradients.logp + …).sum().backward()`` for each micro-batch: exact for a loss of any
        scope under any split.
        """
        leaves = _Leaves(*(_leaf(getattr(outputs, name)) for name in ("logp", "entropy", "value_preds")))
        with torch.enable_grad():
            loss, metrics = self.loss(leaves, batch, denominators, prox_from_logp=prox_from_logp)
        given = [leaf for leaf in (leaves.logp, leaves.entropy, leaves.value_preds) if leaf is not None]
        found = iter(torch.autograd.grad(loss, given, allow_unused=True))
        gradients = [
            None if leaf is None else next(found) for leaf in (leaves.logp, leaves.entropy, leaves.value_preds)
        ]
        return OutputGradients(loss.detach(), *gradients, metrics)

    # ---------------------------------------------------------------- between steps

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Moves controlled KL weights after a step.

        Args:
            metrics: of the update, reduced over micro-batches, mini-batches and ranks.
        """
        if self._kl_in_reward is not None and self._measured_kl is not None:
            self._kl_in_reward.update(self._measured_kl, self._num_samples)
        for term in self._on_loss:
            if not term.is_controlled:
                continue
            key = f"mean/{term.part.name}"
            if key not in metrics:
                raise ConfigError(
                    f"the controller of regularizer '{term.name}' follows the metric '{key}', which the update did not report"
                    f"{nearest(key, metrics)}; pass the reduced metrics of the update to after_update."
                )
            term.update(float(metrics[key]), self._num_samples)

    def state_dict(self) -> dict[str, Any]:
        """Weights that controllers moved, the state of the generator, and of parts that have one."""
        return {
            "generator": self._generator.get_state(),
            "weights": {term.name: term.weight for term in self._controlled()},
            "parts": {key: part.state_dict() for key, part in self._named_parts().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave; raises ``ConfigError`` where it belongs to another composition."""
        controlled = {term.name: term for term in self._controlled()}
        parts = self._named_parts()
        for found, expected in ((state["weights"], controlled), (state["parts"], parts)):
            if set(found) != set(expected):
                odd = sorted({*found} ^ {*expected})[0]
                raise ConfigError(
                    f"the saved algorithm is composed otherwise: only one of the two has '{odd}'; "
                    "resume with the settings it was saved with."
                )
        self._generator.set_state(state["generator"])
        for name, weight in state["weights"].items():
            controlled[name].weight = float(weight)
        for key, part_state in state["parts"].items():
            parts[key].load_state_dict(part_state)

    # ---------------------------------------------------------------- inside

    def _check(self) -> None:
        if self._policy_loss.traits["weighs_behaviour"] and self._corrections:
            raise ConfigError(
                f"policy loss '{self._policy_loss.name}' applies the behaviour weight itself, and algorithm.correction "
                f"'{self._corrections[0].name}' would apply it twice; set correction: null, or policy_loss: ppo_clip."
            )
        if "values" in self.reads_before_update and self._value_loss is None:
            raise ConfigError(
                f"advantage '{self._advantage.name}' reads the values of a critic, and nothing would train it; "
                "set algorithm.value_loss: clipped (or plain)."
            )
        if self.config.mask_truncated and not isinstance(self.config.mask_truncated, bool):
            raise ConfigError(f"algorithm.mask_truncated is true or false, got {self.config.mask_truncated!r}.")

    def _parts_in_loss(self) -> list[Part]:
        terms = [*self._on_loss, *self._on_weights, *([self._value_loss] if self._value_loss else [])]
        return [self._policy_loss, self._aggregation, *(term.part for term in terms)]

    def _named_parts(self) -> dict[str, Part]:
        terms = {term.name: term.part for term in (*self._on_loss, *self._on_reward, *self._on_weights)}
        return {"advantage": self._advantage, "policy_loss": self._policy_loss, **terms}

    def _controlled(self) -> Iterable[Weighted]:
        return [term for term in (*self._on_loss, self._kl_in_reward) if term is not None and term.is_controlled]

    def _reads(self, parts: Iterable[Part]) -> frozenset[str]:
        names = {name for part in parts for name in part.needs} - _GIVEN_HERE
        names = {"scores" if name == "scores_by_rule" else name for name in names}
        return frozenset({*names, "loss_mask", "group_ids", *(["truncated"] if self.config.mask_truncated else [])})

    def _before_update(self, batch: Batch, part: Part) -> dict[str, Any]:
        mask = batch["loss_mask"]
        given: dict[str, Any] = {}
        for name in (*part.needs, *part.optional):
            if name == "scores_by_rule":
                given[name] = {key[1]: batch[key] for key in batch.keys() if isinstance(key, tuple)}
            elif name in part.needs or name in batch:
                given[name] = _cleaned(name, batch[name], mask)
        return given

    def _shape_rewards(self, batch: Batch, metrics: dict[str, Tensor]) -> Batch:
        if not self._on_reward and self._kl_in_reward is None:
            return batch
        mask = batch["loss_mask"]
        rewards = batch["token_rewards"]
        for term in self._on_reward:
            penalty = fill_masked(term.part(self._before_update(batch, term.part)), mask)
            metrics[f"mean/{term.name}"] = penalty.sum(-1).mean()
            rewards = rewards - term.weight * penalty
        if self._kl_in_reward is not None:
            logp, ref_logp = (fill_masked(batch[name], mask) for name in ("prox_logp", "ref_logp"))
            kl = fill_masked(self._kl_in_reward.part({"logp": logp, "ref_logp": ref_logp}), mask)
            metrics["mean/kl_in_reward"] = (kl.sum(-1) / mask.sum(-1).clamp_min(1)).mean()
            rewards = rewards - self._kl_in_reward.weight * kl
        return batch.with_(token_rewards=rewards.to(torch.float32))

    def _correct(self, batch: Batch, metrics: dict[str, Tensor]) -> Batch:
        if not self._corrections:
            return batch
        mask = batch["loss_mask"]
        weights, keep = torch.ones_like(batch["behav_logp"]), mask
        for part in self._corrections:
            correction = part(self._before_update(batch, part))
            weights, keep = weights * correction.weights, keep & correction.mask
            metrics.update(
                {_nested(key, "correction"): value for key, value in token_means(correction.metrics, mask).items()}
            )
        metrics.update(mismatch(batch["prox_logp"], batch["behav_logp"], mask))
        return batch.with_(correction_weights=fill_masked(weights, mask).to(torch.float32), correction_mask=keep)

    def _estimate(self, batch: Batch, metrics: dict[str, Tensor]) -> Batch:
        mask = batch["loss_mask"]
        estimate = self._advantage(self._before_update(batch, self._advantage))
        advantages, returns = estimate if isinstance(estimate, AdvantageEstimate) else (estimate, None)
        if advantages.shape != mask.shape:
            raise FieldError(
                f"advantage '{self._advantage.name}' gave shape {list(advantages.shape)}, expected [B, L] = {list(mask.shape)}."
            )
        written = {"advantages": fill_masked(advantages, mask).to(torch.float32)}
        named = {"mean/advantage": advantages, "max/advantage": advantages, "min/advantage": advantages}
        if returns is not None:
            written["returns"] = fill_masked(returns, mask).to(torch.float32)
            named["mean/return"] = returns
        metrics.update(token_means(named, mask))
        if returns is not None and "values" in batch:
            metrics["mean/explained_variance"] = explained_variance(batch["values"], written["returns"], mask)
        return batch.with_(**written)

    def _check_denominators(self, batch: Batch, denominators: Mapping[str, float]) -> None:
        for name in ("tokens", "sequences", "prompts", "rows"):
            if name not in denominators:
                raise ConfigError(
                    f"the denominators have no '{name}'; pass what Algorithm.denominators gave, added up over ranks."
                )
        if self.loss_scope == "minibatch" and denominators["rows"] != len(batch):
            raise ConfigError(
                f"the loss looks at the whole mini-batch ('{self._policy_loss.name}') of {denominators['rows']:.0f} samples, "
                f"got {len(batch)} of them; call output_gradients on all of them and send the gradients through each micro-batch."
            )

    def _in_loss(
        self,
        outputs: Outputs,
        batch: Batch,
        mask: Tensor,
        denominators: Mapping[str, float],
        prox_from_logp: bool,
        parts: Iterable[Part] | None = None,
    ) -> dict[str, Any]:
        """Everything that the parts of the loss read, by name, with zeros outside the mask."""
        given: dict[str, Any] = {"loss_mask": mask, "generator": self._generator}
        given.update({name: denominators[name.removeprefix("num_")] for name in COUNTS})
        for name in OUTPUTS:
            value = getattr(outputs, name)
            if value is not None:
                given[name] = fill_masked(value, mask)
        parts = self._parts_in_loss() if parts is None else parts
        needed = {name for part in parts for name in part.needs} | {"correction_weights"} & set(batch.keys())
        for name in (needed | {name for part in parts for name in part.optional if name in batch}) - given.keys():
            if name in OUTPUTS and name != "value_preds":
                raise FieldError(
                    f"the loss reads '{name}', which the pass did not give; it gave {sorted(OUTPUTS & given.keys())}."
                )
            if name == "prox_logp" and prox_from_logp and name not in batch:
                given[name] = given["logp"].detach()
            elif name not in _GIVEN_HERE - _WRITTEN_HERE:
                given[name] = _cleaned(name, batch[name], mask)
        return given

    def _token_weights(self, given: Mapping[str, Any]) -> Tensor | None:
        weights: Tensor | None = given.get("correction_weights")
        for term in self._on_weights:
            scaled = 1 + term.weight * (term.part(given) - 1)
            weights = scaled if weights is None else weights * scaled
        return weights

    def _aggregate(self, token_loss: Tensor, given: Mapping[str, Any]) -> Tensor:
        return self._aggregation({**given, "token_loss": token_loss})

    def _weighted_term(
        self, weighted: Weighted, given: Mapping[str, Any], metrics: dict[str, Tensor], shares: dict[str, Tensor]
    ) -> Tensor:
        term = _token_loss(weighted.part(given))
        loss = weighted.weight * self._aggregate(term.loss, given)
        metrics.update(term.metrics)
        shares[f"mean/loss/{weighted.name}"] = loss.detach()
        return loss


@dataclass
class _Leaves:
    logp: Tensor
    entropy: Tensor | None
    value_preds: Tensor | None


def _leaf(output: Tensor | None) -> Any:
    return None if output is None else output.detach().requires_grad_(True)


def _listed(node: Any) -> list[Any]:
    if node is None:
        return []
    return [node] if isinstance(node, (str, Mapping)) else list(node)


def _token_loss(result: TokenLoss | Tensor) -> TokenLoss:
    return result if isinstance(result, TokenLoss) else TokenLoss(result)


def _cleaned(name: str, value: Tensor, mask: Tensor) -> Tensor:
    """A field with zeros outside the mask, where it is a float for each token."""
    return fill_masked(value, mask) if field_of(name).dims == ("B", "L") and value.dtype.is_floating_point else value


def _nested(key: str, under: str) -> str:
    reduction, name = key.split("/", 1)
    return f"{reduction}/{under}/{name}"


def _with_metrics(batch: Batch, metrics: Mapping[str, float]) -> Batch:
    return batch.with_meta(metrics={**batch.meta.get("metrics", {}), **metrics})


def _whole_groups(batch: Batch, keep: Tensor, name: str) -> tuple[Batch, list[dict[str, Any]]]:
    """The rows of the groups that are kept whole, and an entry for each group that is dropped."""
    ids, index = batch["group_ids"].unique(return_inverse=True)
    if keep.dtype != torch.bool or keep.shape != index.shape:
        raise FieldError(
            f"filter '{name}' gives a bool mask of shape {list(index.shape)}, got {keep.dtype} of shape {list(keep.shape)}."
        )
    unwanted = torch.zeros_like(ids).index_add_(0, index, (~keep).to(ids.dtype)) > 0
    sizes = torch.bincount(index, minlength=len(ids)).tolist()
    lost = [
        {
            "filter": name,
            "group_id": group_id,
            "uid": batch.prompts[group_id].uid if batch.prompts else None,
            "samples": size,
        }
        for group_id, size, drop in zip(ids.tolist(), sizes, unwanted.tolist(), strict=True)
        if drop
    ]
    return batch.filter(~unwanted[index]), lost
