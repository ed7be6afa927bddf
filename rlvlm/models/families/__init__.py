"""Model families, one file each."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Family": "rlvlm.models.families.base",
        "FAMILIES": "rlvlm.models.families.base",
        "register_family": "rlvlm.models.families.base",
        "family_of": "rlvlm.models.families.base",
    },
)
