"""Checkpoints of a stage: written beside the last one and then renamed, so that a killed run always finds a whole one."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlvlm.engines.train.base import TrainEngine
from rlvlm.errors import DataError

STATE = "state.pt"
_NAME = re.compile(r"step_(\d+)$")


class Checkpoints:
    """The checkpoints of one stage, in folders ``step_000100``.

    Args:
        folder: where they lie.
        keep: how many of the newest are kept.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, max(1, keep)

    def steps(self) -> list[int]:
        """The steps that have a whole checkpoint, ascending."""
        found = (_NAME.match(path.name) for path in self.folder.glob("step_*") if (path / STATE).exists())
        return sorted(int(match[1]) for match in found if match)

    def save(self, step: int, engine: TrainEngine, state: Mapping[str, Any]) -> Path:
        """Writes weights, optimiser and ``state`` as of the end of ``step``, and drops the oldest beyond ``keep``.

        Args:
            state: plain values and tensors: positions, versions, controllers, generators.
        """
        target = self.folder / f"step_{step:06d}"
        partial = self.folder / f".partial_{step:06d}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        engine.save(partial)
        torch.save({"step": step, **state}, partial / STATE)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self.folder / f"step_{old:06d}")
        return target

    def load_newest(self, engine: TrainEngine) -> dict[str, Any] | None:
        """Restores weights and optimiser of the newest checkpoint and returns its state; ``None`` when there is none."""
        steps = self.steps()
        if not steps:
            return None
        newest = self.folder / f"step_{steps[-1]:06d}"
        engine.load(newest)
        try:
            state: dict[str, Any] = torch.load(newest / STATE, weights_only=True)
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
            raise DataError(
                f"checkpoint state '{newest / STATE}' is damaged ({type(error).__name__}); delete that folder."
            ) from error
        return state
