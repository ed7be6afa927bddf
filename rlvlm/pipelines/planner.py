"""Which passes a batch needs: only what something reads, each decision with its reason."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rlvlm.errors import ConfigError
from rlvlm.fields import FIELDS

ROLLOUT_WRITES = frozenset(name for name, field in FIELDS.items() if field.written_by == "Rollout")
REWARD_WRITES = frozenset(name for name, field in FIELDS.items() if field.written_by == "Reward")
OUTPUTS = frozenset({"logp", "entropy", "value_preds"})


@dataclass(frozen=True)
class Passes:
    """The passes of one batch.

    Attributes:
        prox_logp: the actor computes it in a pass of its own before the update.
        prox_from_logp: the update supplies ``logp.detach()`` for it.
        ref_logp: the reference computes it.
        greedy: one greedy answer for each prompt is generated and scored.
        written: registered fields that their writers add.
        reasons: each decision in one line, for the log.
    """

    prox_logp: bool
    prox_from_logp: bool
    ref_logp: bool
    greedy: bool
    written: tuple[str, ...]
    reasons: dict[str, str]


def plan_passes(
    needs: Collection[str], reads_before_update: Collection[str], *, optimizer_steps: int, dropout_active: bool
) -> Passes:
    """Leaves out every pass that nobody needs; a weight of 0 still needs its field.

    Args:
        needs: batch fields that the algorithm reads anywhere.
        reads_before_update: those that it reads before the update (masks, KL in reward, filters).
        optimizer_steps: steps per batch, epochs times mini-batches.
        dropout_active: the training pass differs from the pass before it even at the same weights.

    Raises ``ConfigError`` for a field that no pass can write.
    """
    reasons: dict[str, str] = {}
    prox, from_logp = _plan_prox(needs, reads_before_update, optimizer_steps, dropout_active, reasons)
    reference = "ref_logp" in needs
    reasons["ref_logp"] = "read by the algorithm" if reference else "left out: nothing reads it"
    greedy = "greedy_rewards" in needs
    reasons["greedy_rewards"] = "read by the algorithm" if greedy else "left out: nothing reads it"
    written = tuple(name for name in sorted(needs) if name in FIELDS and FIELDS[name].writer is not None)
    for name in written:
        reasons[name] = f"written by {FIELDS[name].written_by}"
    known = ROLLOUT_WRITES | REWARD_WRITES | OUTPUTS | {"prox_logp", "ref_logp", "greedy_rewards", *written}
    for name in sorted(set(needs) - known):
        field = FIELDS.get(name)
        if field is None or field.written_by != "Algorithm":
            who = (
                f"only a {field.written_by.lower()} writes it, and no pipeline here has one"
                if field
                else "no such field is declared"
            )
            raise ConfigError(
                f"the algorithm reads '{name}', but {who}; choose parts that do without it{_instead(name)}."
            )
    return Passes(prox, from_logp, reference, greedy, written, reasons)


def _instead(name: str) -> str:
    return " (an advantage such as grpo or reinforce_plus_plus, and no value loss)" if name == "values" else ""


def _plan_prox(
    needs: Collection[str], before: Collection[str], steps: int, dropout: bool, reasons: dict[str, str]
) -> tuple[bool, bool]:
    if "prox_logp" not in needs:
        reasons["prox_logp"] = "left out: nothing reads it"
        return False, False
    if "prox_logp" in before:
        reasons["prox_logp"] = "own pass: read before the update"
    elif steps > 1:
        reasons["prox_logp"] = f"own pass: {steps} optimiser steps for each batch"
    elif dropout:
        reasons["prox_logp"] = "own pass: dropout makes the training pass another policy"
    else:
        reasons["prox_logp"] = "taken from the training pass: one optimiser step, no dropout, not read before"
        return False, True
    return True, False
