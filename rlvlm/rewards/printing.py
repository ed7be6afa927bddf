"""Text of models on terminals and in logs: a control character in it must not act there."""

from __future__ import annotations

import io
import re
import sys

MAX_PRINTED = 16 << 20
"""Characters that the rules of one process may print; the rest is left out, so that no loop fills the log."""

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_KEPT = re.compile(r"(?![\n\t])" + _CONTROLS.pattern)


def escaped(text: str, *, keep_lines: bool = False) -> str:
    """The text with control characters as escapes, ``\\x1b`` for one; also those that turn the direction of writing.

    Args:
        keep_lines: leave line breaks and tabs as they are.
    """
    return (_KEPT if keep_lines else _CONTROLS).sub(lambda found: ascii(found[0])[1:-1], text)


class EscapedOutput(io.TextIOWrapper):
    """A standard stream that escapes control characters and ends after ``MAX_PRINTED`` characters."""

    _left = MAX_PRINTED

    def write(self, text: str) -> int:
        """Writes the text, as far as there is room."""
        if self._left > 0:
            super().write(escaped(text[: self._left], keep_lines=True))
            self._left -= len(text)
            if self._left <= 0:
                super().write(f"\n(rewards have printed {MAX_PRINTED} characters; the rest is left out)\n")
        return len(text)


def escape_output() -> None:
    """Makes this process's standard output and errors escaped ones, on the same descriptors."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115 - lasts as long as the process
        stream = EscapedOutput(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
