"""Settings of the data: where records come from and how they become prompts. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rlvlm.errors import ConfigError, nearest
from rlvlm.ranges import above, at_least, between, check_ranges, one_of


@dataclass
class DataConfig:
    """Sources, prompt template, picture limits and the batch of prompts.

    Attributes:
        train: a source, or a list of sources to mix: a path, the name of a registered source, or a mapping of
            :class:`SourceConfig` keys and options of the source.
        eval: the same for held-out records; read once, in order.
        template: ``answer_only``, ``think_answer``, ``boxed``, a jinja file, or jinja text with ``{{ problem }}``;
            ``None`` leaves the problem as it is. A record that names its own template is given that one.
        system: system message; ``None`` takes the template's own.
        image_folder: pictures named in records are looked for here; ``None`` is the folder of each data file.
        allow_outside: whether a picture's path may lead outside that folder.
        columns: our column names to those of the files, such as ``{"problem": "question", "answer": "label"}``.
        min_pixels, max_pixels: smaller pictures are scaled up and larger ones down to these (width times height), the
            same for trainer and engine.
        max_decode_pixels: a picture whose header states more is refused before it is decoded; at most 178,956,970, where Pillow stops.
        max_prompt_tokens: longest expanded prompt, in tokens; ``None`` sets no limit.
        over_long: a longer prompt is left out and counted (``drop``) or stops the run (``raise``).
        on_bad_row: an unusable row stops the run (``stop``) or is left out and counted (``skip``).
        prompts_per_step: prompts of one batch, over all ranks.
        shuffle: whether training records are drawn in a random order, another one each epoch.
        prefetch: batches prepared ahead in a thread; 0 prepares each one when it is asked for.
        cache_mb: memory for processed pictures that come again, in MiB; a run's memory grows by it until it is full, for
            training and held-out pictures each. 0 keeps none.
        file_cache_mb: memory for decoded rows of parquet and Arrow files, all files of a process together, in MiB; what
            is larger is unpacked to the cache folder and memory-mapped.
    """

    train: Any = None
    eval: Any = None
    template: str | None = "think_answer"
    system: str | None = None
    image_folder: str | None = None
    allow_outside: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    min_pixels: int | None = None
    max_pixels: int | None = None
    max_decode_pixels: int = 89_478_485
    max_prompt_tokens: int | None = None
    over_long: str = "drop"
    on_bad_row: str = "stop"
    prompts_per_step: int = 32
    shuffle: bool = True
    prefetch: int = 1
    cache_mb: int = 256
    file_cache_mb: int = 512

    def __post_init__(self) -> None:
        check_ranges(
            "data",
            self,
            one_of(("drop", "raise"), "over_long"),
            one_of(("stop", "skip"), "on_bad_row"),
            between(1, 178_956_970, "max_decode_pixels"),
            at_least(1, "prompts_per_step", "min_pixels", "max_pixels", "max_prompt_tokens"),
            at_least(0, "prefetch", "cache_mb", "file_cache_mb"),
        )
        least, most = self.min_pixels, self.max_pixels
        if isinstance(least, int) and isinstance(most, int) and least > most:
            raise ConfigError(
                f"data.min_pixels ({least}) is above data.max_pixels ({most}); lower the one or raise the other."
            )
        for split in ("train", "eval"):
            read_sources(getattr(self, split), f"data.{split}")


@dataclass
class SourceConfig:
    """One source of records.

    Attributes:
        path: a file, a folder, ``folder@split`` or ``repo@split``; ``None`` for sources that make their records.
        name: the registered source; ``None`` tells it from the path.
        format: what a row means, a registered format's name or node; ``None`` tells it from the columns.
        weight: share of the draws against the other sources; with none given, all records are one pool.
        where: only records whose columns match: ``{column: value, column: [values], column: {min: …, max: …}}``.
        rows: a parquet file with a ``row`` column (as ``data select`` and ``data balance`` write): only these, in its order.
        limit: only the first so many rows.
        template, image_folder, columns: as in :class:`DataConfig`, for this source.
        options: what else the mapping held: options of the registered source.
    """

    path: str | None = None
    name: str | None = None
    format: Any = None
    weight: float | None = None
    where: dict[str, Any] = field(default_factory=dict)
    rows: str | None = None
    limit: int | None = None
    template: str | None = None
    image_folder: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def read_sources(node: Any, key: str = "data.train") -> list[SourceConfig]:
    """The sources that a config node names: none, one, or a list of them.

    Raises ``ConfigError`` for a node that is neither a string nor a mapping, a mapping with neither path nor name, a
    weight that isn't positive, or weights for only some of the sources.
    """
    if node is None:
        return []
    nodes = list(node) if not isinstance(node, (str, Mapping)) and hasattr(node, "__iter__") else [node]
    sources = [_read_source(one, key) for one in nodes]
    weighted = [source for source in sources if source.weight is not None]
    if weighted and len(weighted) != len(sources):
        raise ConfigError(
            f"{key} has weights for {len(weighted)} of its {len(sources)} sources; give all a weight or none."
        )
    return sources


def _read_source(node: Any, key: str) -> SourceConfig:
    if isinstance(node, str):
        return SourceConfig(path=node) if _looks_like_path(node) else SourceConfig(name=node)
    if not isinstance(node, Mapping):
        raise ConfigError(f"{key} takes a path, a source's name or a mapping with one of them, got {node!r}.")
    known = {entry.name for entry in fields(SourceConfig)} - {"options"}
    given = {str(name): value for name, value in node.items() if name in known}
    options = {str(name): value for name, value in node.items() if name not in known}
    source = SourceConfig(**given, options=options)
    if source.path is None and source.name is None:
        raise ConfigError(f"{key} has a source with neither 'path' nor 'name': {dict(node)}{nearest('path', node)}.")
    check_ranges(f"{key} '{source.path or source.name}'", source, above(0, "weight"), at_least(1, "limit"))
    return source


def _looks_like_path(text: str) -> bool:
    return any(mark in text for mark in "/\\.@")
