"""Each policy loss written once more, token by token and with plain Python numbers where that says it best.

Each takes float64 inputs [B, L] and gives the loss [B, L] by autograd's own operations; nothing here is shared with the library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Inputs = dict[str, Any]


def by_token(one: Callable[..., Tensor]) -> Callable[[Inputs], Tensor]:
    """A loss of one token at a time: ``one(logp, prox_logp, behav_logp, advantage)``."""

    def loss(x: Inputs) -> Tensor:
        rows = []
        for row in range(x["logp"].shape[0]):
            names = ("logp", "prox_logp", "behav_logp", "advantages")
            tokens = zip(*(x[name][row].unbind() for name in names), strict=True)
            rows.append(torch.stack([one(*token) for token in tokens]))
        return torch.stack(rows)

    return loss


def number(x: Tensor | bool) -> float:
    """The value without its gradient."""
    return float(x.detach()) if isinstance(x, Tensor) else float(x)


def ppo(logp: Tensor, prox: Tensor, behav: Tensor, a: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    ratio = (logp - prox).exp()
    inside = 1 - low <= number(ratio) <= 1 + high
    edge = 1 + high if number(ratio) > 1 else 1 - low
    clipped = ratio if inside else torch.tensor(edge, dtype=ratio.dtype) + 0 * logp
    return -(a * ratio) if number(a * ratio) <= number(a * clipped) else -(a * clipped)


def dual(logp: Tensor, prox: Tensor, behav: Tensor, a: Tensor) -> Tensor:
    loss = ppo(logp, prox, behav, a)
    return loss if number(a) >= 0 or number(loss) <= number(-3 * a) else -3 * a + 0 * logp


def decoupled(over_cap: str) -> Callable[..., Tensor]:
    def loss(logp: Tensor, prox: Tensor, behav: Tensor, a: Tensor) -> Tensor:
        weight = number((prox - behav).exp())
        kept = min(weight, 1.1) if over_cap == "clamp" else (weight if weight <= 1.1 else 0.0)
        return ppo(logp, prox, behav, a, high=0.28) * kept

    return loss


def cispo(logp: Tensor, prox: Tensor, behav: Tensor, a: Tensor) -> Tensor:
    ratio = number((logp - prox).exp())
    return -min(max(ratio, 0.8), 1.2) * a * logp


def sapo(logp: Tensor, prox: Tensor, behav: Tensor, a: Tensor) -> Tensor:
    tau = 1.0 if number(a) > 0 else 1.05
    return -a * 4 / tau / (1 + (-tau * ((logp - prox).exp() - 1)).exp())


def dppo(kind: str) -> Callable[..., Tensor]:
    def loss(logp: Tensor, prox: Tensor, behav: Tensor, a: Tensor) -> Tensor:
        new, old = number(logp.exp()), number(prox.exp())
        if kind == "tv":
            keep = new - old <= 0.05 if number(a) > 0 else old - new <= 0.05
        else:
            near = old * (number(prox) - number(logp)) + (1 - old) * number(
                torch.log(torch.tensor((1 - old + 1e-8) / (1 - new + 1e-8), dtype=torch.float64))
            )
            keep = near <= 0.01 or (new <= old if number(a) > 0 else new >= old)
        return -a * min(new / old, 20.0) * logp * number(keep)

    return loss


def gspo(form: str) -> Callable[[Inputs], Tensor]:
    def loss(x: Inputs) -> Tensor:
        rows = []
        for row, mask in enumerate(x["loss_mask"]):
            logp, prox, a = (x[name][row] for name in ("logp", "prox_logp", "advantages"))
            if not mask.any():
                rows.append(0 * logp)
                continue
            s = ((logp - prox)[mask].sum() / mask.sum()).exp()
            ratio = s.expand_as(a) if form == "sequence" else s.detach() * (logp - logp.detach()).exp()
            rows.append(-torch.minimum(a * ratio, a * ratio.clamp(0.9, 1.15)))
        return torch.stack(rows)

    return loss


def geo_mean(x: Inputs) -> Tensor:
    rows = []
    for row, mask in enumerate(x["loss_mask"]):
        logp, prox, a = (x[name][row] for name in ("logp", "prox_logp", "advantages"))
        total = 0 * logp.sum()
        for t in mask.nonzero().flatten().tolist():
            d = logp[t] - prox[t]
            if number(a[t]) > 0 and number(d) > 0.4:
                d = 0.4 + 0 * d
            if number(a[t]) < 0 and number(d) < -0.4:
                d = -0.4 + 0 * d
            total = total + (d if number(a[t]) != 0 else 0 * d)
        count = max(int(mask.sum()), 1)
        mean_advantage = number(a[mask].sum()) / count
        rows.append((-mean_advantage * (total / count).exp()).expand_as(logp))
    return torch.stack(rows)


def covariance(x: Inputs) -> Tensor:
    mask, a, logp = x["loss_mask"], x["advantages"], x["logp"].detach()
    return (a - a[mask].mean()) * (logp - logp[mask].mean())


def kl_cov(x: Inputs) -> Tensor:
    mask = x["loss_mask"]
    ranked = torch.where(mask, covariance(x), -torch.inf).flatten()
    chosen = torch.zeros_like(ranked).bool()
    chosen[ranked.topk(max(1, int(0.2 * int(mask.sum())))).indices] = True
    log_ratio = x["logp"] - x["prox_logp"]
    return -x["advantages"] * log_ratio.exp() + torch.where(chosen.view_as(mask), 0.7 * log_ratio.abs(), 0.0)


LOSSES: dict[str, tuple[dict[str, Any], Callable[[Inputs], Tensor]]] = {
    "ppo_clip": ({"name": "ppo_clip"}, by_token(ppo)),
    "dual_clip": ({"name": "ppo_clip", "dual_clip": 3.0}, by_token(dual)),
    "decoupled_clamp": ({"name": "decoupled_clip", "clip_high": 0.28, "cap": 1.1}, by_token(decoupled("clamp"))),
    "decoupled_mask": (
        {"name": "decoupled_clip", "clip_high": 0.28, "cap": 1.1, "over_cap": "mask"},
        by_token(decoupled("mask")),
    ),
    "reinforce": ({"name": "reinforce"}, by_token(lambda logp, prox, behav, a: -a * logp)),
    "gpg": ({"name": "gpg"}, by_token(lambda logp, prox, behav, a: -a * logp)),
    "cispo": ({"name": "cispo"}, by_token(cispo)),
    "sapo": ({"name": "sapo"}, by_token(sapo)),
    "dppo_tv": ({"name": "dppo_tv", "threshold_low": 0.05, "threshold_high": 0.05}, by_token(dppo("tv"))),
    "dppo_kl": ({"name": "dppo_kl", "threshold_low": 0.01, "threshold_high": 0.01}, by_token(dppo("kl"))),
    "gspo": ({"name": "gspo", "clip_low": 0.1, "clip_high": 0.15}, gspo("sequence")),
    "gspo_token": ({"name": "gspo", "clip_low": 0.1, "clip_high": 0.15, "form": "token"}, gspo("token")),
    "geo_mean": ({"name": "geo_mean"}, geo_mean),
    "kl_cov": ({"name": "kl_cov", "share": 0.2, "coefficient": 0.7}, kl_cov),
}
