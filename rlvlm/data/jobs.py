"""Long work in parts, each part a file, so that a killed run goes on and gives the same result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvlm.data.identity import identity
from rlvlm.errors import DataError


class Job:
    """A folder that holds what a piece of work was asked for, and its finished parts.

    Args:
        folder: made when it is missing.
        settings: everything that decides the result; a folder of other settings is refused with ``DataError``.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._parts = self.folder / "parts"
        self._parts.mkdir(exist_ok=True)
        for folder_of_files in (self.folder, self._parts):
            _sweep(folder_of_files)
        asked = json.loads(json.dumps(settings, sort_keys=True, default=str))
        note = self.folder / "job.json"
        if note.exists():
            before = json.loads(note.read_text(encoding="utf-8"))
            then, now = dict(_flat(before)), dict(_flat(asked))
            changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
            if changed:
                name = changed[0]
                raise DataError(
                    f"'{self.folder}' holds work with other settings ({name}: {then.get(name)!r}, now {now.get(name)!r}); "
                    "go on with the same settings, remove that folder to begin anew, or choose another one."
                )
        else:
            write_atomic(note, json.dumps(asked, indent=1, sort_keys=True).encode())

    def part(self, number: int, suffix: str) -> Path:
        """Where a part's result lies once it is finished."""
        return self._parts / f"{number:06d}{suffix}"

    def finished(self, count: int, suffix: str) -> list[bool]:
        """Which of the parts are finished."""
        there = set(os.listdir(self._parts))
        return [f"{number:06d}{suffix}" in there for number in range(count)]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _sweep(folder: Path) -> None:
    """Removes half-written files of processes that are gone."""
    for name in os.listdir(folder):
        if name.endswith(".partial"):
            process = name.split(".")[-2]
            if not (process.isdigit() and os.path.exists(f"/proc/{process}")):
                (folder / name).unlink(missing_ok=True)


def write_atomic(path: str | Path, content: bytes | Callable[[Path], Any]) -> None:
    """Writes a file so that it is there whole or not at all; ``content`` may be a function that writes to a path."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    if callable(content):
        content(partial)
    else:
        partial.write_bytes(content)
    with open(partial, "rb+") as file:
        os.fsync(file.fileno())
    partial.replace(target)


def fingerprints(paths: Iterable[str]) -> dict[str, str]:
    """The size and a hash of each file by its name, as :mod:`rlvlm.data.identity` takes them, so that what changed can be named.

    A folder stands for the files in it; a path that is neither (a hub repository) for itself.
    """
    found: dict[str, str] = {}
    for path in _files_in(paths):
        name, of_file = os.path.basename(path), identity(path)
        while name in found:  # files of one name in several folders
            name += "'"
        found[name] = f"{of_file['size']}-{of_file['hash'][:20]}"
    return found


def _files_in(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        inside = sorted(entry.path for entry in os.scandir(path) if entry.is_file()) if os.path.isdir(path) else [path]
        yield from inside


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
