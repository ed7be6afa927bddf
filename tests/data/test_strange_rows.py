"""Rows of any shape: each is used or a fault that names file and row, never a crash."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from rlvlm.data.check import check_source
from rlvlm.data.config import DataConfig, SourceConfig
from rlvlm.data.loader import Loader
from rlvlm.data.sources import open_source, open_sources
from rlvlm.data.supervised import supervised_loader
from rlvlm.errors import DataError
from tests.data.helpers import family, png

GOOD: list[dict[str, Any]] = [
    {"problem": "<image>q", "answer": "1", "images": ["a.png"]},
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
    {"conversations": [{"from": "human", "value": "<image>q"}, {"from": "gpt", "value": "a"}], "image": "a.png"},
    {"prompt": [{"role": "user", "content": [{"type": "text", "text": "q"}]}], "reward_model": {"ground_truth": "1"}},
    {
        "samples": [
            {
                "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                "pictures": 0,
                "tokens": 5,
            }
        ]
    },
    {"problem": "q", "answer": ["a"], "problem_type": "x", "prompt_type": "normal"},
]
ATOMS = [None, True, 0, -1, 3.5, 1e400, "", "x", "<image>", "<image><image>", "a.png", "../out.png", "a\0b", "\ud800"]
ATOMS += [[], {}, "data:image/png;base64,AAAA", "iVBORw0KGgo" + "A" * 40, "user", "gpt", "assistant"]
ATOMS += ["{{ problem }}", "{{ problem.__class__ }}", "{% for i in x %}"]
COLUMNS = ["problem", "answer", "images", "image", "messages", "conversations", "prompt", "reward_model", "samples"]
COLUMNS += ["caption", "problem_type", "prompt_type", "prompt_template", "format_guidance", "response", "videos"]
KEYS = ["role", "content", "from", "value", "type", "text", "image", "bytes", "path", "url", "pictures", "tokens"]


def anything(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 2 or kind < 0.6:
        return rng.choice(ATOMS)
    if kind < 0.8:
        return [anything(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(KEYS): anything(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def changed(rng: random.Random, value: Any) -> Any:
    """The value with one thing in it replaced by anything."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return {**value, key: anything(rng) if rng.random() < 0.4 else changed(rng, value[key])}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [*value[:place], changed(rng, value[place]), *value[place + 1 :]]
    return anything(rng)


def strange_row(rng: random.Random) -> dict[str, Any]:
    row = rng.choice(GOOD)
    return changed(rng, row) if rng.random() < 0.5 else {**row, rng.choice(COLUMNS): anything(rng)}


@pytest.mark.parametrize("dialogues", [False, True])
def test_every_row_is_used_or_a_fault_by_file_and_row(tmp_path: Path, dialogues: bool) -> None:
    rng = random.Random(0)
    (tmp_path / "a.png").write_bytes(png())
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(strange_row(rng)) + "\n" for _ in range(1500)))
    settings: dict[str, Any] = {"train": str(file), "template": "think_answer", "shuffle": False, "prefetch": 0}
    config = DataConfig(**settings, on_bad_row="skip", prompts_per_step=1)
    (source,) = open_sources(config)
    report = check_source(source, config, family("llava"), dialogues=dialogues, decode=True, progress=False)
    assert report.usable + report.fault_count == 1500
    assert min(report.usable, report.fault_count) > 200
    assert all(fault.startswith(f"{file}, row ") for fault in report.faults)
    make = supervised_loader if dialogues else Loader
    batches = iter(make(config, family("llava")))
    for _ in range(report.usable):
        next(batches)
    with pytest.raises(DataError, match=r"a\.jsonl, row \d+"):
        list(make(DataConfig(**settings), family("llava")))


@pytest.mark.parametrize("where", ['"id": "\\ud800"', '"meta": {"a": ["\\udfff"]}', '"images": ["\\ud800.png"]'])
def test_half_of_a_surrogate_pair_in_any_column_is_a_fault_of_its_row(where: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"problem": "q", "answer": "x", {where}}}\n')
    source = open_source(SourceConfig(path=str(path)))
    with pytest.raises(DataError, match=r"a\.jsonl, row 0: the column .* holds half of a surrogate pair") as caught:
        source[0]
    str(caught.value).encode()
