"""What of a stage's settings decides its weights: kept with the run, so that no run goes on under other settings unseen."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvlm.errors import ConfigError
from rlvlm.pipelines.config import Stage
from rlvlm.tracking.rundir import package_versions, write_json

FILE = "settings.json"
FREE = ("name", "dir", "trackers", "keep", "save_every", "resume", "sample_rows", "threads", "gates")
"""Keys of ``run`` that decide no weight and may change when a run goes on."""


def decisive(stage: Stage) -> dict[str, Any]:
    """The settings that decide the stage's weights, as plain values by dotted key."""
    tree = dataclasses.asdict(stage)
    for name in FREE:
        del tree["run"][name]
    plain: dict[str, Any] = json.loads(json.dumps(tree, default=str))
    return dict(_flat(plain))


def fingerprint(stage: Stage) -> str:
    """A short hash of the decisive settings, the plug-in files and the versions of packages."""
    plugins = [Path(plugin).read_text() for plugin in stage.plugins if plugin.endswith(".py")]
    text = json.dumps([decisive(stage), plugins, package_versions()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def keep_settings(folder: Path, stage: Stage) -> None:
    """Writes the stage's decisive settings into its folder."""
    write_json(folder / FILE, decisive(stage))


def same_settings(folder: Path, stage: Stage) -> bool:
    """Whether the folder's stage has these settings and may be gone on with; ``False`` where only its length changed.

    Raises ``ConfigError`` naming the first key that differs otherwise.
    """
    stored: Mapping[str, Any] = json.loads((folder / FILE).read_text()) if (folder / FILE).exists() else {}
    if not stored:
        return False
    here = decisive(stage)
    odd = [key for key in sorted({*stored, *here}) if stored.get(key) != here.get(key)]
    others = [key for key in odd if key not in ("run.steps", "run.stop_at", "run.eval_every")]
    if others:
        key = others[0]
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise ConfigError(
            f"the run directory holds stage '{stage.name}' with other settings ({key} is {stored.get(key)!r} there and "
            f"{here.get(key)!r} here{more}); choose another run.name, or start anew with run.resume=never."
        )
    return not odd


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and bool(value)
        pairs += _flat(value, f"{prefix}{key}.") if nested else [(f"{prefix}{key}", value)]
    return pairs
