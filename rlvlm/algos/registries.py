"""The registries of everything an algorithm is composed of, and what each kind of part may read.

Of a registered function, positional parameters name what it reads and keyword-only parameters are its options
(see ``rlvlm.registry``). Besides batch fields, parts may read:

* ``logp``, ``entropy``, ``value_preds`` [B, L]: outputs of the current pass (losses and regularisers);
* ``scores_by_rule``: the mapping from reward rule to raw scores [B] (advantages and filters);
* ``generator``: the seeded ``torch.Generator`` of the Algorithm (losses and regularisers);
* ``num_tokens``, ``num_sequences``, ``num_prompts``: counts over the whole mini-batch, all ranks and micro-batches
  (aggregations and regularisers);
* ``token_loss`` [B, L]: the map to be aggregated (aggregations);
* ``clean``: the ``ZeroOutside`` of ``loss_mask`` that has put zeros into all fields and outputs that a loss is given: what
  reads it need not clean them again (losses, regularisers, aggregations).
"""

from __future__ import annotations

from rlvlm.fields import FIELDS
from rlvlm.registry import Registry

OUTPUTS = frozenset({"logp", "entropy", "value_preds"})
"""What the current pass of the policy gives, by the names under which parts read it."""

COUNTS = frozenset({"num_tokens", "num_sequences", "num_prompts"})
"""Denominators that parts may read: non-masked tokens, sequences and prompts of the whole mini-batch."""

SCOPES = ("token", "sequence", "minibatch")
"""How far a loss looks, from near to far: one token, one whole sequence, or the whole mini-batch of an optimiser step."""


def _before_update() -> set[str]:
    return {*FIELDS, "scores_by_rule", "reward_details"}


def _in_loss() -> set[str]:
    return {*FIELDS, *OUTPUTS, *COUNTS, "generator", "clean"}


def _aggregation_reads() -> set[str]:
    return {*FIELDS, *COUNTS, "token_loss", "clean"}


ADVANTAGES = Registry(
    "advantage",
    "advantages",
    builtins=("rlvlm.algos.advantages.group", "rlvlm.algos.advantages.whitened", "rlvlm.algos.advantages.returns"),
    readable=_before_update,
    traits={"group_baseline": False, "names_rules": None, "acts_with": {}},
)
"""Estimators of advantages. The trait ``group_baseline`` says that a sample is compared with its group, so that by default
a group of equal rewards, and so a group of one, gets exactly 0. ``names_rules`` is the option whose keys name reward rules.
``acts_with`` says of an option that does nothing by itself with which values of another one it acts:
``{"eps": ("std", ("group", "batch"))}``."""

POLICY_LOSSES = Registry(
    "policy loss",
    "policy_losses",
    builtins=(
        "rlvlm.algos.policy_losses.clipping",
        "rlvlm.algos.policy_losses.reinforce",
        "rlvlm.algos.policy_losses.sequence",
        "rlvlm.algos.policy_losses.soft",
        "rlvlm.algos.policy_losses.divergence",
        "rlvlm.algos.policy_losses.covariance",
    ),
    readable=_in_loss,
    traits={"scope": "token", "weighs_behaviour": False},
)
VALUE_LOSSES = Registry(
    "value loss",
    "value_losses",
    builtins=("rlvlm.algos.value_losses",),
    readable=_in_loss,
    traits={"scope": "token"},
)
KL_ESTIMATORS = Registry(
    "KL estimator", "kl_estimators", builtins=("rlvlm.algos.kl",), readable=lambda: {"logp", "ref_logp"}
)
REGULARIZERS = Registry(
    "regularizer",
    "regularizers",
    builtins=("rlvlm.algos.regularizers", "rlvlm.algos.shaping"),
    readable=_in_loss,
    traits={"scope": "token", "acts_on": "loss", "holds": {}},
)
AGGREGATIONS = Registry(
    "aggregation", "aggregations", builtins=("rlvlm.algos.aggregation",), readable=_aggregation_reads
)
CORRECTIONS = Registry(
    "correction",
    "corrections",
    builtins=("rlvlm.algos.correction",),
    readable=_before_update,
    traits={"acts_with": {}},
)
"""Off-policy corrections. The trait ``acts_with`` is as of an advantage."""
FILTERS = Registry(
    "filter",
    "filters",
    builtins=("rlvlm.algos.filters",),
    readable=_before_update,
    traits={"names_reward": None, "compares": False},
)
"""Group filters. The trait ``names_reward`` is the option that names a reward: ``rewards``, ``scores``, a rule, or a number
that a rule tells beside its score. ``compares`` says that the samples of a group are compared, so that a group of one is dropped."""
CONTROLLERS = Registry(
    "controller",
    "controllers",
    builtins=("rlvlm.algos.controllers",),
    readable=lambda: {"weight", "measured", "num_samples"},
)

register_advantage = ADVANTAGES.register
register_policy_loss = POLICY_LOSSES.register
register_value_loss = VALUE_LOSSES.register
register_kl = KL_ESTIMATORS.register
register_regularizer = REGULARIZERS.register
register_aggregation = AGGREGATIONS.register
register_correction = CORRECTIONS.register
register_filter = FILTERS.register
register_controller = CONTROLLERS.register
