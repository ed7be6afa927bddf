from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlvlm.algos.blocks import add_up


def share(rows: slice, outputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    logp = outputs["logp"]
    loss = (logp**3).sum() + (outputs["entropy"].sum() if "entropy" in outputs else 0)
    return loss, {"mean/x": logp.detach().sum(), "max/x": logp.detach().max(), "min/x": logp.detach().min()}


def outputs(*names: str) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {name: torch.randn(7, 3, dtype=torch.float64, generator=g).requires_grad_() for name in names}


@pytest.mark.parametrize("cuts", [(7,), (3, 7), (1, 2, 5, 7)])
@pytest.mark.parametrize("scale", [1.0, -2.5])
def test_blocks_give_the_sum_its_gradient_and_the_joined_metrics(cuts: tuple[int, ...], scale: float) -> None:
    whole, pieces = outputs("logp", "entropy"), outputs("logp", "entropy")
    loss, metrics = share(slice(None), whole)
    (scale * loss).backward()
    starts = (0, *cuts[:-1])
    total, joined = add_up(share, pieces, [slice(a, b) for a, b in zip(starts, cuts, strict=True)])
    (scale * total).backward()
    assert float(total.detach()) == pytest.approx(float(loss.detach()))
    for name in ("logp", "entropy"):
        assert torch.allclose(pieces[name].grad, whole[name].grad)  # type: ignore[arg-type]
    assert {key: float(value) for key, value in joined.items()} == pytest.approx(
        {key: float(value) for key, value in metrics.items()}
    )


def test_an_output_that_the_loss_does_not_read_gets_no_gradient() -> None:
    def reads_one(rows: slice, given: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return given["logp"].sum(), {}

    given = outputs("logp", "entropy")
    add_up(reads_one, given, [slice(0, 4), slice(4, 7)])[0].backward()
    assert given["logp"].grad is not None
    assert given["entropy"].grad is None


def test_without_gradients_only_the_value_is_made() -> None:
    given = outputs("logp")
    with torch.no_grad():
        total, _ = add_up(share, given, [slice(0, 4), slice(4, 7)])
    assert not total.requires_grad
    plain = {name: value.detach() for name, value in given.items()}
    assert add_up(share, plain, [slice(0, 4), slice(4, 7)])[0] == total


def test_a_second_backward_gives_the_same_gradient_again() -> None:
    given = outputs("logp")
    total, _ = add_up(share, given, [slice(0, 4), slice(4, 7)])
    total.backward(retain_graph=True)
    first = given["logp"].grad.clone()  # type: ignore[union-attr]
    total.backward()
    assert torch.allclose(given["logp"].grad, 2 * first)  # type: ignore[arg-type]
