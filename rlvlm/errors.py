"""The library's exceptions, and the one helper that words a misspelt name.

Every message is one sentence that says what happened, what was expected and got, and what to change.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class RlvlmError(Exception):
    """Base of every error that the library raises on purpose; its message is always text that can be printed and written."""

    def __str__(self) -> str:
        return printable(super().__str__())

    @property
    def problems(self) -> list[str]:
        """What is wrong, a sentence for each problem."""
        return [str(self)]


class ConfigError(RlvlmError, ValueError):
    """A setting, a name or an option is wrong; found before any work is done."""


class SettingsError(ConfigError):
    """Everything that is wrong with some settings: one sentence for each problem, one to a line."""

    def __init__(self, problems: Sequence[str]) -> None:
        self._problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(self._problems))

    @property
    def problems(self) -> list[str]:
        """The sentences."""
        return self._problems


class RegistryError(ConfigError):
    """A part can't be registered, found or built."""


class FieldError(RlvlmError, KeyError):
    """A batch field is missing, unknown, or of the wrong shape or dtype."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class DataError(RlvlmError, ValueError):
    """A record, a picture or a prompt is not usable as it is."""


class StorageError(RlvlmError):
    """The run directory can't be written: its disk is full, or writing is not allowed."""


class RewardError(RlvlmError, RuntimeError):
    """A reward failed, timed out or gave something that is not a finite number."""


class EngineError(RlvlmError, RuntimeError):
    """A train or inference engine was asked for what it can't do, or broke a promise."""


class TrainingStopped(RlvlmError, RuntimeError):
    """A standing gate (blind vision, too many reward errors, non-finite gradient) ended the run."""


def printable(text: str) -> str:
    """The text with halves of surrogate pairs (a file name or JSON may hold them, no stream takes them) written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def nearest(name: str, choices: Iterable[str]) -> str:
    """Words the choice closest to ``name`` as ``" (did you mean 'x'?)"``, or lists the choices when none is close."""
    names = sorted({str(choice) for choice in choices})
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean '{close[0]}'?)"
    if not names:
        return " (there are none)"
    shown = ", ".join(names[:24]) + (", …" if len(names) > 24 else "")
    return f" (there are: {shown})"
