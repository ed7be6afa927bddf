"""The command line: verbs, exit codes, and what is set before torch is imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlvlm
from rlvlm.cli import main as main_module
from rlvlm.cli.main import VERBS, main, prepare_environment
from rlvlm.cli.parts import MODULES
from rlvlm.registry import KINDS


def run(*argv: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlvlm.cli.main", *argv]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **(env or {})}, check=False
    )


@pytest.mark.parametrize("argv", [[], ["--help"], ["help"]])
def test_help_lists_every_verb(argv, capsys):
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert all(f"  {verb} " in text for verb in VERBS)


def test_help_and_version_load_neither_hydra_nor_torch():
    code = (
        "import sys; from rlvlm.cli.main import main; main(['--help']); main(['--version']);"
        "print({'torch', 'hydra', 'transformers', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == [f"rlvlm {rlvlm.__version__}", "set()"]


@pytest.mark.parametrize(
    ("argv", "piece"),
    [
        (["trian"], "no verb 'trian' (did you mean 'train'?)"),
        (["train"], "a run needs a recipe"),
        (["train", "quikstart"], "(did you mean 'quickstart'?)"),
        (["train", "quickstart", "actor.epchs=2"], "(did you mean 'actor.epochs'?)"),
        (["train", "quickstart", "epochs"], "override 'epochs' sets nothing"),
        (["train", "quickstart", "--multrun"], "(did you mean '--multirun'?)"),
        (["train", "quickstart", "--cfg", "jbo"], "invalid choice: 'jbo'"),
        (["train", "quickstart", "--resolve"], "--resolve goes with --cfg"),
        (["train", "quickstart", "--config-dir", "nowhere"], "'nowhere' is no folder"),
        (["train", "quickstart", "hydra.rn.dir=x"], "(did you mean 'hydra.run'?)"),
        (["train", "quickstart", "algorithm.advantage=grop"], "(did you mean 'grpo'?)"),
        (["train", "quickstart", "algorithm.policy_loss.clip_hgih=1"], "(did you mean 'clip_high'?)"),
        (["check", "actor.epochs=2"], "the recipe comes first"),
        (["check", "quikstart"], "(did you mean 'quickstart'?)"),
        (["parts", "advantage"], "(did you mean 'advantages'?)"),
        (["parts", "advantages", "grop"], "(did you mean 'grpo'?)"),
        (["report", "nowhere"], "holds neither metrics.jsonl nor summary.json"),
    ],
)
def test_a_wrong_word_gives_one_sentence_and_exit_code_2(argv, piece, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert piece in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_no_traceback_reaches_the_terminal(tmp_path):
    done = run("train", "quickstart", "actor.epchs=2", "rollout.n=x", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 2
    assert "Traceback" not in done.stderr


def test_a_users_own_thread_settings_stay(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    prepare_environment()
    assert (os.environ["OMP_WAIT_POLICY"], os.environ["GOMP_SPINCOUNT"], os.environ["OMP_NUM_THREADS"]) == (
        "PASSIVE",
        "0",
        "7",
    )


def test_processes_of_one_launch_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100000")
    prepare_environment()
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_recipes_are_listed_with_a_line_each(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("quickstart ") and "coloured shapes" in line for line in lines)


def test_parts_lists_a_kind_and_shows_one_part(capsys):
    assert main(["parts", "advantages"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^  grpo +\S", listed, re.MULTILINE)
    assert main(["parts", "rewards", "number"]) == 0
    shown = capsys.readouterr().out
    assert "reads: answer_text, answer" in shown
    assert "option tolerance: float, default 0.0" in shown


def test_parts_knows_a_users_own(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from rlvlm import register_reward\n"
        "@register_reward('parts_test_rule')\n"
        "def rule(answer_text: str, answer: str, *, strict: bool) -> float:\n    'Mine.'\n    return 1.0\n"
    )
    assert main(["parts", "rewards", "--plugins", str(path)]) == 0
    assert "parts_test_rule" in capsys.readouterr().out
    assert main(["parts", "rewards", "parts_test_rule", "--plugins", str(path)]) == 0
    assert "option strict: bool, required" in capsys.readouterr().out


def test_parts_covers_every_registry_of_the_library(capsys):
    package = Path(rlvlm.__file__).parent
    made = {
        group
        for path in package.rglob("*.py")
        for group in re.findall(r'Registry\(\s*"[^"]+",\s*"(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert made
    assert made <= set(MODULES)
    assert main(["parts"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{kind}\n" in f"\n{text}" for kind in MODULES)
    assert set(MODULES) <= set(KINDS)


def test_python_dash_m_is_the_command():
    done = subprocess.run([sys.executable, "-m", "rlvlm", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"rlvlm {rlvlm.__version__}\n"


@pytest.mark.parametrize("argv", [["parts", "advantages"], ["--help"], ["recipes"], ["train", "--help"]])
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(argv):
    reading, writing = os.pipe()
    os.close(reading)  # nobody will read: every write breaks the pipe
    with os.fdopen(writing, "w") as pipe:
        command = [sys.executable, "-m", "rlvlm", *argv]
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_part_is_found_by_its_name_alone_whatever_its_kind(capsys):
    assert main(["parts", "cispo"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cispo (policy loss)")
    assert "option clip_low: float, default 0.2" in out
    assert re.search(r"source: \S+reinforce\.py:\d+ \(rlvlm\.algos\.policy_losses\.reinforce\.cispo\)", out)


def test_parts_of_two_kinds_with_one_name_are_both_shown(capsys):
    assert main(["parts", "length"]) == 0
    out = capsys.readouterr().out
    assert "length (regularizer)" in out
    assert "length (filter)" in out


def test_an_unknown_part_is_answered_with_the_nearest_of_any_kind(capsys):
    assert main(["parts", "cipso"]) == 2
    assert "(did you mean 'cispo'?)" in capsys.readouterr().err


def test_plugins_and_trackers_need_no_brackets(tmp_path, capsys):
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from rlvlm import register_reward\n@register_reward('bare_words')\ndef f(answer: str): return 1.0\n"
    )
    argv = ["check", "quickstart", f"plugins={plugin}", "run.trackers=jsonl", "reward.rules.bare_words=1"]
    assert main(argv) == 0, capsys.readouterr()


def ending_with(monkeypatch, ending, hidden):
    def interrupted(verb, argv):
        try:
            raise ending
        finally:
            if hidden:
                raise AttributeError("'NoneType' object has no attribute '_invalidate_flags_cache'")

    monkeypatch.setattr(main_module, "run_verb", interrupted)


@pytest.mark.parametrize("hidden", [False, True])
def test_an_interrupt_is_told_even_where_a_library_failed_while_it_cleaned_up(monkeypatch, capsys, hidden):
    ending_with(monkeypatch, KeyboardInterrupt(), hidden)
    assert main(["train", "x"]) == 130
    assert capsys.readouterr().err == "\nrlvlm train: interrupted.\n"
    ending_with(monkeypatch, SystemExit(143), hidden)
    with pytest.raises(SystemExit, match="143"):
        main(["train", "x"])
    assert capsys.readouterr().err == "\nrlvlm train: terminated.\n"


def test_any_other_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(main_module, "run_verb", lambda verb, argv: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", "x"])
