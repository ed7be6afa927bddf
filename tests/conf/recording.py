"""Settings that note which of their keys are read, and by whom."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

_NO_READERS = ("dataclasses", "copy", "rlvlm.conf", "rlvlm.ranges", "tests.conf")
"""Modules that go through every field whatever it means: copying, comparing, checking and writing out is no reading."""


def record_reads(config: Any, reads: set[str], path: str = "") -> Any:
    """The same settings, whose dotted keys go into ``reads`` when something reads them; copies of them record too.

    Reads in a ``__post_init__`` don't count: a key that is only checked is a dead key.
    """
    names = {entry.name for entry in dataclasses.fields(config)}
    for name in names:
        value = getattr(config, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            record_reads(value, reads, f"{path}{name}.")

    class Recording(type(config)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name in names and _is_reader(sys._getframe(1)):
                reads.add(path + name)
            return object.__getattribute__(self, name)

    Recording.__name__ = Recording.__qualname__ = type(config).__name__
    config.__class__ = Recording
    return config


def _is_reader(frame: Any) -> bool:
    module = frame.f_globals.get("__name__", "")
    return not module.startswith(_NO_READERS) and frame.f_code.co_name not in ("__post_init__", "__repr__", "__eq__")
