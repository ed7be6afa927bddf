"""Data: records from any file or generator, pictures decoded when used, prompts, and batches of them.

Names are loaded when they are first used, so that the settings can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "DataConfig": "config",
    "SourceConfig": "config",
    "Loader": "loader",
    "Picture": "media",
    "PictureLimits": "media",
    "TEMPLATES": "prompts",
    "register_format": "records",
    "register_source": "sources",
    "open_sources": "sources",
    "supervised_loader": "supervised",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from rlvlm.errors import nearest

        raise AttributeError(f"module 'rlvlm.data' has no attribute '{name}'{nearest(name, _HOME)}")
    return getattr(importlib.import_module(f"rlvlm.data.{_HOME[name]}"), name)
