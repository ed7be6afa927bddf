"""Long work in parts, each part a file, so that a killed run goes on and gives the same result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvlm.errors import DataError

_READ = 1 << 14  # bytes of a file's beginning and end that its fingerprint looks at


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
            changed = sorted(name for name in {*before, *asked} if before.get(name) != asked.get(name))
            if changed:
                name = changed[0]
                raise DataError(
                    f"'{self.folder}' holds work with other settings ({name}: {before.get(name)!r}, now {asked.get(name)!r}); "
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


def fingerprint(paths: Iterable[str]) -> str:
    """Hash of files' names, sizes, beginnings and ends: enough to notice other data, and little to read of large files.

    A folder stands for the files in it; a path that is neither (a hub repository) for itself.
    """
    digest = hashlib.blake2b(digest_size=12)
    for path in _files_in(paths):
        digest.update(f"{os.path.basename(path)};".encode())
        if os.path.isfile(path):
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(f"{size};".encode() + file.read(_READ))
                file.seek(max(size - _READ, 0))
                digest.update(file.read(_READ))
    return digest.hexdigest()


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
