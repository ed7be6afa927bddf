"""The list of papers holds every arXiv number that code and documentation name, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "papers.md"
NAMED = re.compile(r"(?i:arxiv\W{0,4}|abs/|\()(?P<number>\d{4}\.\d{5})(?!\d)")
ROW = re.compile(r"^\| \[(\d{4}\.\d{5})\]\(https://arxiv\.org/abs/(\d{4}\.\d{5})\) \| (\S.*\S) \|$", re.MULTILINE)


def cited() -> dict[str, str]:
    """Each number and one file that names it."""
    folders = ("rlvlm", "docs", "examples", "recipes", "benchmarks")
    files = [ROOT / "README.md", *(path for name in folders for path in sorted((ROOT / name).rglob("*")))]
    read = [path for path in files if path.suffix in (".py", ".md", ".yaml") and path != PAGE]
    return {
        found["number"]: str(path.relative_to(ROOT))
        for path in read
        for found in NAMED.finditer(path.read_text("utf-8"))
    }


def test_every_paper_that_is_named_is_in_the_list_and_no_other() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert all(number == link for number, link, _ in rows)
    numbers = [number for number, _, _ in rows]
    assert numbers == sorted(set(numbers))
    assert len({title for _, _, title in rows}) == len(rows)
    assert set(numbers) == set(cited()), cited()
