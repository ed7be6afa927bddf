"""Dynamic sampling: groups that filters dropped are replaced by answers to new prompts, until the batch is full."""

from __future__ import annotations

import math

from rlvlm.batch import Batch
from rlvlm.tracking.metrics import reduce_metrics


class Refill:
    """Collects the groups that are left of several rounds of answers.

    Args:
        wanted: groups of a full batch.
        at_most: rounds after the first.

    DAPO, arXiv 2503.14476. Elsewhere: ``filter_groups.max_num_gen_batches`` (verl), ``max_try_make_batch`` (EasyR1, RLLaVA);
    there the run stops where the batch is not full by then.
    """

    def __init__(self, wanted: int, at_most: int) -> None:
        self.wanted, self.at_most = wanted, at_most
        self._rounds: list[Batch] = []
        self._answered = 0

    def add(self, prompts: int, kept: Batch) -> None:
        """Takes in what is left of the answers to so many prompts."""
        self._answered += prompts
        self._rounds.append(kept)

    @property
    def groups(self) -> int:
        """Groups so far."""
        return sum(groups_of(batch) for batch in self._rounds)

    @property
    def missing(self) -> int:
        """How many prompts to answer next, so that as many groups as are missing are left of them; 0 when it is done.

        It goes by the share of groups that was left so far, and is a full batch's prompts at most.
        """
        groups = self.groups
        if groups >= self.wanted or len(self._rounds) > self.at_most:
            return 0
        share = groups / self._answered
        return self.wanted if not share else min(self.wanted, math.ceil((self.wanted - groups) / share))

    def batch(self) -> Batch:
        """The first ``wanted`` groups of all rounds."""
        filled = [batch for batch in self._rounds if len(batch)]
        whole = Batch.concat(filled) if filled else self._rounds[0]
        metrics = reduce_metrics([batch.meta.get("metrics", {}) for batch in self._rounds])
        listed = {
            name: [entry for batch in self._rounds for entry in batch.meta.get(name, [])]
            for name in ("filtered", "reward_errors")
        }
        whole = whole.with_meta(metrics=metrics, **{name: entries for name, entries in listed.items() if entries})
        return whole.filter(whole["group_ids"] < self.wanted) if groups_of(whole) > self.wanted else whole

    def metrics(self) -> dict[str, float]:
        """Rounds after the first, the groups that they gave, and those that were too many or are missing in the end."""
        first, groups = groups_of(self._rounds[0]), self.groups
        return {
            "sum/refills": float(len(self._rounds) - 1),
            "sum/refill/groups": float(groups - first),
            "sum/refill/surplus_groups": float(max(groups - self.wanted, 0)),
            "sum/refill/missing_groups": float(max(self.wanted - groups, 0)),
        }


def groups_of(batch: Batch) -> int:
    """How many groups have a row."""
    return int(batch["group_ids"].unique().numel())
