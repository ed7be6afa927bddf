"""Rewards that tests register; worker processes import this module to find them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

from rlvlm.rewards import register_reward

SLOW_SECONDS = 30.0


@register_reward("test_length", isolated=True)
def length_of(completion: str, *, times: float = 1.0) -> dict[str, Any]:
    """Characters, with the process that counted them."""
    return {"score": times * len(completion), "detail": {"pid": os.getpid()}}


@register_reward("test_trouble", isolated=True)
def trouble(completion: str) -> Any:
    """Does what the completion says."""
    if completion == "hang":
        time.sleep(SLOW_SECONDS)
    if completion == "spin":
        while True:
            pass
    if completion == "die":
        os._exit(7)
    if completion == "exit":
        raise SystemExit(3)
    if completion == "raise":
        raise ValueError("as asked")
    if completion == "eat":
        return float(len("x" * (2 << 30)))
    if completion == "hoard":
        _HOARD.append(bytearray(80 << 20))
    return {"nan": float("nan"), "inf": float("inf"), "none": None, "text": "0.5", "huge": 10**400}.get(completion, 1.0)


_HOARD: list[bytearray] = []


@register_reward("test_column")
def column(completion: str, colour: str, size: int = 1) -> float:
    """Reads a column of its own, and another where there is one."""
    return float(size if completion == colour else 0)


@register_reward("test_async")
async def waits(completion: str) -> float:
    """Waits as long as the completion says."""
    await asyncio.sleep(float(completion))
    return 1.0


@register_reward("test_batched", batched=True)
def batched(completion: Sequence[str], answer: Sequence[Any]) -> list[float]:
    """One score too few for a batch of three."""
    return [float(text == gold) for text, gold in zip(completion, answer, strict=True)][
        : 2 if len(completion) == 3 else None
    ]


@register_reward("test_stateful")
class Stateful:
    """Counts its calls; hangs on request."""

    def __init__(self, *, start: int = 0) -> None:
        self.calls = start

    def __call__(self, completion: str) -> float:
        """The number of the call."""
        if completion == "hang":
            time.sleep(SLOW_SECONDS)
        self.calls += 1
        return float(self.calls)


@register_reward("test_red", isolated=True)
def red(images: Any) -> dict[str, Any]:
    """The red of the first picture's first pixel, with the process that decoded it."""
    return {"score": float(images[0].decode().getpixel((0, 0))[0]), "detail": {"pid": os.getpid()}}


@register_reward("test_model", batched=True, in_trainer=True)
class Model:
    """A model on the trainer's device, or so it says."""

    def __call__(self, completion: Sequence[str]) -> list[dict[str, Any]]:
        """The process that scored."""
        return [{"score": 1.0, "detail": {"pid": os.getpid()}} for _ in completion]


@register_reward("test_server", in_trainer=True)
async def server(completion: str) -> dict[str, Any]:
    """Waits for a server, or so it says."""
    return {"score": 1.0, "detail": {"pid": os.getpid()}}


def backtracks(text: str) -> float:
    """For ever on many a followed by b, without letting go of the interpreter."""
    return 1.0 if re.match(r"(a+)+$", text) else 0.0


def alarmed(text: str) -> float:
    """Limits its own time by a signal, as math-verify does; 0 where that can't be done."""
    try:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.alarm(5)
        signal.alarm(0)
    except ValueError:
        return 0.0
    return 1.0


@register_reward("test_regex_class")
class RegexClass:
    """Backtracks."""

    def __call__(self, completion: str) -> float:
        """Whether it is all a."""
        return backtracks(completion)


@register_reward("test_regex_batched", batched=True)
def regex_batched(completion: Sequence[str]) -> list[float]:
    """Backtracks on the whole batch."""
    return [backtracks(text) for text in completion]


@register_reward("test_regex_async")
async def regex_async(completion: str) -> float:
    """Backtracks on the event loop."""
    return backtracks(completion)


@register_reward("test_regex_batched_async", batched=True)
async def regex_batched_async(completion: Sequence[str]) -> list[float]:
    """Backtracks on the event loop, on the whole batch."""
    return [backtracks(text) for text in completion]


@register_reward("test_alarm_class")
class AlarmClass:
    """Uses a signal."""

    def __call__(self, completion: str) -> float:
        """1 where signals work."""
        return alarmed(completion)


@register_reward("test_alarm_batched", batched=True)
def alarm_batched(completion: Sequence[str]) -> list[float]:
    """Uses a signal."""
    return [alarmed(text) for text in completion]


@register_reward("test_alarm_async")
async def alarm_async(completion: str) -> float:
    """Uses a signal."""
    return alarmed(completion)


@register_reward("test_share", batched=True)
def share(completion: Sequence[str]) -> list[float]:
    """Its share of the batch: other batches give other scores. Some completions raise, die or hang."""
    for text in completion:
        if text == "raise":
            raise ValueError("as asked")
        if text == "die":
            os._exit(7)
        backtracks(text)
    return [1.0 / len(completion)] * len(completion)
