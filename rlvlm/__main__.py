"""``python -m rlvlm <verb> …`` is ``rlvlm <verb> …``."""

from __future__ import annotations

import sys

from rlvlm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
