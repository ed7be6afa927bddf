"""The examples run as they stand, and the first one learns."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from rlvlm.conf.check import examine

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_the_custom_loop_is_short_and_its_reward_rises(tmp_path):
    script = ROOT / "examples" / "custom_loop.py"
    lines = len(script.read_text().splitlines())
    assert lines <= 60
    assert f"as a whole program of {lines} lines" in (ROOT / "README.md").read_text()
    out = run(sys.executable, str(script), folder=tmp_path)
    rewards = [float(line.split("reward ")[1].split(",")[0]) for line in out.splitlines() if line.startswith("step ")]
    assert len(rewards) == 30
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.02


def test_the_reward_of_the_readme_takes_the_place_of_the_recipe_s_own(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text().partition("## Your own reward in six lines")[2]
    code, shell = text.split("```python\n")[1].split("```")[0], text.split("```bash\n")[1].split("```")[0]
    assert len(code.strip().splitlines()) == 6
    (tmp_path / "my_reward.py").write_text(code)
    overrides = shlex.split(shell)[3:]
    monkeypatch.chdir(tmp_path)
    recipe, found = examine("quickstart", overrides)
    assert found.problems == []
    assert recipe is not None
    assert list(recipe.reward.rules) == ["format", "close"]
    assert recipe.run.accuracy_rule == "close"


def test_a_reward_of_your_own_trains_by_name(tmp_path):
    plugin = ROOT / "examples" / "custom_reward.py"
    out = run(
        sys.executable,
        "-m",
        "rlvlm.cli.main",
        "train",
        "quickstart",
        f"plugins=[{plugin}]",
        "reward.rules={close:{weight:1.0,slack:2}}",
        "stages.warmup.run.steps=2",
        "stages.warmup.cache=false",
        "run.steps=2",
        "run.eval_prompts=16",
        "run.name=mine",
        folder=tmp_path,
    )
    assert "report" in out
    assert (tmp_path / "runs" / "mine" / "report.html").exists()
    assert "reward/close" in (tmp_path / "runs" / "mine" / "metrics.jsonl").read_text()
