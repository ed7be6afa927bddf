"""A program that scores cases as a run does, by the reward role and its pool, and tells what was opened meanwhile.

Started as ``python -m tests.rewards.watched``: reads a line with the list of rules, then a line for each case,
``{"id", "rule", "think_prefilled", "rows": [{"completion", "record"}]}``; and prints ``{"id", "scores", "failures", "seconds",
"peak_mb"}`` for each.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from rlvlm.batch import Batch, Prompt
from rlvlm.errors import TrainingStopped
from rlvlm.rewards.config import RewardConfig
from rlvlm.roles.reward import Reward

RULE = "case"


def batch_of(rows: list[dict[str, Any]]) -> Batch:
    """Rows of one policy token each, with their records."""
    ids = torch.ones(1, dtype=torch.long)
    prompts = [Prompt(f"p{number}", row["record"], ids, ids) for number, row in enumerate(rows)]
    size = (len(rows), 2)
    fields = {
        "group_ids": torch.arange(len(rows)),
        "input_ids": torch.ones(size, dtype=torch.long),
        "loss_mask": torch.tensor([[False, True]]).expand(size).clone(),
        "truncated": torch.zeros(len(rows), dtype=torch.bool),
    }
    return Batch(fields, prompts=prompts).with_objects(completions=[row["completion"] for row in rows])


def scored(reward: Reward, rows: list[dict[str, Any]]) -> tuple[list[float | None], list[str]]:
    """Each row's score, ``None`` where it failed, and the failures' messages; scored in the background, as a run does."""
    try:
        out = reward.submit(batch_of(rows)).result()
    except TrainingStopped as error:
        return [None] * len(rows), [str(error)]
    kept = dict(zip(out["group_ids"].tolist(), out[("scores_by_rule", RULE)].tolist(), strict=True))
    kept = {out.prompts[group].uid: value for group, value in kept.items()}
    return [kept.get(f"p{number}") for number in range(len(rows))], [
        error["message"] for error in out.meta["reward_errors"]
    ]


def peak_mb(reward: Reward) -> float:
    """The largest resident memory that any worker process has had, in MiB."""
    pool = reward.runner._pool
    workers = [] if pool is None else [worker.process.pid for worker in list(pool._state.workers)]
    return max(map(_peak_of, workers), default=0.0)


def _peak_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            return max([int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")], default=0.0)
    except OSError:  # it has ended
        return 0.0


def main() -> None:
    """Scores the cases on standard input, each as a batch of its own."""
    rules = json.loads(sys.stdin.readline())
    # the limits are the default ones; the column "rule" of a record picks its rule, so that all share one pool
    choice = {"by": "rule", "table": {json.dumps(rule): rule for rule in rules}}
    rewards = {
        prefilled: Reward(RewardConfig(rules={RULE: choice}, workers=1, think_prefilled=prefilled))
        for prefilled in (False, True)
    }
    for line in sys.stdin:
        case = json.loads(line)
        for row in case["rows"]:
            row["record"]["rule"] = json.dumps(case["rule"])
        reward, start = rewards[case["think_prefilled"]], time.monotonic()
        scores, failures = scored(reward, case["rows"])
        told = {"id": case["id"], "scores": scores, "failures": failures, "seconds": time.monotonic() - start}
        print(json.dumps({**told, "peak_mb": peak_mb(reward)}), flush=True)
    for reward in rewards.values():
        reward.close()


if __name__ == "__main__":
    main()
