"""Standing checks of a run: what the picture adds to the answers, and whether trainer and engine agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from rlvlm.batch import Batch, Media
from rlvlm.engines.train.base import TrainEngine
from rlvlm.errors import TrainingStopped
from rlvlm.pipelines.config import GatesConfig
from rlvlm.roles.actor import logp_of

PARITY = "mean/parity/logp_abs_diff"


class VisionGate:
    """Measures ``vision/logp_gain``: log-prob of answers with their pictures minus with blank ones, per token.

    Both go through the same Batch and forward. A gain of exactly 0 several times running means that no picture reaches
    the model; then the run stops, since it would train blind without any other sign.

    Args:
        engine: the actor's.
        config: how often, on how many rows, and how many zeros stop the run.
        token_budget: cost of a micro-batch at most.
    """

    def __init__(self, engine: TrainEngine, config: GatesConfig, token_budget: int) -> None:
        self.engine, self.config, self.token_budget = engine, config, token_budget
        self.zeros = 0

    def check(self, batch: Batch, step: int) -> dict[str, float]:
        """The metric at the steps that are due, over rows of different prompts with pictures; else nothing."""
        every = self.config.vision_every
        if every == 0 or step % every:
            return {}
        rows = _rows_with_pictures(batch, self.config.vision_rows)
        if rows is None:
            return {}
        gain = self._gain(rows)
        self.zeros = self.zeros + 1 if gain == 0.0 else 0
        if self.zeros >= self.config.vision_patience:
            raise TrainingStopped(
                f"vision/logp_gain was exactly 0 at {self.zeros} measurements running, up to step {step}: the picture makes no "
                "difference to the model, so it is not reaching it. Check the placeholders of the prompt template and the "
                "vision weights, or set run.gates.vision_every=0 if blindness is meant."
            )
        return {"vision/logp_gain": gain}

    def _gain(self, rows: Batch) -> float:
        seen = logp_of(self.engine, rows, self.token_budget)
        blind = logp_of(self.engine, rows.with_media([_blanked(picture) for picture in rows.media]), self.token_budget)
        return float((seen - blind).sum() / rows["loss_mask"].sum().clamp(min=1))

    def state_dict(self) -> dict[str, int]:
        """How many zeros were measured running."""
        return {"zeros": self.zeros}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restores what :meth:`state_dict` gave."""
        self.zeros = int(state["zeros"])


class SpreadWatch:
    """Says when no group has had rewards that differ for many steps: then no advantage is left, and nothing is learned."""

    def __init__(self) -> None:
        self.steps = 0

    def check(self, metrics: Mapping[str, float], patience: int, step: int) -> str | None:
        """A sentence at every ``patience``-th step running without spread, else ``None``; 0 switches it off."""
        flat = metrics.get("groups/no_spread", 0.0) == 1.0 or metrics.get("reward/std") == 0.0
        self.steps = self.steps + 1 if flat else 0
        if not patience or not flat or self.steps % patience:
            return None
        return (
            f"for {self.steps} steps, up to step {step}, every group's answers had equal rewards (mean {metrics.get('reward', 0.0):.3g}), "
            "so nothing is learned: look at the training answers in the report, at reward.rules, and at how hard the prompts are."
        )


def check_parity(metrics: Mapping[str, float], config: GatesConfig, step: int) -> None:
    """Raises ``TrainingStopped`` when trainer and engine log-probs of the same tokens differ by more than the limit."""
    gap = metrics.get(PARITY)
    if config.parity_limit is not None and gap is not None and not gap <= config.parity_limit:
        raise TrainingStopped(
            f"parity/logp_abs_diff is {gap:.3g} at step {step}, above run.gates.parity_limit = {config.parity_limit}: the "
            "inference engine samples from another distribution than the one that is trained."
        )


def _rows_with_pictures(batch: Batch, most: int) -> Batch | None:
    groups = batch["group_ids"].tolist()
    first_of = {}
    for row, group in enumerate(groups):
        if batch.prompts[group].spans and group not in first_of:
            first_of[group] = row
    rows = list(first_of.values())[:most]
    return batch.index(rows) if rows else None


def _blanked(picture: Media) -> Media:
    blank = {
        name: torch.zeros_like(value) if value.is_floating_point() else value for name, value in picture.pixels.items()
    }
    return dataclasses.replace(picture, key=f"blank/{picture.key}", image=None, pixels=blank)
