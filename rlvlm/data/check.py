"""``rlvlm data check``: what a source holds, and what is wrong with it, before a run finds out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvlm.data.config import DataConfig
from rlvlm.data.dialogues import dialogue_turns
from rlvlm.data.loader import PromptAssembler, as_prompt
from rlvlm.data.media import Picture, PictureLimits
from rlvlm.data.progress import Progress
from rlvlm.data.prompts import PromptFamily, template_of
from rlvlm.data.sources import Source
from rlvlm.data.supervised import DialogueAssembler
from rlvlm.errors import DataError

FAULTS_SHOWN = 10
_BAR = 40  # characters of the longest bar
_BINS = 12


@dataclass
class CheckReport:
    """What was found.

    Attributes:
        rows, usable, filtered_out: numbers of rows read, of those that a loader would give out, and that ``where`` left out.
        formats: rows of each format.
        pictures: pictures by their number in a row.
        sizes: pictures by (width, height).
        lengths: prompts by tokens (by characters without a model).
        faults: the first ten, each with file and row.
        fault_count: all of them.
        unit: ``tokens`` or ``characters``.
    """

    name: str
    unit: str
    rows: int = 0
    usable: int = 0
    filtered_out: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    pictures: Counter[int] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Numbers for machines."""
        return {
            "source": self.name,
            "rows": self.rows,
            "usable": self.usable,
            "filtered_out": self.filtered_out,
            "formats": dict(self.formats),
            "pictures": self.picture_count,
            self.unit: dict(zip(("min", "median", "p95", "max"), quantiles(self.lengths), strict=True)),
            "faults": self.fault_count,
            "first_faults": self.faults,
        }

    @property
    def picture_count(self) -> int:
        """Pictures in all rows."""
        return sum(count * rows for count, rows in self.pictures.items())


def check_source(
    source: Source,
    config: DataConfig,
    family: PromptFamily | None = None,
    *,
    decode: bool = False,
    dialogues: bool = False,
    progress: bool = True,
) -> CheckReport:
    """Reads every row of a source as a loader would, and notes faults instead of stopping; memory does not grow with the rows.

    Args:
        family: counts tokens; without one, characters are counted.
        decode: also decode every picture's pixels, which finds files that are cut off.
        dialogues: read rows as dialogues to learn from, not as prompts.
    """
    report = CheckReport(source.name, "characters" if family is None else "tokens")
    limits = source.limits(config)
    measure = _Measure(config, source, family, dialogues)
    with Progress("checking", len(source), quiet=not progress) as shown:
        for index in range(len(source)):
            report.rows += 1
            origin = source.origin(index)
            try:
                _check_row(source, index, origin, limits, measure, decode, report)
            except DataError as error:
                report.fault_count += 1
                if len(report.faults) < FAULTS_SHOWN:
                    report.faults.append(str(error) if str(error).startswith(origin) else f"{origin}: {error}")
            shown.add()
    return report


def _check_row(
    source: Source, index: int, origin: str, limits: PictureLimits, measure: _Measure, decode: bool, report: CheckReport
) -> None:
    record, format = source.read(index)
    if record is None:
        report.filtered_out += 1
        return
    report.formats[format] += 1
    pictures = [Picture(image, limits, origin) for image in record["images"]]
    report.pictures[len(pictures)] += 1
    for picture in pictures:
        report.sizes[picture.stored_size] += 1
        if decode:
            picture.decode()
    report.lengths[measure(record, pictures)] += 1
    report.usable += 1


