"""What a caller asks of an inference engine, and what an engine says that it can do. Loads no torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvlm.errors import EngineError, SettingsError, nearest


@dataclass(frozen=True)
class SamplingParams:
    """How the samples of one call are drawn.

    A sampled token's log-prob is that of softmax(logits / temperature) over the ids that may be sampled, before any
    top-k or top-p cut. Greedy rows have none of their own: theirs is taken at temperature 1, which they also record.

    Attributes:
        n: samples for each prompt.
        temperature: divides the logits; 0 means greedy.
        top_p: keeps the fewest most likely ids whose probabilities add up to at least this; 1 keeps all.
        top_k: keeps this many most likely ids; 0 keeps all.
        max_new_tokens: at most this many tokens for each sample, the end token included.
        stop: a sample ends with the token that completes one of these strings; the token stays in the sample.
        stop_ids: token ids that end a sample, besides the model's own end ids; they stay in the sample.
        greedy: takes the most likely id at every token, whatever the temperature.
        ignore_eos: goes on past the model's own end ids, so that every sample has ``max_new_tokens`` (benchmarks).
        seed: first part of the key of the sampling noise.
        skip_special_tokens: leaves special tokens out of the samples' text; where they stay, only the end token that ends a
            sample is left out.

    Raises ``SettingsError`` with a sentence for each value outside its range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 1024
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    greedy: bool = False
    ignore_eos: bool = False
    seed: int = 0
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        problems = [
            *self._problems(),
            *_list_problems("stop", self.stop, str),
            *_list_problems("stop_ids", self.stop_ids, int),
        ]
        if problems:
            raise SettingsError(problems)
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_ids", tuple(self.stop_ids))

    def _problems(self) -> list[str]:
        """What lies outside its range, a sentence each."""
        wrong: list[tuple[str, str]] = []
        wrong += [
            (name, "a whole number, at least 1")
            for name in ("n", "max_new_tokens")
            if not (_is_int(getattr(self, name)) and getattr(self, name) >= 1)
        ]
        if not (_is_int(self.top_k) and self.top_k >= 0):
            wrong.append(("top_k", "a whole number, 0 for no cut"))
        if not _is_int(self.seed):
            wrong.append(("seed", "a whole number"))
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            wrong.append(("top_p", "above 0 and at most 1"))
        if not (_is_number(self.temperature) and self.temperature >= 0):
            wrong.append(("temperature", "0 (greedy) or more"))
        return [f"sampling parameter '{name}' is {expected}, got {getattr(self, name)!r}." for name, expected in wrong]

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely id is taken: asked for by name, or by temperature 0."""
        return self.greedy or self.temperature == 0

    @property
    def logp_temperature(self) -> float:
        """The temperature that the log-probs are taken at, and that the rows record: 1 for greedy rows."""
        return 1.0 if self.is_greedy else float(self.temperature)


@dataclass(frozen=True)
class Capabilities:
    """What an inference engine can do beyond generating a batch; whatever is not declared is refused at check time.

    Attributes:
        asynchronous: ``generate_async`` runs while its caller goes on.
        interrupts: ``pause`` and ``abort`` act on samples that are being generated. An engine without it has nothing
            in flight between two calls, so its ``pause`` only refuses new work and its ``abort`` finds nothing.
        sleeps: ``sleep`` gives the device's memory back.
        logp_before_cut: reports log-probs before the top-p/top-k cut; without it such a cut is refused.
    """

    asynchronous: bool = False
    interrupts: bool = False
    sleeps: bool = False
    logp_before_cut: bool = False

    def require(self, engine: str, *needs: str) -> None:
        """Raises ``EngineError`` naming the first of ``needs`` that ``engine`` does not declare."""
        declared = dataclasses.asdict(self)
        for need in needs:
            if need not in declared:
                raise EngineError(f"inference engines declare no '{need}'{nearest(need, declared)}.")
            if not declared[need]:
                raise self.refusal(engine, need)

    def refusal(self, engine: str, need: str) -> EngineError:
        """The error for asking ``engine`` for a capability that it does not declare."""
        able = ", ".join(name for name, can in dataclasses.asdict(self).items() if can) or "nothing beyond generate"
        return EngineError(
            f"inference engine '{engine}' was asked for '{need}', but declares {able}; "
            f"choose an engine that declares it or a pipeline that does without."
        )


def check_params(engine: str, capabilities: Capabilities, params: SamplingParams) -> None:
    """Raises ``EngineError`` if ``engine`` can't report the log-probs of this setting as they are defined."""
    cut = params.top_p < 1 or params.top_k > 0
    if cut and not params.is_greedy and not capabilities.logp_before_cut:
        raise EngineError(
            f"inference engine '{engine}' reports log-probs after the top-p/top-k cut only, got top_p={params.top_p} "
            f"and top_k={params.top_k}; set top_p: 1 and top_k: 0, or choose an engine that declares logp_before_cut."
        )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _list_problems(name: str, value: Any, kind: type) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [f"sampling parameter '{name}' is a list, got {value!r}; write it in brackets."]
    odd = [item for item in value if not isinstance(item, kind) or isinstance(item, bool)]
    if odd:
        return [f"sampling parameter '{name}' is a list of {kind.__name__}, got {odd[0]!r} in it."]
    if kind is str and not all(value):
        return [f"sampling parameter '{name}' is strings that are not empty, got {value!r}."]
    if kind is int and any(index < 0 for index in value):
        return [f"sampling parameter '{name}' is token ids, 0 or more, got {value!r}."]
    return []
