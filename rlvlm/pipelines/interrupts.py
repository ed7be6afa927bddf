"""Ctrl-C and a scheduler's SIGTERM: the step at hand is finished and saved first; a second signal ends at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Holds the first signal back until :meth:`check`.

    Args:
        tell: is called with the signal's name when one is held back.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._pending: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def pending(self) -> bool:
        """Whether a signal waits."""
        return self._pending is not None

    def check(self) -> None:
        """Does what the waiting signal does without us: ``KeyboardInterrupt``, or what the handler before does."""
        if self._pending is not None:
            number, self._pending = self._pending, None
            self._pass_on(number, None)

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """A block in which signals wait, for its end at the latest; only in the main thread, for no other may set handlers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        own = [number for number in SIGNALS if callable(signal.getsignal(number))]  # an ignored one stays ignored
        self._before = {number: signal.signal(number, self._hold) for number in own}
        try:
            yield
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        self.check()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self.pending:
            self._pending = None
            self._pass_on(number, frame)
        self._pending = number
        self._tell(signal.Signals(number).name)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._before[number](number, frame)
