"""Advantages, losses, regularisers, corrections, aggregations and filters: pure functions of tensors, found by name."""

from rlvlm._lazy import attach

_REGISTRIES = "rlvlm.algos.registries"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ADVANTAGES": _REGISTRIES,
        "POLICY_LOSSES": _REGISTRIES,
        "VALUE_LOSSES": _REGISTRIES,
        "KL_ESTIMATORS": _REGISTRIES,
        "REGULARIZERS": _REGISTRIES,
        "AGGREGATIONS": _REGISTRIES,
        "CORRECTIONS": _REGISTRIES,
        "FILTERS": _REGISTRIES,
        "CONTROLLERS": _REGISTRIES,
        "register_advantage": _REGISTRIES,
        "register_policy_loss": _REGISTRIES,
        "register_value_loss": _REGISTRIES,
        "register_kl": _REGISTRIES,
        "register_regularizer": _REGISTRIES,
        "register_aggregation": _REGISTRIES,
        "register_correction": _REGISTRIES,
        "register_filter": _REGISTRIES,
        "register_controller": _REGISTRIES,
        "AdvantageEstimate": "rlvlm.algos.results",
        "Correction": "rlvlm.algos.results",
        "TokenLoss": "rlvlm.algos.results",
    },
)
