"""The environment of the peers that benchmarks compare with: made at the first call, apart from the library's own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-peers"
PINS = ("trl==1.16.0", "datasets>=3", "accelerate", "codetiming", "orjson", "ray", "psutil")
WITHOUT_DEPENDENCIES = ("verl==0.9.1",)
"""verl asks for engines that its functions of tensors do not need."""


def peer_python() -> Path:
    """The Python of the peers' environment: this one's torch and transformers, TRL, verl, and this library.

    Both sides of a benchmark run in it, so that they differ in nothing but the code that is measured.
    """
    same = [f"{name}=={version(name).split('+')[0]}" for name in ("torch", "transformers", "numpy")]
    wanted = hashlib.sha256(repr((same, PINS, WITHOUT_DEPENDENCIES)).encode()).hexdigest()
    python, ready = FOLDER / "bin" / "python", FOLDER / ".ready"
    if ready.exists() and ready.read_text() == wanted:
        return python
    print("making the peers' environment (a few minutes, once) …", file=sys.stderr)
    _run(sys.executable, "-m", "venv", "--clear", str(FOLDER))
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    _run(*pip, same[0])
    _run(*pip, *same, *PINS, "-e", str(ROOT))
    _run(*pip, "--no-deps", *WITHOUT_DEPENDENCIES)
    ready.write_text(wanted)
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"'{' '.join(command)}' failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    print(peer_python())
