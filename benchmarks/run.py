"""Runs one benchmark by name, or all of them: ``python -m benchmarks.run [NAME …]``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HELPERS = {"__init__", "run", "peers"}


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPERS)


def main() -> int:
    """Runs each as a process of its own, so that none inherits another's allocator or thread pool."""
    wanted = sys.argv[1:] or names()
    for name in wanted:
        if name not in names():
            print(f"there is no benchmark '{name}' (there are: {', '.join(names())}).", file=sys.stderr)
            return 2
    env = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", **os.environ}
    failed = []
    for name in wanted:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], env=env).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
