"""The page on rewards is made from the registry, and its YAML is valid."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlvlm.registry import Entry
from rlvlm.rewards.compose import build_rules
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.rule import REWARDS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")


def test_the_tables_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/make_rewards.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "block", [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "style: verl" not in block]
)
def test_every_recipe_on_the_page_builds(block: str) -> None:
    node = yaml.safe_load(re.sub(r"^  ", "", block, flags=re.MULTILINE) if block.startswith("  ") else block)
    rules = build_rules(RewardConfig(**node["reward"]))
    assert {*node["reward"].get("rules", {})} <= {rule.label for rule in rules}


@pytest.mark.parametrize("entry", REWARDS.own_entries(), ids=lambda entry: entry.name)
def test_every_example_is_printed_whole(entry: Entry) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{entry.name}` |")).replace("\\|", "|")
    example = entry.traits["example"]
    assert example["completion"].replace("\n", "\\n") in row
    assert "answer" not in example or json.dumps(example["answer"], ensure_ascii=False) in row
