"""``python -m tests.band FOLDER``: fails unless every run below the folder learned the quickstart's task."""

from __future__ import annotations

import json
import sys
from pathlib import Path

LEAST = 0.9
"""Sampled accuracy after training; five seeds ended at 94 to 99 % (docs/quickstart.md)."""


def main(folder: str) -> int:
    """The exit status: 1 where a run is below the band, or where there is none."""
    found = {path: json.loads(path.read_text())["accuracy_after"] for path in Path(folder).rglob("summary.json")}
    for path, accuracy in found.items():
        print(f"{path.parent}: accuracy {accuracy}, at least {LEAST} expected")
    return 0 if found and all(accuracy is not None and accuracy >= LEAST for accuracy in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
