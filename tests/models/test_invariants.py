"""The invariants that every family keeps: pictures, packing and shared prompts change no number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlvlm.batch import Batch, Span
from rlvlm.models.config import LoraConfig
from rlvlm.models.loading import enable_checkpointing
from rlvlm.models.policy import Policy
from tests import tiny
from tests.close import assert_near
from tests.models.grids import MIXED, distance, judged, mixed_batch, run

SMALL = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "ff": 48, "vision_hidden": 32, "vision_heads": 2}
GROUPS = {"alone": [1, 1, 1, 1], "pairs": [2, 2, 2, 2], "eight": [8, 8, 8, 8], "uneven": [3, 1, 5, 2]}


@pytest.fixture(params=tiny.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def small_policy(family: str, lora: bool = False) -> Policy:
    policy = tiny.policy(family, **SMALL)
    if lora:
        policy.add_adapters(LoraConfig(rank=2, parts=["vision", "connector", "language"]))
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                if "lora_B" in name:
                    weight.normal_(0, 0.1)
    return policy


def response_lengths(sizes: list[int], single: bool) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [[1 if single else int(torch.randint(1, 9, (), generator=generator)) for _ in range(n)] for n in sizes]


def model_logp(policy: Policy, batch: Batch) -> Tensor:
    """Log-probs by the model's own forward, full logits, one sample at a time: an independent truth."""
    out = torch.zeros(batch["input_ids"].shape)
    for row in range(len(batch)):
        one = batch.index([row])
        ids = one["input_ids"][:, : int(one["attention_mask"].sum())]
        pixels = [policy.family.pixels(one.media[span.media]) for span in one.prompts[0].spans]
        inputs = {name: torch.cat([p[name] for p in pixels]) for name in pixels[0]} if pixels else {}
        if policy.family.name != "llava":
            inputs["mm_token_type_ids"] = (ids == policy.family.placeholder_id).int()
        with torch.no_grad():
            logits = policy.model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0]
        logits = (logits / one["temperature"][0]).index_fill(1, policy.banned, -torch.inf)
        logp = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None]).squeeze(1)
        out[row, 1 : ids.shape[1]] = logp
    return out.masked_fill(~batch["loss_mask"], 0.0)


def test_every_layout_gives_the_log_probs_of_the_models_own_forward(family: str) -> None:
    policy = tiny.policy(family)
    heat = torch.tensor([1.0, 0.7, 1.3, 1.0, 1.0, 0.5, 1.0, 2.0])
    batch = mixed_batch(policy, [[3, 1, 5], [4, 4], [1], [7, 2]], temperature=heat)
    truth = model_logp(policy, batch)
    for kind in ("padded", "packed", "shared"):
        outputs = policy(policy.layout(batch, kind))
        assert_near(outputs.logp, truth)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("single", [False, True], ids=["uneven", "one-token"])
@pytest.mark.parametrize("groups", list(GROUPS))
def test_shared_and_packed_rows_equal_padded_ones_in_outputs_and_gradients(
    family: str, groups: str, single: bool, lora: bool
) -> None:
    policy = small_policy(family, lora)
    batch = mixed_batch(policy, response_lengths(GROUPS[groups], single))
    truth, _ = run(policy, batch, "padded")
    for kind in ("packed", "shared"):
        outputs, _ = run(policy, batch, kind)
        assert_near(outputs.logp, truth.logp)
        assert_near(outputs.entropy, truth.entropy)
    # In fp32 the padded gradient itself is up to 1e-4 off the true one, by another rounding on every CPU and thread count.
    policy.model.double()
    _, truth_gradient = run(policy, batch, "padded")
    for kind in ("packed", "shared", "shared, recomputed"):
        if kind == "shared, recomputed":
            policy.train()
            enable_checkpointing(policy.model)
        _, gradient = run(policy, batch, kind.split(",")[0])
        assert distance(gradient, truth_gradient) < 1e-5, kind  # the head works in fp32


def test_samples_of_a_group_may_stand_apart_and_in_any_order(family: str) -> None:
    policy = tiny.policy(family)
    batch = mixed_batch(policy, [[3, 1, 5], [4, 4], [1], [7, 2]])
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(1))
    straight, _ = run(policy, batch, "shared")
    mixed, _ = run(policy, batch.reorder(order), "shared")
    assert_near(mixed.logp, straight.logp[order])


def test_pictures_encoded_together_equal_pictures_encoded_alone(family: str) -> None:
    policy = tiny.policy(family)
    pixels = [
        policy.family.process(tiny.picture(size, seed)) for seed, size in enumerate([(60, 90), (30, 30), (120, 56)])
    ]
    joined = {name: torch.cat([one[name] for one in pixels]) for name in pixels[0]}
    with torch.no_grad():
        together = policy.family.encode_images(policy.model, joined)
        alone = [policy.family.encode_images(policy.model, one) for one in pixels]
    for level, whole in enumerate(together):
        assert_near(whole, torch.cat([one[level] for one in alone]))


