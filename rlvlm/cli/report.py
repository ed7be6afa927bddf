"""``rlvlm report <run directory>``: makes ``report.html`` again, from a run that is over or still going on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlvlm.errors import ConfigError
from rlvlm.tracking.report import write_report
from rlvlm.tracking.rundir import RunDir


def main(argv: Sequence[str]) -> int:
    """Runs the verb."""
    if len(argv) != 1 or argv[0] in ("-h", "--help"):
        print("rlvlm report <run directory>")
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    run = RunDir(Path(argv[0]))
    if not run.metrics.exists() and not run.summary.exists():
        raise ConfigError(f"'{argv[0]}' holds neither metrics.jsonl nor summary.json; give the directory of a run.")
    print(write_report(run))
    return 0
