"""Regularisers: penalties that the Algorithm adds to the policy loss with a weight, aggregated like it.

One is registered with what it acts on: ``loss`` (a penalty [B, L] added to the loss), ``reward`` (a penalty [B, L] taken
off the token rewards before advantages, see ``shaping.py``) or ``weights`` (token weights [B, L] that multiply the
policy loss). A user's own is a function with one of these results and ``@register_regularizer(name, acts_on=…)``; the
mean of a loss penalty is reported as ``mean/<key>``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlvlm.algos.checks import check_token_fields
from rlvlm.algos.registries import KL_ESTIMATORS, register_regularizer


@register_regularizer("kl_to_reference", holds={"estimator": "kl_estimators"})
class KLToReference:
    """KL of the policy to the reference at each token, by one of the KL estimators.

    Elsewhere: ``use_kl_loss``, ``kl_loss_coef``, ``kl_loss_type`` (verl, RLLaVA); ``use_kl_loss``, ``kl_coef``,
    ``kl_penalty`` (EasyR1); ``beta`` (TRL).

    Args:
        estimator: node of the KL estimator.
    """

    def __init__(self, *, estimator: Any = "k3") -> None:
        self.estimator = KL_ESTIMATORS.build(estimator)

    def __call__(self, logp: Tensor, ref_logp: Tensor) -> Tensor:
        """The KL estimate of each token."""
        estimate: Tensor = self.estimator({"logp": logp, "ref_logp": ref_logp})
        return estimate


@register_regularizer("entropy")
def entropy_bonus(entropy: Tensor) -> Tensor:
    """``-H``, minus the entropy of the policy at each token: with a positive weight it is a bonus.

    Elsewhere: ``entropy_coeff`` (verl, RLLaVA); ``entropy_coef`` (TRL).
    """
    check_token_fields(entropy=entropy)
    return -entropy
