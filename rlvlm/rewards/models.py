"""What rewards that hold a transformers model share: loading once, the device, batches."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlvlm.errors import ConfigError, RewardError

Item = TypeVar("Item")
Loaded = TypeVar("Loaded")


class LoadOnce:
    """A model that is loaded when it is first used; several threads wait for the one that loads it."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load, self._lock, self._loaded = load, threading.Lock(), None

    def __call__(self) -> Any:
        """What was loaded."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded


def load_pretrained(auto: str, path: str, device: str | None = None, **options: Any) -> Any:
    """Loads ``transformers.<auto>`` from a folder or hub name; models go to the device, in eval mode.

    Raises ``RewardError`` when it can't be loaded.
    """
    import transformers

    try:
        loaded = getattr(transformers, auto).from_pretrained(path, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise RewardError(f"{auto} can't be loaded from '{path}': {str(error).strip()[:300]}") from error
    return (
        loaded.to(device or default_device()).eval().requires_grad_(False)
        if device or hasattr(loaded, "eval")
        else loaded
    )


def default_device() -> str:
    """A GPU where there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def as_text(tokenizer: Any, text: str) -> str:
    """A completion in which no control token of the tokenizer can be read: a space breaks each, so that it stays text.

    Otherwise a completion could end its own turn and write the next one, or place a picture.
    """
    controls = sorted({str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}, key=len)
    pattern = re.compile("|".join(re.escape(token) for token in reversed(controls) if len(token) > 1) or r"(?!)")
    return pattern.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Consecutive pieces of at most ``size`` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def check_path(rule: str, path: str) -> None:
    """Raises ``ConfigError`` for a path that looks local and is not there."""
    if path.startswith((".", "/", "~")) and not Path(path).expanduser().exists():
        raise ConfigError(f"reward '{rule}' takes the 'path' of a model, and '{path}' does not exist.")