def test_prompts_in_one_forward_equal_one_forward_each(family: str) -> None:
    policy = tiny.policy(family)
    batch = mixed_batch(policy, [[3, 1], [4, 4], [1, 6], [7, 2]])
    together, gradient = run(policy, batch, "shared", entropy=0.0)
    policy.zero_grad()
    weights = torch.linspace(0.5, 1.5, together.logp.numel()).view_as(together.logp)
    for group in range(4):
        rows = (batch["group_ids"] == group).nonzero().squeeze(1)
        outputs = policy(policy.layout(batch.index(rows), "shared"))
        assert_near(outputs.logp, together.logp[rows])
        (outputs.logp * weights[rows]).sum().backward()
    alone = torch.cat([w.grad.flatten() for w in policy.parameters() if w.grad is not None])
    assert distance(alone, gradient) < 1e-5


def with_observation(policy: Policy, batch: Batch) -> Batch:
    """Puts a picture into the middle of the second sample's answer: [2 tokens | picture | 3 tokens]."""
    picture = batch.media[0]
    tokens = policy.family.image_tokens(picture.size)
    rows = [ids[mask] for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    start = len(batch.prompts[int(batch["group_ids"][1])].ids)
    middle = torch.full((tokens,), policy.family.placeholder_id)
    rows[1] = torch.cat((rows[1][: start + 2], middle, rows[1][start + 2 :]))
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask, loss = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for row, own in enumerate(rows):
        ids[row, : len(own)], mask[row, : len(own)] = own, True
        loss[row, len(batch.prompts[int(batch["group_ids"][row])].ids) : len(own)] = True
    loss[1, start + 2 : start + 2 + tokens] = False
    tensors = {"input_ids": ids, "attention_mask": mask, "loss_mask": loss, "group_ids": batch["group_ids"]}
    spans: list[tuple[Span, ...]] = [() for _ in rows]
    spans[1] = (Span(0, start + 2, tokens),)
    return Batch(tensors, prompts=batch.prompts, media=batch.media, objects={"spans": spans})


def test_a_picture_in_a_later_turn_has_its_place_in_every_layout(family: str) -> None:
    policy = tiny.policy(family)
    batch = with_observation(policy, mixed_batch(policy, [[3, 5, 5], [4, 4], [1], [7, 2]]))
    truth, truth_gradient = run(policy, batch, "padded")
    for kind in ("shared", "packed"):
        outputs, gradient = run(policy, batch, kind)
        assert_near(outputs.logp, truth.logp)
        assert distance(gradient, truth_gradient) < 1e-5
    first = batch.prompts[0].spans[0]
    assert (
        len(policy.layout(batch, "shared").pictures.slots)
        == sum(  # type: ignore[union-attr]
            span.length for prompt in batch.prompts for span in prompt.spans
        )
        + 2 * first.length
    )  # the whole row repeats its prompt's picture beside its own


def test_text_only_samples_still_make_one_vision_call_and_touch_no_picture(family: str) -> None:
    policy = tiny.policy(family)
    batch = tiny.samples(policy, tiny.prompts(policy, [[], []]), [[3, 1], [4]])
    tower = policy.model.model.vision_tower if family == "llava" else policy.model.model.visual
    calls = []
    tower.register_forward_hook(lambda *_: calls.append(1))
    outputs, _ = run(policy, batch, "shared")
    assert len(calls) == 1
    assert_near(outputs.logp, model_logp(policy, batch))
    gradients = [w.grad for name, w in policy.named_parameters() if policy.part_of(name) == "vision"]
    assert any(g is not None for g in gradients)
    assert all(g is None or not g.any() for g in gradients)


def test_the_picture_reaches_the_answer(family: str) -> None:
    policy = tiny.policy(family)
    batch = mixed_batch(policy, [[3], [4], [2], [5]])
    seen = policy(policy.layout(batch, "shared")).logp
    blind = Batch(
        {key: batch[key] for key in ("input_ids", "attention_mask", "loss_mask", "group_ids")},
        prompts=batch.prompts,
        media=[
            type(m)(m.key, m.size, pixels={k: v if "grid" in k else v * 0 for k, v in m.pixels.items()})
            for m in batch.media
        ],
    )
    gap = (policy(policy.layout(blind, "shared")).logp - seen).abs().amax(1)
    assert (gap > 1e-4).tolist() == [bool(sizes) for sizes in MIXED]


def test_in_bf16_no_layout_is_further_from_fp32_than_padded_rows_are(family: str) -> None:
    errors: dict[str, Tensor] = {kind: torch.zeros(2) for kind in ("padded", "shared", "packed")}
    for seed in range(2):
        exact = tiny.policy(family, seed=seed, **SMALL)
        batch = mixed_batch(exact, [[30, 21, 25], [24, 24], [31], [17, 22]], seed=seed)
        truth, truth_gradient = run(exact, batch, "padded")
        rough = tiny.policy(family, seed=seed, **SMALL).bfloat16()
        for kind, error in errors.items():
            outputs, gradient = run(rough, batch, kind)
            gap = distance(judged(outputs.logp, batch), judged(truth.logp, batch))
            error += torch.tensor([gap, distance(gradient, truth_gradient)])
    for kind in ("shared", "packed"):
        assert (errors[kind] <= 1.5 * errors["padded"]).all(), errors
