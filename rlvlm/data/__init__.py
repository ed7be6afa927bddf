"""Data: records from any file or generator, pictures decoded when used, prompts, and batches of them."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "DataConfig": "rlvlm.data.config",
        "SourceConfig": "rlvlm.data.config",
        "Loader": "rlvlm.data.loader",
        "Picture": "rlvlm.data.media",
        "PictureLimits": "rlvlm.data.media",
        "TEMPLATES": "rlvlm.data.prompts",
        "register_format": "rlvlm.data.records",
        "register_source": "rlvlm.data.sources",
        "open_sources": "rlvlm.data.sources",
        "supervised_loader": "rlvlm.data.supervised",
    },
)
