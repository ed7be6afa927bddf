"""The reward role: scores of completions, as fields of the batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvlm.batch import Batch, Media
from rlvlm.rewards.config import RewardConfig
from rlvlm.rewards.execute import Failure
from rlvlm.rewards.runner import Result, Runner
from rlvlm.rewards.samples import Samples

LOGGED_CHARS = 2000
"""A failed row's completion is logged up to here."""


class Reward:
    """Scores a batch and takes out the rows whose reward failed.

    Args:
        config: rules, weights, scale and limits.
        max_length: token limit of a completion, for rules that read it.
        error_log: file of JSON lines that every failed row is added to.
        steps: how many training steps there will be, for rules that read where training stands.

    Use it as a context manager, or call :meth:`close`, so that worker processes end with the run.
    """

    def __init__(
        self,
        config: RewardConfig,
        *,
        max_length: int | None = None,
        error_log: str | Path | None = None,
        steps: int | None = None,
    ) -> None:
        self.config, self.max_length, self.steps = config, max_length, steps
        self.error_log = None if error_log is None else Path(error_log)
        self.runner = Runner(config)
        self._ahead: ThreadPoolExecutor | None = None

    def score(self, batch: Batch) -> Batch:
        """Writes ``scores``, their parts under ``("scores_by_rule", rule)``, ``token_rewards`` and ``rewards``, and the column
        ``reward_details``: for each row the numbers that rules told beside their scores.

        Reads ``loss_mask``, ``group_ids`` and the Python column ``completions``. The reward ``(score + bias) * scale`` stands on the
        last policy token. Rows that failed are left out of the batch, listed in ``meta["reward_errors"]`` and in the error
        log, and counted in ``meta["metrics"]["sum/reward/errors"]``.

        Raises ``TrainingStopped`` when more rewards failed than ``max_error_rate`` allows.
        """
        result = self.runner.score(self._samples(batch))
        _fail_empty(batch, result)
        errors = _errors_of(batch, result)
        self._log(errors)
        self.runner.check_error_rate(result)
        return _written(batch, result, self.config, errors)

    def submit(self, batch: Batch) -> Future[Batch]:
        """Starts :meth:`score` in the background, so that generation can go on; batches are scored in the order given."""
        if self._ahead is None:
            self._ahead = ThreadPoolExecutor(1, thread_name_prefix="reward")
        return self._ahead.submit(self.score, batch)

    def close(self) -> None:
        """Ends worker processes and background scoring."""
        if self._ahead is not None:
            self._ahead.shutdown(cancel_futures=True)
        self.runner.close()

    def __enter__(self) -> Reward:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _log(self, errors: list[dict[str, Any]]) -> None:
        if self.error_log is None or not errors:
            return
        self.error_log.parent.mkdir(parents=True, exist_ok=True)
        with self.error_log.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(error) + "\n" for error in errors)

    def _samples(self, batch: Batch) -> Samples:
        rows = len(batch)
        lazily: dict[str, Sequence[Any] | Callable[[], Sequence[Any]]] = {
            "response_length": lambda: batch["loss_mask"].sum(1).tolist(),
            "max_length": lambda: [self.max_length] * rows,
            "truncated": lambda: batch["truncated"].tolist() if "truncated" in batch else [None] * rows,
            "completion_ids": lambda: _completion_ids(batch),
            "prompt_ids": lambda: _prompt_ids(batch),
            "training": lambda: (
                [{"step": batch.meta.get("step"), "steps": self.steps, "epoch": batch.meta.get("epoch")}] * rows
            ),
            "images": lambda: _pictures(batch),
            "image_size": lambda: [first.image.stored_size if first else None for first in _first_pictures(batch)],
            "resized_size": lambda: [first.size if first else None for first in _first_pictures(batch)],
        }
        return self.runner.samples(batch.objects["completions"], batch.records(), **lazily)


def _written(batch: Batch, result: Result, config: RewardConfig, errors: list[dict[str, Any]]) -> Batch:
    kept = [row for row, score in enumerate(result.scores) if score is not None]
    metrics = {**batch.meta.get("metrics", {}), "sum/reward/errors": float(len(batch) - len(kept))}
    for label, told in result.metrics.items():
        metrics.update({f"mean/reward/{label}/{name}": value for name, value in told.items()})
    if errors:
        batch = batch.index(kept)
    fields: dict[Any, Tensor] = {
        ("scores_by_rule", label): torch.tensor([values[row] for row in kept], dtype=torch.float32)
        for label, values in result.parts.items()
    }
    scores = torch.tensor([result.scores[row] for row in kept], dtype=torch.float32)
    mask = batch["loss_mask"]
    last = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(1)
    token_rewards = torch.zeros(mask.shape, device=mask.device)
    token_rewards[torch.arange(len(kept)), last] = (scores.to(mask.device) + config.bias) * config.scale
    fields.update(scores=scores, token_rewards=token_rewards, rewards=token_rewards.sum(1))
    batch = batch.with_(fields).with_objects(reward_details=[_numbers(result, row) for row in kept])
    return batch.with_meta(metrics=metrics, reward_errors=errors)


def _numbers(result: Result, row: int) -> dict[str, dict[str, float]]:
    """The numbers that rules told of a row beside their scores, by rule and key."""
    told = {label: rows[row] for label, rows in result.details.items() if row in rows}
    return {
        label: {str(key): float(value) for key, value in numbers.items() if isinstance(value, (bool, int, float))}
        for label, numbers in told.items()
    }


def _fail_empty(batch: Batch, result: Result) -> None:
    """A row without a policy token has nowhere to put its reward: it fails."""
    for row in (~batch["loss_mask"].any(1)).nonzero().flatten().tolist():
        result.scores[row] = None
        result.failures.setdefault(row, Failure("reward", "value", "the row has no policy token to carry a reward."))


def _errors_of(batch: Batch, result: Result) -> list[dict[str, Any]]:
    """What the log keeps of every failed row."""
    if not result.failures:
        return []
    groups = batch["group_ids"].tolist()
    return [
        {
            "step": batch.meta.get("step"),
            "uid": batch.prompts[groups[row]].uid,
            "rule": failure.rule,
            "kind": failure.kind,
            "message": failure.message,
            "completion": batch.objects["completions"][row][:LOGGED_CHARS],
        }
        for row, failure in sorted(result.failures.items())
    ]


def _completion_ids(batch: Batch) -> list[list[int]]:
    """The ids of each row's policy tokens."""
    own = zip(batch["input_ids"], batch["loss_mask"], strict=True)
    return [ids[mask].tolist() for ids, mask in own] if "input_ids" in batch else [[]] * len(batch)


def _prompt_ids(batch: Batch) -> list[list[int]]:
    """The expanded ids of each row's prompt; a group shares one list."""
    of_prompt = [prompt.ids.tolist() for prompt in batch.prompts]
    return [of_prompt[group] for group in batch["group_ids"].tolist()]


def _pictures(batch: Batch) -> list[list[Any]]:
    """Handles of every row's pictures, in the order of the prompt; a group shares one list."""
    of_prompt = [[batch.media[span.media].image for span in prompt.spans] for prompt in batch.prompts]
    return [of_prompt[group] for group in batch["group_ids"].tolist()]


def _first_pictures(batch: Batch) -> list[Media | None]:
    of_prompt = [batch.media[prompt.spans[0].media] if prompt.spans else None for prompt in batch.prompts]
    return [of_prompt[group] for group in batch["group_ids"].tolist()]