class _Measure:
    """A record's length, in tokens with a family and in characters without; of a packed bin, that of all its samples."""

    def __init__(self, config: DataConfig, source: Source, family: PromptFamily | None, dialogues: bool) -> None:
        self._config, self._dialogues = config, dialogues
        self._template = source.config.template or config.template
        self._prompts = None if family is None else PromptAssembler(config, family)
        self._assembler = None if family is None else DialogueAssembler(config, family)

    def __call__(self, record: Mapping[str, Any], pictures: list[Picture]) -> int:
        if self._dialogues and self._assembler is not None:
            return sum(len(row.dialogue.ids) for row in self._assembler.encode(record, pictures, self._template)[1])
        if not self._dialogues and self._prompts is not None:
            return len(self._prompts.encode(record, pictures, self._template)[1][0])
        if self._dialogues and "samples" in record:
            return sum(len(turn["content"]) for sample in record["samples"] for turn in sample["messages"])
        if self._dialogues:
            turns = dialogue_turns(record, template_of(record, self._template), self._config.system)
        else:
            turns, _ = as_prompt(record, self._template, self._config.system)
        return sum(len(turn["content"]) for turn in turns)


def quantiles(counts: Mapping[int, int], shares: tuple[float, ...] = (0.0, 0.5, 0.95, 1.0)) -> list[int]:
    """Values below which these shares of the counted values lie; zeros when nothing was counted."""
    total = sum(counts.values())
    if not total:
        return [0] * len(shares)
    found, seen, values = [], 0, iter(sorted(counts.items()))
    value = 0
    for share in shares:
        while seen < max(1, share * total):
            value, count = next(values)
            seen += count
        found.append(value)
    return found


def histogram(counts: Mapping[int, int], bins: int = _BINS) -> list[tuple[int, int, int]]:
    """(low, high, count) of equally wide bins over the counted values, both ends included."""
    if not counts:
        return []
    low, high = min(counts), max(counts)
    width = max(1, -(-(high - low + 1) // bins))
    tally: Counter[int] = Counter()
    for value, count in counts.items():
        tally[(value - low) // width] += count
    return [
        (low + place * width, low + (place + 1) * width - 1, tally[place])
        for place in range(-(-(high - low + 1) // width))
    ]


def as_text(report: CheckReport) -> str:
    """The report for a terminal."""
    lines = [f"source    {report.name}"]
    lines.append(
        f"formats   {', '.join(f'{name} ({count:,})' for name, count in report.formats.most_common()) or 'none told'}"
    )
    left_out = f", {report.filtered_out:,} left out by 'where'" if report.filtered_out else ""
    lines.append(f"rows      {report.rows:,}: {report.usable:,} usable, {report.fault_count:,} faults{left_out}")
    if not report.usable:
        lines.append(
            "          there is nothing to train on; look at the path, and at 'where' and the limits if they are set."
        )
    lines.append(f"pictures  {report.picture_count:,} ({_per_row(report.pictures)})")
    if report.sizes:
        areas: Counter[int] = Counter()
        for (width, height), count in report.sizes.items():
            areas[width * height] += count
        least, middle, _, most = quantiles(areas)
        common = ", ".join(f"{w}x{h} ({count:,})" for (w, h), count in report.sizes.most_common(3))
        lines.append(f"sizes     {least:,} to {most:,} pixels, median {middle:,}; most often {common}")
    if report.unit == "characters":
        lines.append(
            "          without --model neither tokens nor whether the model takes pictures of these sizes were checked"
        )
    if report.lengths:
        least, middle, high, most = quantiles(report.lengths)
        lines.append(f"{report.unit:<9} min {least:,}, median {middle:,}, 95 % below {high:,}, max {most:,}")
        rows = histogram(report.lengths)
        tallest = max(count for _, _, count in rows)
        for low, top, count in rows:
            lines.append(f"  {low:>7,} – {top:>7,}  {count:>10,}  {'█' * round(_BAR * count / tallest)}")
    if report.faults:
        lines.append(f"faults    the first {len(report.faults)} of {report.fault_count:,}:")
        lines += [f"  {fault}" for fault in report.faults]
    return "\n".join(lines)


def _per_row(pictures: Mapping[int, int]) -> str:
    return ", ".join(f"{count} in {rows:,} rows" for count, rows in sorted(pictures.items())[:6]) or "none"
