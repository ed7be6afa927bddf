"""Checkpoints of a stage: written beside the last one and then renamed, so that a killed run always finds a whole one."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlvlm.engines.train.base import TrainEngine
from rlvlm.errors import DataError
from rlvlm.tracking.rundir import PARTIAL, write_json
from rlvlm.tracking.storage import saving

STATE, MANIFEST = "state.pt", "files.json"
_LOG = logging.getLogger("rlvlm")
_NAME = re.compile(r"step_(\d+)$")
_BLOCK = 1 << 22


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
        found = (_NAME.match(path.name) for path in self.folder.glob("step_*") if (path / MANIFEST).exists())
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"step_{step:06d}"

    def save(self, step: int, engine: TrainEngine, state: Mapping[str, Any]) -> Path:
        """Writes weights, optimiser and ``state`` as of the end of ``step``, and drops the oldest beyond ``keep``.

        Raises ``StorageError`` where it can't be written; the checkpoints before stay.

        Args:
            state: plain values and tensors: positions, versions, controllers, generators.
        """
        target = self.path(step)
        partial = self.folder / f".{target.name}{PARTIAL}"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with saving(f"the checkpoint of step {step}", self.folder):
                partial.mkdir(parents=True)
                engine.save(partial)
                torch.save({"step": step, **state}, partial / STATE)
                write_json(partial / MANIFEST, {name: _sum(partial / name, sync=True) for name in _names(partial)})
                shutil.rmtree(target, ignore_errors=True)
                partial.rename(target)
                sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)  # what is half written takes room that the next attempt needs
            raise
        self.prune(self.keep)
        return target

    def prune(self, keep: int) -> None:
        """Deletes all but the newest ``keep`` checkpoints."""
        for old in self.steps()[: -keep or None]:
            shutil.rmtree(self.path(old))

    def load_newest(self, engine: TrainEngine) -> dict[str, Any] | None:
        """Restores weights and optimiser of the newest good checkpoint and returns its state; ``None`` when there is none.

        A damaged one is named in the log, set aside and passed over. Raises ``DataError`` when all are damaged.
        """
        damaged: list[tuple[Path, str]] = []
        for step in reversed(self.steps()):
            folder = self.path(step)
            fault = damage(folder)
            if fault is not None:
                damaged.append((folder, fault))
                continue
            self._set_aside(damaged, folder)
            engine.load(folder)
            state: dict[str, Any] = torch.load(folder / STATE, weights_only=True)
            return state
        if damaged:
            told = "; ".join(f"'{folder}': {fault}" for folder, fault in damaged)
            raise DataError(
                f"no checkpoint can be read ({told}); restore one of these folders, or start anew with run.resume=never."
            )
        return None

    def _set_aside(self, damaged: list[tuple[Path, str]], good: Path) -> None:
        for folder, fault in damaged:
            aside = folder.with_name(f"{folder.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            _LOG.warning(
                "checkpoint '%s' is damaged (%s); it was renamed to '%s' and the run goes on from '%s'.",
                folder, fault, aside.name, good.name,
            )  # fmt: skip


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files against their recorded sizes and checksums; ``None`` when nothing is."""
    try:
        recorded = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, told in recorded.items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if (folder / name).stat().st_size != told["size"]:
                return f"{name} has {(folder / name).stat().st_size} bytes of {told['size']}"
            if _sum(folder / name) != told:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{MANIFEST} can't be read, {type(error).__name__}"
    return None


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder outlast a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _sum(path: Path, sync: bool = False) -> dict[str, int]:
    """Size and CRC-32 of a file."""
    size = checksum = 0
    with path.open("rb+" if sync else "rb") as file:
        if sync:
            os.fsync(file.fileno())
        while block := file.read(_BLOCK):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return {"size": size, "crc32": checksum}
