"""The terms of a loss over some rows: what their parts read, and their sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from rlvlm.algos.checks import check_given
from rlvlm.algos.metrics import token_shares
from rlvlm.algos.numerics import ZeroOutside
from rlvlm.algos.registries import COUNTS, OUTPUTS
from rlvlm.algos.results import TokenLoss
from rlvlm.algos.weighted import Weighted
from rlvlm.errors import FieldError
from rlvlm.fields import field_of
from rlvlm.registry import Part

_ELSEWHERE = {"loss_mask", "token_loss", "generator", "clean", *COUNTS}


class Fields(Protocol):
    """A batch, as far as a loss looks at it."""

    def __getitem__(self, name: str) -> Tensor: ...
    def __contains__(self, name: str) -> bool: ...


class LossInputs:
    """What the parts of a loss read, by name; of any rows, with zeros outside the mask.

    Args:
        fields: the batch.
        mask: [B, L] bool, the tokens that count.
        prox_from_logp: take ``logp.detach()`` where there is no ``prox_logp``.
    """

    def __init__(self, fields: Fields, mask: Tensor, prox_from_logp: bool) -> None:
        self._batch, self._mask, self._prox_from_logp = fields, mask, prox_from_logp
        self._fields: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}

    def take(self, parts: list[Part], outputs: Any, with_weights: bool) -> None:
        """Looks up what the parts read; raises ``FieldError`` for what is neither in the batch nor among the outputs.

        Args:
            outputs: of the pass, with ``logp``, ``entropy`` and ``value_preds``.
            with_weights: whether the correction's weights are wanted too.
        """
        given = {name: getattr(outputs, name) for name in sorted(OUTPUTS)}
        self.outputs = {name: value for name, value in given.items() if value is not None}
        names = {name for part in parts for name in part.needs} | ({"correction_weights"} if with_weights else set())
        names |= {name for part in parts for name in part.optional if name not in OUTPUTS and name in self._batch}
        for name in sorted(names - self.outputs.keys() - _ELSEWHERE):
            if name in OUTPUTS:
                there = ", ".join(sorted(self.outputs))
                raise FieldError(f"the loss reads '{name}', which the pass did not give; it gave: {there}.")
            if name != "prox_logp" or not self._prox_from_logp or name in self._batch:
                self._fields[name] = self._batch[name]
        self._prox_from_logp = self._prox_from_logp and "prox_logp" in names - self._fields.keys()

    def rows(self, rows: slice, outputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Everything by name, of these rows, and ``clean``, which cleaned it; ``outputs`` are theirs."""
        clean = ZeroOutside(self._mask[rows])
        given: dict[str, Any] = {"loss_mask": clean.mask, "clean": clean}
        given.update({name: clean(value) for name, value in outputs.items()})
        for name, value in self._fields.items():
            some = value[rows] if field_of(name).dims[0] == "B" else value
            given[name] = clean(some) if is_token_float(name, value) else some
        if self._prox_from_logp:
            given["prox_logp"] = given["logp"].detach()
        return given


class LossSum:
    """Adds up the terms of a loss over some rows and keeps their metrics.

    Args:
        aggregation: turns each term's tokens into a scalar.
        given: what the parts read, by name.
    """

    def __init__(self, aggregation: Part, given: Mapping[str, Any]) -> None:
        self._aggregation, self._given = aggregation, given
        self._losses: list[Tensor] = []
        self._tokens: dict[str, Tensor] = {}
        self._shares: dict[str, Tensor] = {}
        if "entropy" in given:
            self._tokens["mean/entropy"] = given["entropy"].detach()

    def add_policy_loss(self, part: Part, on_weights: Iterable[Weighted]) -> None:
        """Adds the policy loss, times the correction's weights and those of regularisers on token weights."""
        weights: Tensor | None = self._given.get("correction_weights")
        for term in on_weights:
            given = term.part(self._given)
            check_given(term.part, given, self._given["loss_mask"])
            scaled = 1 + term.weight * (given - 1)
            weights = scaled if weights is None else weights * scaled
        result = self._call(part)
        self._add("policy_loss", result.loss if weights is None else result.loss * weights, 1.0)
        self._tokens.update(result.metrics)

    def add(self, term: Weighted) -> None:
        """Adds a weighted term; the mean of its tokens is reported as ``mean/<name>``."""
        result = self._call(term.part)
        self._add(term.name, result.loss, term.weight)
        self._tokens = {f"mean/{term.name}": result.loss.detach(), **self._tokens, **result.metrics}

    def finish(self, num_tokens: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum and all metrics, as shares of a mini-batch of ``num_tokens``."""
        total = torch.stack(self._losses).sum()
        shares = {**self._shares, "mean/loss": total.detach()}
        return total, {**token_shares(self._tokens, self._given["clean"], num_tokens), **shares}

    def _call(self, part: Part) -> TokenLoss:
        result = part(self._given)
        result = result if isinstance(result, TokenLoss) else TokenLoss(result)
        check_given(part, result.loss, self._given["loss_mask"])
        return result

    def _add(self, name: str, token_loss: Tensor, weight: float) -> None:
        self._losses.append(weight * self._aggregation({**self._given, "token_loss": token_loss}))
        self._shares[f"mean/loss/{name}"] = self._losses[-1].detach()


def is_token_float(name: str, value: Tensor) -> bool:
    """True for a field that holds a float for each token, and so may hold anything outside the mask."""
    return field_of(name).dims == ("B", "L") and value.dtype.is_floating_point
