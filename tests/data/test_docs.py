"""The data's document: its examples run as they are written, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "data.md"


def examples() -> list[str]:
    """The shell blocks of the document, in order."""
    return re.findall(r"^```bash\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_examples_run_in_an_empty_folder_as_they_are_written(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    for example in examples():
        done = subprocess.run(["bash", "-euc", example], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{example}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    for folder in ("selected", "balanced"):
        assert (tmp_path / folder / "picked.parquet").exists()
    report = json.loads((tmp_path / "balanced" / "report.json").read_text())
    assert f"falls from {report['gini_before']:.2f} to {report['gini_after']:.2f}" in DOCUMENT.read_text()
    assert (tmp_path / "runs" / "ov15_stage1_5" / "policy" / "config.json").exists()


def test_each_command_has_an_example() -> None:
    shown = "\n".join(examples())
    for verb in ("check", "select", "balance", "pack"):
        assert f"rlvlm data {verb} " in shown
