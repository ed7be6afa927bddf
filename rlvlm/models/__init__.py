"""Policies: vision-language models as one module with one forward."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ModelConfig": "rlvlm.models.config",
        "LoraConfig": "rlvlm.models.config",
        "TokenOutputs": "rlvlm.models.outputs",
        "Rows": "rlvlm.models.rows",
        "Policy": "rlvlm.models.policy",
        "load_policy": "rlvlm.models.loading",
        "register_model_builder": "rlvlm.models.loading",
        "register_family": "rlvlm.models.families.base",
    },
)
