from __future__ import annotations

import torch
from torch import Tensor

from rlvlm.algos.policy_losses.covariance import clip_cov, kl_cov, token_covariance
from tests.algos.drawn import draw, take, widen


def drawn_tokens(seed: int, columns: int = 0, **options: float) -> Tensor:
    fields = widen(draw(3, rows=8, length=12), columns)
    result = clip_cov(
        fields["logp"],
        fields["prox_logp"],
        fields["advantages"],
        fields["loss_mask"],
        torch.Generator().manual_seed(seed),
        **{"low": 0.0, "share": 0.1, **options},  # type: ignore[arg-type]
    )
    return result.metrics["mean/covariance_clip_fraction"]


def test_the_drawn_tokens_are_candidates_and_as_many_as_asked() -> None:
    fields = draw(3, rows=8, length=12)
    mask = fields["loss_mask"]
    covariance = token_covariance(fields["logp"], fields["advantages"], mask)
    drawn = drawn_tokens(0)
    assert int(drawn.sum()) == int(0.1 * int(mask.sum()))
    assert (covariance[drawn] > 0).all()
    assert not drawn[~mask].any()


def test_the_draw_follows_the_seed_and_nothing_else() -> None:
    assert drawn_tokens(0).equal(drawn_tokens(0))
    assert any(not drawn_tokens(0).equal(drawn_tokens(seed)) for seed in range(1, 5))
    torch.manual_seed(5)
    assert drawn_tokens(0).equal(drawn_tokens(0))


def test_padding_columns_do_not_change_the_draw() -> None:
    assert drawn_tokens(0, columns=5)[:, :12].equal(drawn_tokens(0))


def test_at_least_one_token_is_drawn_and_none_where_there_is_no_candidate() -> None:
    assert int(drawn_tokens(0, share=1e-9).sum()) == 1
    assert not drawn_tokens(0, low=1e6, high=1e7).any()


def test_a_drawn_token_has_neither_loss_nor_gradient() -> None:
    fields = draw(3)
    logp = fields["logp"].clone().requires_grad_()
    result = clip_cov(
        logp, fields["prox_logp"], fields["advantages"], fields["loss_mask"], fields["generator"], low=0.0, share=0.3
    )
    result.loss[fields["loss_mask"]].sum().backward()
    drawn = result.metrics["mean/covariance_clip_fraction"]
    assert drawn.any()
    assert not result.loss[drawn].any()
    assert logp.grad is not None
    assert not logp.grad[drawn].any()


def test_the_penalised_tokens_do_not_depend_on_the_order_of_rows() -> None:
    fields = draw(4, rows=8)
    order = torch.tensor([3, 1, 7, 0, 2, 6, 4, 5])

    def chosen(x: dict[str, Tensor]) -> Tensor:
        result = kl_cov(x["logp"], x["prox_logp"], x["advantages"], x["loss_mask"], share=0.2)
        return result.metrics["mean/covariance_clip_fraction"]

    assert chosen(take(fields, order)).equal(chosen(fields)[order])
