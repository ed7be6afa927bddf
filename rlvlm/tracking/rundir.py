"""The run directory: ``config.yaml``, ``metrics.jsonl``, ``samples.json``, ``summary.json``, ``report.html``, ``checkpoints/``.

Whole files are written atomically: a reader, or a run killed half-way, never sees half a file.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rlvlm.errors import DataError
from rlvlm.tracking import lock
from rlvlm.tracking.storage import writing

PARTIAL = ".partial"
"""How the name of a file ends that is still being written."""
_PACKAGES = ("rlvlm", "torch", "transformers", "tensordict", "peft", "vllm", "sglang", "deepspeed", "flash-attn", "ray")


@dataclass(frozen=True)
class RunDir:
    """Where one run keeps its files."""

    path: Path

    @classmethod
    def create(cls, path: str | Path) -> RunDir:
        """Makes the folder (and its parents) when it is not there; an existing one is gone on with."""
        run = cls(Path(path).expanduser().absolute())
        if run.path.exists() and not run.path.is_dir():
            raise DataError(f"the run directory '{run.path}' is a file; choose another with run.dir.")
        with writing(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
        return run

    @classmethod
    def of_config(cls, config: Path) -> RunDir | None:
        """The run that a ``config.yaml`` was written for: that of its own folder, if a run has begun there."""
        run = cls(config.absolute().parent)
        return run if config.name == run.config.name and (run.path / lock.FILE).exists() else None

    @property
    def config(self) -> Path:
        """The composed config, as it ran."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object per step: ``stage``, ``step`` and the metrics."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What the run achieved, in one JSON object."""
        return self.path / "summary.json"

    @property
    def samples(self) -> Path:
        """Sampled answers before and after; their pictures lie in ``samples/``."""
        return self.path / "samples.json"

    @property
    def training_samples(self) -> Path:
        """Answers to training prompts of some steps, with all scores: a JSON object for each group."""
        return self.path / "training_samples.jsonl"

    @property
    def report(self) -> Path:
        """The report, one self-contained page."""
        return self.path / "report.html"

    @property
    def checkpoints(self) -> Path:
        """The folder of saved states."""
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        """The finished weights, as ``save_pretrained`` writes them."""
        return self.path / "policy"

    @property
    def id(self) -> str:
        """Tells this run from every other, on any machine; the same when it is resumed."""
        path = self.path / ".id"
        if not path.exists():
            name = "".join(letter if letter.isalnum() else "-" for letter in self.title)[-48:]
            write_atomically(path, f"{name}-{uuid.uuid4().hex[:8]}")
        return path.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """The name that people know the run by; a sweep's jobs are called ``sweep/0``, ``sweep/1``, …"""
        name = self.path.name
        return f"{self.path.parent.name}/{name}" if name.isdigit() else name

    def sweep(self) -> None:
        """Deletes what a killed process had only half written; the lock must be held."""
        for path in self.path.rglob(f".*{PARTIAL}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Deletes what an earlier run left: its files by name, and nothing else that lies in the folder."""
        for path in (self.metrics, self.samples, self.training_samples, self.summary, self.report, self.path / ".id"):
            path.unlink(missing_ok=True)
        for name in ("stages", "samples", "checkpoints", "policy", "tensorboard"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def stage(self, name: str) -> Path:
        """The folder of a stage's own; whoever writes there first makes it."""
        return self.path / "stages" / name


def fresh_run_path(base: str | Path, name: str, now: datetime | None = None) -> Path:
    """A path ``base/name-YYYYmmdd-HHMMSS`` that is not taken yet (``-2``, ``-3``, … after runs of the same second)."""
    stem = f"{name}-{(now or datetime.now()):%Y%m%d-%H%M%S}"
    candidates = (Path(base) / (stem if count == 1 else f"{stem}-{count}") for count in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def write_atomically(path: Path, data: str | bytes) -> None:
    """Writes a whole file under another name beside it and then renames it over ``path``."""
    raw = data.encode("utf-8", errors="replace") if isinstance(data, str) else data  # a model may emit lone surrogates
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that only the owner may read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def link_folder(source: Path, target: Path, *, link: bool = True) -> None:
    """Makes ``target`` a folder with the files of ``source``: the same files by hard links where the file system has them.

    Args:
        link: ``False`` copies.
    """
    partial = target.with_name(f".{target.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, copy_function=_link if link else shutil.copy2)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
    return target


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON atomically; a number that JSON can't spell (NaN, infinity) becomes null."""
    write_atomically(path, json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, kind: type, remedy: str) -> Any:
    """What a JSON file of a run directory holds; raises ``DataError`` with its name and the remedy for a damaged one.

    Args:
        kind: ``dict`` or ``list``, what it must hold.
        remedy: what to do, as the end of a sentence.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"'{path}' can't be read ({type(error).__name__}); restore it, or {remedy}.") from error
    if not isinstance(found, kind):
        raise DataError(
            f"'{path}' holds a {type(found).__name__} instead of a {kind.__name__}; restore it, or {remedy}."
        )
    return found


def plain(value: Any) -> Any:
    """The JSON form of numbers, tensors of one element, mappings and sequences; non-finite floats become ``None``."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, (Path, datetime)):
        return str(value)
    number = float(value)
    return number if math.isfinite(number) else None


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a ``metrics.jsonl``; nothing when there is no file, and a last line cut short by a kill is passed over."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise DataError(
                f"line {number} of '{path}' is not JSON ({error}); restore the file, or delete that line."
            ) from error
        if not isinstance(record, dict):
            raise DataError(f"line {number} of '{path}' is no record; restore the file, or delete that line.")
        yield record


def drop_metrics(path: Path, stage: str, after: int) -> None:
    """Takes the records of ``stage`` behind step ``after`` out of a ``metrics.jsonl``, and a last line that was cut short."""
    if not path.exists():
        return
    kept = [record for record in read_metrics(path) if record.get("stage") != stage or record["step"] <= after]
    text = "".join(json.dumps(record) + "\n" for record in kept)
    if text != path.read_text(encoding="utf-8", errors="replace"):
        write_atomically(path, text)


@dataclass
class Summary:
    """What ``summary.json`` holds. Accuracies are shares in 0..1; ``None`` where nothing was measured.

    ``accuracy_*`` is sampled at the temperature of training, which is what RL optimises; ``greedy_*`` takes the most
    likely token each time. ``seconds`` are totals per phase over the stage, ``train_seconds`` the wall-clock time of all
    stages without the evaluations before and after. ``details`` is for what a pipeline has to add.
    """

    recipe: str
    status: str = "running"
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    greedy_before: float | None = None
    greedy_after: float | None = None
    train_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    seed: int = 0
    versions: dict[str, str] = field(default_factory=lambda: package_versions())
    details: dict[str, Any] = field(default_factory=dict)
    started: str = field(default_factory=lambda: f"{datetime.now():%Y-%m-%d %H:%M}")
    model: str = ""

    def write(self, run: RunDir) -> None:
        """Writes ``summary.json``."""
        write_json(run.summary, asdict(self))


def read_summary(run: RunDir) -> dict[str, Any]:
    """What ``summary.json`` holds; empty when there is none yet."""
    return read_json(run.summary, dict, "delete it: it is written anew") if run.summary.exists() else {}


def package_versions() -> dict[str, str]:
    """Versions of Python, of rlvlm and of the packages that decide its numbers, as far as they are installed."""
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _umask() -> int:
    mask = os.umask(0)  # the only way to read it is to set it
    os.umask(mask)
    return mask
