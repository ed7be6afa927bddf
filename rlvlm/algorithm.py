"""``Algorithm``: composes estimator, losses, regularisers, correction, aggregation and filters, and says what it needs.

It holds no mathematics of its own: the parts are pure functions of ``rlvlm.algos``, called with the fields that their
parameters name. What stands outside the mask is replaced by zeros before any part sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rlvlm.algorithm_config import AlgorithmConfig
from rlvlm.algos.blocks import add_up
from rlvlm.algos.checks import check_given
from rlvlm.algos.composition import compose, farthest_scope
from rlvlm.algos.correction import mismatch
from rlvlm.algos.grouping import tokens_of_group
from rlvlm.algos.loss_sum import LossInputs, LossSum, is_token_float
from rlvlm.algos.metrics import token_means
from rlvlm.algos.numerics import fill_masked, row_blocks
from rlvlm.algos.registries import COUNTS
from rlvlm.algos.results import AdvantageEstimate
from rlvlm.algos.settings import check_settings
from rlvlm.algos.value_losses import explained_variance
from rlvlm.algos.weighted import Weighted
from rlvlm.batch import Batch, reward_details
from rlvlm.errors import ConfigError, FieldError, nearest
from rlvlm.fields import field_of
from rlvlm.registry import Part

_LEFT_OUT = "sum/advantages/left_out"
"""Metric: rows that an estimator left out because what it read of them was not finite; absent where there were none."""


class Outputs(Protocol):
    """What a pass of the policy gives: [B, L] each, zero outside ``loss_mask``; the last two may be absent."""

    @property
    def logp(self) -> Tensor: ...
    @property
    def entropy(self) -> Tensor | None: ...
    @property
    def value_preds(self) -> Tensor | None: ...


@dataclass(frozen=True)
class OutputGradients:
    """The loss of a whole mini-batch and its gradients with respect to the outputs of the pass.

    Attributes:
        loss: scalar.
        logp: [B, L].
        entropy: [B, L], or ``None`` where the loss does not depend on it.
        value_preds: [B, L], or ``None`` where the loss does not depend on it.
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
        self.config = config or AlgorithmConfig()
        check_settings(self.config)
        self._parts = compose(
            advantage=self.config.advantage,
            policy_loss=self.config.policy_loss,
            value_loss=self.config.value_loss,
            regularizers=self.config.regularizers,
            kl_in_reward=self.config.kl_in_reward,
            correction=self.config.correction,
            aggregation=self.config.aggregation,
            filters=self.config.filters,
            conventions=self.config.conventions,
        )
        self._generator = torch.Generator().manual_seed(self.config.seed)
        self._kl_in_reward_measured: float | None = None
        self._num_samples = 0

    # ---------------------------------------------------------------- what it needs

    @property
    def needs(self) -> frozenset[str]:
        """Batch fields that anything composed here reads and that others write; a weight of 0 changes nothing."""
        return self._parts.reads | self._always

    @property
    def reads_before_update(self) -> frozenset[str]:
        """Those of :attr:`needs` that are read before the update: by estimator, reward shaping, correction or filters."""
        return self._parts.reads_before_update | self._always

    @property
    def reads_outputs(self) -> frozenset[str]:
        """Which outputs of the pass the loss reads: of ``logp``, ``entropy``, ``value_preds``."""
        return self._parts.reads_outputs

    @property
    def needs_critic(self) -> bool:
        """True when a critic is to be trained."""
        return self._parts.value_loss is not None

    @property
    def max_refills(self) -> int:
        """How often new prompts are drawn in place of groups that filters dropped; 0 where there is no filter."""
        return self.config.max_refills if self._parts.filters else 0

    @property
    def loss_scope(self) -> str:
        """How far the loss looks: ``token``, ``sequence``, or ``minibatch`` (then use :meth:`output_gradients`)."""
        return self._parts.scope

    @property
    def _always(self) -> frozenset[str]:
        return frozenset({"loss_mask", "group_ids", *(["truncated"] if self.config.mask_truncated else [])})

    # ---------------------------------------------------------------- before the update

    def filter(self, batch: Batch) -> Batch:
        """Drops the groups that a filter does not want; call it before :meth:`estimate_advantages`.

        A filter sees ``rewards`` after the penalties of regularizers that act on the reward, such as ``overlong``; a penalty
        that reads log-probs, and the KL of ``kl_in_reward``, come off later, for only what a filter keeps gets log-probs. The
        batch itself keeps its rewards as they are: :meth:`estimate_advantages` shapes them.

        A group stays if the filter keeps all of its samples. ``meta["filtered"]`` lists what was dropped, by group:
        ``{"filter", "group_id", "uid", "samples"}``; ``meta["metrics"]`` counts it.
        """
        dropped: list[dict[str, Any]] = []
        counts: dict[str, float] = {}
        for part in self._parts.filters:
            seen = self._penalised(batch, [term for term in self._parts.on_reward if _reads_only(term, batch)], {})
            keep = _whole_groups(part(self._before_update(seen, part)), batch, part.name)
            lost = _describe_dropped(keep, batch, part.name)
            counts[f"sum/filter/{part.name}/dropped_groups"] = float(len(lost))
            counts[f"sum/filter/{part.name}/dropped_samples"] = float(sum(entry["samples"] for entry in lost))
            dropped.extend(lost)
            batch = batch.filter(keep)
        if not self._parts.filters:
            return batch
        return _with_metrics(batch.with_meta(filtered=[*batch.meta.get("filtered", []), *dropped]), counts)

    def estimate_advantages(self, batch: Batch) -> Batch:
        """Writes ``advantages`` and, where the estimator gives them, ``returns``; before that, shaped rewards and the
        correction's ``correction_weights`` and ``correction_mask``; and metrics into ``meta["metrics"]``.

        Statistics are taken over the rows that it is given: gather the small fields of all ranks first.
        Raises ``FieldError`` for a field that is missing.
        """
        metrics: dict[str, Tensor] = {}
        batch = self._shape_rewards(batch, metrics)
        batch = self._correct(batch, metrics)
        batch = self._estimate(batch, metrics)
        if "group_tokens" in self._parts.aggregation.needs:
            batch = batch.with_(group_tokens=tokens_of_group(self.policy_mask(batch), batch["group_ids"]))
        values = dict(zip(metrics, torch.stack([value.float() for value in metrics.values()]).tolist(), strict=True))
        if not values[_LEFT_OUT]:
            del values[_LEFT_OUT]
        counted = bool(batch["loss_mask"].any())
        self._kl_in_reward_measured = values.get("mean/kl_in_reward", math.nan) if counted else math.nan
        self._num_samples = len(batch)
        return _with_metrics(batch, values)

    # ---------------------------------------------------------------- the update

    def policy_mask(self, batch: Batch) -> Tensor:
        """The tokens [B, L] that count: of ``loss_mask``, not rejected by the correction, not of a masked truncated sample."""
        mask = batch["loss_mask"]
        if self._parts.corrections:
            mask = mask & batch["correction_mask"]
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

        The value loss is part of it where the outputs have ``value_preds``.

        Args:
            outputs: of the pass over these rows.
            denominators: what :meth:`denominators` counted over the whole mini-batch, added up over ranks.
            prox_from_logp: take ``logp.detach()`` where the batch has no ``prox_logp``; right only if this is the one
                optimiser step on the batch.

        Raises ``FieldError`` for a missing field or output, ``ConfigError`` for a ``minibatch`` loss on part of its mini-batch.
        """
        terms = list(self._parts.on_loss)
        if self._parts.value_loss is not None and outputs.value_preds is not None:
            terms.append(self._parts.value_loss)
        return self._loss_of(self._parts.policy_loss, terms, outputs, batch, denominators, prox_from_logp)

    def critic_loss(
        self, outputs: Outputs, batch: Batch, denominators: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The value loss alone, for a critic that is a model of its own; shares as of :meth:`loss`."""
        if self._parts.value_loss is None:
            raise ConfigError("there is no value loss to train a critic with; give the algorithm value_loss='clipped'.")
        return self._loss_of(None, [self._parts.value_loss], outputs, batch, denominators, False)

    def output_gradients(
        self, outputs: Outputs, batch: Batch, denominators: Mapping[str, float], *, prox_from_logp: bool = False
    ) -> OutputGradients:
        """Loss and gradients with respect to the outputs of a no-grad pass over the *whole* mini-batch (of all ranks).

        The engine then runs ``(logp * gradients.logp + …).sum().backward()`` for each micro-batch: exact for a loss of any
        scope under any split.
        """
        leaves = _Leaves(_leaf(outputs.logp), _leaf(outputs.entropy), _leaf(outputs.value_preds))
        with torch.enable_grad():
            loss, metrics = self.loss(leaves, batch, denominators, prox_from_logp=prox_from_logp)
        given = {name: value for name, value in vars(leaves).items() if value is not None}
        found = torch.autograd.grad(loss, list(given.values()), allow_unused=True)
        gradients = dict(zip(given, found, strict=True))
        return OutputGradients(
            loss.detach(), gradients["logp"], gradients.get("entropy"), gradients.get("value_preds"), metrics
        )

    # ---------------------------------------------------------------- between steps

    def after_update(self, metrics: Mapping[str, float], *, num_tokens: float | None = None) -> None:
        """Moves controlled weights after a step.

        Args:
            metrics: of the update, reduced over micro-batches, mini-batches and ranks.
            num_tokens: policy tokens that counted in the update; with 0 there is nothing to follow in it, and the weights
                of the loss's terms stay.

        Raises ``ConfigError`` if a metric that a controller follows is not among them.
        """
        for name, term in self._parts.controlled().items():
            if term is self._parts.kl_in_reward:
                measured = self._kl_in_reward_measured
            else:
                measured = metrics.get(f"mean/{name}")
            if num_tokens == 0 and term is not self._parts.kl_in_reward:
                continue
            if measured is None:
                raise ConfigError(
                    f"the controller of '{name}' follows the metric 'mean/{name}', which the step did not report"
                    f"{nearest(f'mean/{name}', metrics)}; pass the reduced metrics of the update to after_update."
                )
            if not math.isnan(measured):  # nothing, or nothing usable, was measured; the metric itself says so
                term.update(float(measured), self._num_samples)

    def state_dict(self) -> dict[str, Any]:
        """Weights that controllers move, the state of the generator, and that of parts that have one."""
        return {
            "generator": self._generator.get_state(),
            "weights": {name: term.weight for name, term in self._parts.controlled().items()},
            "parts": {name: part.state_dict() for name, part in self._parts.with_state().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave; raises ``ConfigError`` where it belongs to another composition."""
        controlled, parts = self._parts.controlled(), self._parts.with_state()
        for odd in sorted(({*state["weights"]} ^ {*controlled}) | ({*state["parts"]} ^ {*parts})):
            raise ConfigError(
                f"the saved algorithm is composed otherwise: only one of the two has '{odd}'; "
                "resume with the settings that it was saved with."
            )
        self._generator.set_state(state["generator"])
        for name, weight in state["weights"].items():
            controlled[name].weight = float(weight)
        for name, part_state in state["parts"].items():
            parts[name].load_state_dict(part_state)

    # ---------------------------------------------------------------- inside

    def _before_update(self, batch: Batch, part: Part) -> dict[str, Any]:
        """What a part reads before the update, with zeros outside ``loss_mask``."""
        given: dict[str, Any] = {}
        for name in (*part.needs, *part.optional):
            if name == "scores_by_rule":
                given[name] = {key[1]: batch[key] for key in batch.keys() if isinstance(key, tuple)}
            elif name == "reward_details":
                given[name] = reward_details(batch)
            elif name in part.needs or name in batch:
                value = batch[name]
                given[name] = fill_masked(value, batch["loss_mask"]) if is_token_float(name, value) else value
        return given

    def _shape_rewards(self, batch: Batch, metrics: dict[str, Tensor]) -> Batch:
        if not self._parts.on_reward and self._parts.kl_in_reward is None:
            return batch
        shaped = self._penalised(batch, self._parts.on_reward, metrics)
        mask, rewards = batch["loss_mask"], shaped["token_rewards"]
        term_kl = self._parts.kl_in_reward
        if term_kl is not None:
            logp, ref_logp = (fill_masked(batch[name], mask) for name in ("prox_logp", "ref_logp"))
            kl = fill_masked(term_kl.part({"logp": logp, "ref_logp": ref_logp}), mask)
            metrics["mean/kl_in_reward"] = (kl.sum(-1) / mask.sum(-1).clamp_min(1)).sum() / max(len(batch), 1)
            rewards = rewards - term_kl.weight * kl
        return batch.with_(token_rewards=rewards.to(torch.float32))

    def _penalised(self, batch: Batch, terms: Iterable[Weighted], metrics: dict[str, Tensor]) -> Batch:
        """The batch with the penalties of these regularizers taken off its token rewards."""
        terms = list(terms)
        if not terms:
            return batch
        mask, rewards = batch["loss_mask"], batch["token_rewards"]
        for term in terms:
            penalty = term.part(self._before_update(batch, term.part))
            check_given(term.part, penalty, mask)
            penalty = fill_masked(penalty, mask)
            metrics[f"mean/{term.name}"] = penalty.sum() / max(len(batch), 1)
            rewards = rewards - term.weight * penalty
        return batch.with_(token_rewards=rewards.to(torch.float32))

    def _correct(self, batch: Batch, metrics: dict[str, Tensor]) -> Batch:
        if not self._parts.corrections:
            return batch
        mask = batch["loss_mask"]
        weights, keep = mask.to(torch.float32), mask
        for part in self._parts.corrections:
            correction = part(self._before_update(batch, part))
            check_given(part, correction.weights, mask)
            check_given(part, correction.mask, mask)
            weights, keep = weights * fill_masked(correction.weights, mask), keep & correction.mask
            for key, value in token_means(correction.metrics, mask).items():
                reduction, name = key.split("/", 1)
                metrics[f"{reduction}/correction/{part.name}/{name}"] = value
        metrics.update(mismatch(batch["prox_logp"], batch["behav_logp"], mask))
        return batch.with_(correction_weights=weights.to(torch.float32), correction_mask=keep)

    def _estimate(self, batch: Batch, metrics: dict[str, Tensor]) -> Batch:
        part, mask = self._parts.advantage, batch["loss_mask"]
        given_fields = self._before_update(batch, part)
        metrics[_LEFT_OUT] = _rows_not_finite(given_fields, len(batch)).sum()
        estimate = part(given_fields)
        advantages, returns = estimate if isinstance(estimate, AdvantageEstimate) else (estimate, None)
        for given in (advantages, *([] if returns is None else [returns])):
            check_given(part, given, mask)
        written = {"advantages": fill_masked(advantages, mask).to(torch.float32)}
        named = {"mean/advantage": advantages, "max/advantage": advantages, "min/advantage": advantages}
        if returns is not None:
            written["returns"] = fill_masked(returns, mask).to(torch.float32)
            named["mean/return"] = returns
        metrics.update(token_means(named, mask))
        if returns is not None and "values" in batch:
            metrics["mean/explained_variance"] = explained_variance(batch["values"], written["returns"], mask)
        return batch.with_(written)

    def _check_denominators(self, batch: Batch, denominators: Mapping[str, float], scope: str) -> None:
        for name in ("tokens", "sequences", "prompts", "rows"):
            if name not in denominators:
                raise ConfigError(
                    f"the denominators have no '{name}'; pass what Algorithm.denominators gave, added up over ranks."
                )
        if scope == "minibatch" and denominators["rows"] != len(batch):
            raise ConfigError(
                f"the loss looks at a whole mini-batch ('{self._parts.policy_loss.name}'), here {denominators['rows']:.0f} "
                f"samples, got {len(batch)} of them; call output_gradients on all of them, then run the backward of "
                "(output * gradient).sum() for each micro-batch."
            )

    def _loss_of(
        self,
        policy_loss: Part | None,
        terms: list[Weighted],
        outputs: Outputs,
        batch: Batch,
        denominators: Mapping[str, float],
        prox_from_logp: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of the policy loss, if there is one, and of weighted terms."""
        on_weights = self._parts.on_weights if policy_loss is not None else ()
        parts = [term.part for term in (*terms, *on_weights)] + [self._parts.aggregation]
        parts += [policy_loss] if policy_loss is not None else []
        scope = farthest_scope(parts)
        self._check_denominators(batch, denominators, scope)
        inputs = LossInputs(batch, self.policy_mask(batch), prox_from_logp)
        inputs.take(parts, outputs, with_weights=policy_loss is not None and bool(self._parts.corrections))
        whole = {name: denominators[name.removeprefix("num_")] for name in COUNTS} | {"generator": self._generator}

        def share(rows: slice, of_rows: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            sums = LossSum(self._parts.aggregation, {**whole, **inputs.rows(rows, of_rows)})
            if policy_loss is not None:
                sums.add_policy_loss(policy_loss, on_weights)
            for term in terms:
                sums.add(term)
            return sums.finish(denominators["tokens"])

        blocks = [slice(0, len(batch))] if scope == "minibatch" else list(row_blocks(outputs.logp))
        return add_up(share, inputs.outputs, blocks)


@dataclass
class _Leaves:
    logp: Tensor
    entropy: Tensor | None
    value_preds: Tensor | None


def _rows_not_finite(given: Mapping[str, Any], rows: int) -> Tensor:
    """True [B] for rows of which an estimator reads something that is NaN or infinite."""
    fields = [value for name, value in given.items() if isinstance(value, Tensor) and field_of(name).dims[0] == "B"]
    fields += given.get("scores_by_rule", {}).values()
    wide = [value.unsqueeze(-1) if value.dim() == 1 else value for value in fields if value.is_floating_point()]
    odd = [~value.isfinite().all(-1) for value in wide]
    return torch.stack(odd).any(0) if odd else torch.zeros(rows, dtype=torch.bool)


def _leaf(output: Tensor | None) -> Any:
    return None if output is None else output.detach().requires_grad_()


def _with_metrics(batch: Batch, metrics: Mapping[str, float]) -> Batch:
    return batch.with_meta(metrics={**batch.meta.get("metrics", {}), **metrics})


def _whole_groups(keep: Tensor, batch: Batch, name: str) -> Tensor:
    """True [B] for the samples of groups that are kept whole."""
    if keep.dtype != torch.bool or list(keep.shape) != [len(batch)]:
        raise FieldError(
            f"filter '{name}' gives a bool mask of shape [{len(batch)}], got {keep.dtype} of shape {list(keep.shape)}."
        )
    ids, index = batch["group_ids"].unique(return_inverse=True)
    unwanted = torch.zeros(len(ids), dtype=torch.int64, device=keep.device).index_add_(0, index, (~keep).long())
    return (unwanted == 0)[index]


def _reads_only(term: Weighted, batch: Batch) -> bool:
    """Whether all that a term needs is in the batch by now."""
    return all(name == "scores_by_rule" or name in batch for name in term.part.needs)


def _describe_dropped(keep: Tensor, batch: Batch, name: str) -> list[dict[str, Any]]:
    ids, sizes = batch["group_ids"][~keep].unique(return_counts=True)
    return [
        {
            "filter": name,
            "group_id": group_id,
            "uid": batch.prompts[group_id].uid if batch.prompts else None,
            "samples": samples,
        }
        for group_id, samples in zip(ids.tolist(), sizes.tolist(), strict=True)
    ]
