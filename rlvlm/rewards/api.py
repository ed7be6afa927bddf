"""``score`` and ``score_detail``: one completion by one rule."""

from __future__ import annotations

import threading
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.pool import Pool
from rlvlm.rewards.rule import DERIVED, INJECTED, REWARDS
from rlvlm.rewards.runner import Runner

_SETTINGS = ("think_prefilled", "unmarked", "timeout")
_LOCK = threading.Lock()
_POOLS: list[Pool] = []
_RUNNERS: dict[str, Runner] = {}
_MAX_RUNNERS = 64


def score(name: str, completion: str, answer: Any = "", **options: Any) -> float:
    """Scores one completion by one rule.

    Args:
        name: of the rule.
        answer: the record's gold answer.
        options: the rule's options; other columns of the record that it reads (``options`` of a multiple choice,
            ``image_size``, …); and ``think_prefilled``, ``unmarked`` and ``timeout`` of ``RewardConfig``.

    Raises ``RewardError`` when the rule fails, takes too long, or gives no finite number; ``ConfigError`` for a wrong name
    or option.
    """
    return float(score_detail(name, completion, answer, **options)["score"])


def score_detail(name: str, completion: str, answer: Any = "", **options: Any) -> dict[str, Any]:
    """As :func:`score`, as ``{"score": float, "detail": what the rule tells, "answer_text": str, "candidates": list}``."""
    entry = REWARDS.get(name)
    settings = {key: options.pop(key) for key in _SETTINGS if key in options and key not in entry.options}
    reads = {*entry.needs, *entry.optional, *INJECTED, *DERIVED} - {*entry.options}
    columns = {key: options.pop(key) for key in reads & options.keys()}
    given = {key: [columns.pop(key)] for key in [*columns] if key in INJECTED or key in DERIVED}
    runner = _runner(name, options, settings)
    samples = runner.samples([completion], [{"answer": answer, **columns}], **given)
    result = runner.score(samples)
    if result.failures:
        raise RewardError(result.failures[0].message)
    return {
        "score": result.scores[0],
        "detail": dict(result.details[name].get(0, {})),
        "answer_text": samples.column("answer_text")[0],
        "candidates": list(samples.column("candidates")[0]),
    }


def _runner(name: str, options: dict[str, Any], settings: dict[str, Any]) -> Runner:
    """A runner of one rule, kept for the next call with the same options; all share one worker process."""
    key = repr((name, sorted(options.items()), sorted(settings.items()), id(REWARDS.get(name).target)))
    with _LOCK:
        if not _POOLS:
            _POOLS.append(Pool(1, RewardConfig.memory_mb))
        if key not in _RUNNERS:
            if len(_RUNNERS) >= _MAX_RUNNERS:
                _RUNNERS.clear()
            _RUNNERS[key] = Runner(RewardConfig(rules={name: {**options, "weight": 1.0}}, **settings), _POOLS[0])
        return _RUNNERS[key]
