"""Answers to the same few pictures before and after training, kept for the report.

``samples.json`` holds texts and token probabilities, ``samples/`` the pictures as PNG files, so that a report can be
made again from the run directory alone.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlvlm.errors import DataError
from rlvlm.tracking.rundir import RunDir, plain, read_json, write_atomically, write_json

MAX_SIDE = 448
"""Pictures are shrunk to this many pixels on the longer side: a report of a few samples stays under a few MB."""


_WITHOUT = "delete it: the report then shows no answers of evaluations before now"


@dataclass(frozen=True)
class Answer:
    """One sampled answer: tokens as text with their probabilities, its score, whether it counts as right, all rules' scores."""

    tokens: tuple[tuple[str, float], ...]
    score: float | None = None
    correct: bool | None = None
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The answer in one piece."""
        return "".join(token for token, _ in self.tokens)


@dataclass
class Sample:
    """One question with its pictures (paths inside the run directory) and the answers of each moment (``before``, ``after``)."""

    uid: str
    question: str
    expected: str
    pictures: list[str] = field(default_factory=list)
    answers: dict[str, list[Answer]] = field(default_factory=dict)


class SampleBook:
    """The samples of one run: filled at each moment, written whole after each."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._samples = {sample.uid: sample for sample in load_samples(run)}

    def add(
        self,
        moment: str,
        uid: str,
        question: str,
        expected: str,
        pictures: Sequence[Any],
        answers: Sequence[Answer],
    ) -> None:
        """Keeps the answers that ``moment`` (``"before"``, ``"after"``) gave to prompt ``uid``.

        Args:
            pictures: PIL images, or encoded image bytes; written once per distinct picture.
        """
        sample = self._samples.get(uid)
        if sample is None:
            sample = Sample(uid, question, expected, [keep_picture(self._run, picture) for picture in pictures])
            self._samples[uid] = sample
        sample.answers[moment] = list(answers)

    def write(self) -> None:
        """Writes ``samples.json``."""
        write_json(self._run.samples, [asdict(sample) for sample in self._samples.values()])


class TrainingBook:
    """Answers to training prompts, with all their scores: one line of ``training_samples.jsonl`` for each group that is kept."""

    def __init__(self, run: RunDir) -> None:
        self._run = run

    def add(
        self,
        stage: str,
        step: int,
        uid: str,
        question: str,
        expected: str,
        pictures: Sequence[Any],
        answers: Sequence[Answer],
    ) -> None:
        """Adds a group."""
        kept = [keep_picture(self._run, picture) for picture in pictures]
        whole = [Answer(((answer.text, 0.0),), answer.score, answer.correct, answer.scores) for answer in answers]
        sample = Sample(f"{stage}/{step}/{uid}", question, expected, kept, {f"{stage}, step {step}": whole})
        with self._run.training_samples.open("a", encoding="utf-8", errors="replace") as file:
            file.write(json.dumps(plain(asdict(sample)), ensure_ascii=False) + "\n")


def drop_training_samples(run: RunDir, stage: str, after: int) -> None:
    """Takes the groups of ``stage`` behind step ``after`` out of ``training_samples.jsonl``, and a line that was cut short."""
    if not run.training_samples.exists():
        return
    text = run.training_samples.read_text(encoding="utf-8", errors="replace")
    kept = "".join(f"{line}\n" for line in text.split("\n") if _stays(line, stage, after))
    if kept != text:
        write_atomically(run.training_samples, kept)


def _stays(line: str, stage: str, after: int) -> bool:
    try:
        of, step, _ = str(json.loads(line)["uid"]).split("/", 2)  # no stage's name has a slash
    except (ValueError, KeyError, TypeError):
        return False
    return of != stage or int(step) <= after


def load_training_samples(run: RunDir) -> list[Sample]:
    """The training groups that a run directory holds, in the order of their steps; a line cut short by a kill is passed over."""
    if not run.training_samples.exists():
        return []
    found: dict[str, Sample] = {}
    for line in run.training_samples.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            sample = _sample(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        found.pop(sample.uid, None)
        found[sample.uid] = sample
    return list(found.values())


def keep_picture(run: RunDir, picture: Any) -> str:
    """Writes a picture into ``samples/`` unless it is there, and returns its path inside the run directory."""
    raw = _png(picture)
    path = run.path / "samples" / f"{hashlib.sha256(raw).hexdigest()[:16]}.png"
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        write_atomically(path, raw)
    return f"samples/{path.name}"


def load_samples(run: RunDir) -> list[Sample]:
    """The samples that a run directory holds; none when it has no ``samples.json``."""
    if not run.samples.exists():
        return []
    try:
        return [_sample(entry) for entry in read_json(run.samples, list, _WITHOUT)]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"'{run.samples}' holds something else than samples; restore it, or {_WITHOUT}.") from error


def _sample(entry: Mapping[str, Any]) -> Sample:
    answers = {
        moment: [
            Answer(
                tuple((str(text), float(prob or 0.0)) for text, prob in one["tokens"]),
                one["score"],
                one["correct"],
                dict(one.get("scores") or {}),
            )
            for one in listed
        ]
        for moment, listed in entry["answers"].items()
    }
    return Sample(entry["uid"], entry["question"], entry["expected"], list(entry["pictures"]), answers)


def _png(picture: Any) -> bytes:
    from rlvlm.data.pixels import open_picture  # not at the top: reading samples back needs no imaging

    image = open_picture(io.BytesIO(picture)) if isinstance(picture, bytes) else picture
    image = image.convert("RGB")
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
