"""Sets what must be set before torch is imported, and puts back what a test changes of its process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads cost 12x on a busy machine
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_LOGGERS = ("", "rlvlm", "hydra")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands set up logging for a process of their own; a test that runs one in this process leaves no trace."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [([*logger.handlers], logger.level, logger.propagate, logger.disabled) for logger in loggers]
    yield
    for logger, (handlers, level, propagate, disabled) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate, logger.disabled = handlers, propagate, disabled
        logger.setLevel(level)
