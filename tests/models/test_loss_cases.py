"""Cases of which state judges which token, and at which position: by the layouts and the forward of real policies."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlvlm.batch import Batch, Media, Prompt
from rlvlm.errors import DataError
from rlvlm.models.layouts import LAYOUTS
from rlvlm.models.policy import Policy
from tests import tiny
from tests.loss_cases import Case, cases_of, close, numbers, table


@functools.cache
def real_policy(name: str) -> Policy:
    return tiny.policy(name)


@functools.cache
def reference(name: str) -> Any:
    """The same model as transformers runs it."""
    torch.manual_seed(0)
    return tiny.parts(name)[0].eval()


@torch.no_grad()
def by_the_model(name: str, ids: Tensor, targets: Tensor, **inputs: Tensor) -> Tensor:
    """Log-probs of tokens at columns ``targets`` [N] of one row, from full logits, over the ids that may be sampled."""
    logits = reference(name)(input_ids=ids[None], **inputs).logits[0].double()
    logits[:, list(real_policy(name).family.banned_ids)] = -torch.inf
    return logits.log_softmax(-1)[targets - 1, ids[targets]]


def text_batch(rows: list[tuple[list[int], int]], loss_masks: list[list[int]] | None = None, pad: int = 0) -> Batch:
    """Rows of (ids, prompt length), each of its own prompt, filled up on the right."""
    width = max(len(ids) for ids, _ in rows)
    columns = torch.arange(width)
    ends = torch.tensor([len(ids) for ids, _ in rows])[:, None]
    starts = torch.tensor([start for _, start in rows])[:, None]
    loss_mask = (columns >= starts) & (columns < ends)
    if loss_masks is not None:
        loss_mask = torch.tensor([[*mask, *[0] * (width - len(mask))] for mask in loss_masks]).bool()
    heads = [torch.tensor(ids[:start]) for ids, start in rows]
    tensors = {
        "input_ids": torch.tensor([[*ids, *[pad] * (width - len(ids))] for ids, _ in rows]),
        "attention_mask": columns < ends,
        "loss_mask": loss_mask,
        "group_ids": torch.arange(len(rows)),
    }
    return Batch(tensors, prompts=[Prompt(str(n), {}, head, head) for n, head in enumerate(heads)])


@contextmanager
def given_logits(policy: Policy, logits: Tensor) -> Iterator[None]:
    """A block in which the state at position p has the logits ``logits[p]`` for the first ids, and none for the others."""
    count = logits.shape[1]
    head = policy.model.get_output_embeddings()
    kept = head.weight.detach().clone()

    def answer(_: nn.Module, __: tuple[Any, ...], inputs: dict[str, Any], out: Any) -> Any:
        places = inputs["position_ids"]
        places = places if places.dim() == 2 else places[0]
        states = torch.zeros_like(out.last_hidden_state)
        states[..., :count] = logits[places.clamp(max=len(logits) - 1)]
        states[..., count] = 1
        out.last_hidden_state = states
        return out

    hook = policy.model.model.language_model.register_forward_hook(answer, with_kwargs=True)
    try:
        with torch.no_grad():
            head.weight.zero_()
            head.weight[:count, :count] = torch.eye(count)
            head.weight[count:, count] = -1e4
        yield
    finally:
        hook.remove()
        with torch.no_grad():
            head.weight.copy_(kept)


def completion_logprobs(x: Case, expected: Case, case: Case) -> None:
    """The case's logits as those of a policy's states; then real states, against the model's full logits."""
    logits, ids, start = numbers(x["logits"], torch.float32), x["input_ids"], x["prompt_len"]
    batch = text_batch([(ids, start), (ids[: start + 1], start)])
    targets = torch.arange(start, len(ids))
    for name in tiny.FAMILIES:
        policy = real_policy(name)
        for layout in LAYOUTS:
            rows = policy.layout(batch, layout)
            with given_logits(policy, logits), torch.no_grad():
                logp = policy(rows).logp
            close(logp[0, start:], expected["logprobs"], {"tolerance": 1e-6})
            close(logp[1, start], expected["logprobs"][0], {"tolerance": 1e-6})
            assert not logp[~batch["loss_mask"]].any()
            with torch.no_grad():
                own = policy(rows).logp[0, start:]
            torch.testing.assert_close(
                own.double(), by_the_model(name, torch.tensor(ids), targets), rtol=1e-5, atol=1e-5
            )


def shift_mask_to_targets(x: Case, expected: Case, case: Case) -> None:
    """``loss_mask`` stands on the axis of ``input_ids``; the states that judge stand where the targets' mask is true."""
    mask, wanted = x["token_mask"], torch.tensor(expected["target_mask"]).bool()
    ids, start = [65 + n for n in range(len(mask))], mask.index(1)
    batch = text_batch([(ids, start)], [mask])
    for name in tiny.FAMILIES:
        for layout in LAYOUTS:
            policy = real_policy(name)
            rows = policy.layout(batch, layout)
            reads = torch.zeros(len(ids) - 1, dtype=torch.bool).index_fill_(0, rows.reads, True)
            assert torch.equal(reads, wanted)
            assert rows.targets is not None
            assert rows.targets.tolist() == torch.tensor(ids[1:])[wanted].tolist()
            with torch.no_grad():
                logp = policy(rows).logp
            assert logp[0].ne(0).int().tolist() == mask
            close_to = by_the_model(name, torch.tensor(ids), torch.tensor([start]))
            torch.testing.assert_close(logp[0, start].double(), close_to[0], rtol=1e-5, atol=1e-5)


def position_ids(x: Case, expected: Case, case: Case) -> None:
    """Positions count a row's own tokens; left padding is refused, and a row gets what a left-padded one would."""
    given = torch.tensor(x["attention_mask"]).bool()
    whole = torch.arange(65, 65 + given.numel()).view(given.shape)
    batch = text_batch([(ids[mask].tolist(), int(mask.sum()) - 1) for ids, mask in zip(whole, given, strict=True)])
    refused = batch.with_(attention_mask=given, input_ids=whole)
    wanted = numbers(expected["position_ids"])
    for name in tiny.FAMILIES:
        policy = real_policy(name)
        rows = policy.layout(batch, "padded")
        for axis in rows.positions.view(-1, *given.shape):
            close(
                torch.full(given.shape, -1).masked_scatter(given, axis[batch["attention_mask"]]), wanted.tolist(), case
            )
        stems = torch.cat([wanted[row, own][:-1] for row, own in enumerate(given)])  # prompts, then answers
        shared = torch.cat((stems, torch.stack([wanted[row, -1] for row in range(len(given))])))
        for layout, flat in (("packed", wanted[given]), ("shared", shared)):
            for axis in policy.layout(batch, layout).positions.view(-1, int(given.sum())):
                close(axis, flat.tolist(), case)
        with pytest.raises(DataError, match="rows are right-padded"):
            policy.layout(refused, "padded")
        with torch.no_grad():
            logp = policy(rows).logp.sum(1)
        for row, own in enumerate(given):
            positions = wanted[row].nan_to_num(0).long()[None]
            inputs = {"attention_mask": own.long()[None], "position_ids": positions}
            if rows.positions.dim() == 3:
                inputs["position_ids"] = positions.expand(3, 1, -1)
            last = torch.tensor([given.shape[1] - 1])
            theirs = by_the_model(name, whole[row], last, **inputs)
            torch.testing.assert_close(logp[row, None].double(), theirs, rtol=1e-5, atol=1e-5)


def mrope_position_ids(x: Case, expected: Case, case: Case) -> None:
    """A prompt of the case's tokens and pictures; its answer's first token has the next position, and padding moves none."""
    marks = [mark for mark, count in x["tokens"] for _ in range(count)]
    held = torch.tensor([mark != "P" for mark in marks])
    wanted = numbers(expected["position_ids_thw"])
    for name in ("qwen2_5_vl", "qwen3_vl"):
        policy = real_policy(name)
        patch = policy.model.config.vision_config.patch_size
        pictures = [tiny.picture((w * patch, h * patch), seed) for seed, (_, h, w) in enumerate(x["image_grid_thw"])]
        engine_ids = [i for mark, n in x["tokens"] for i in _engine_ids(policy, mark, n)]
        ids, engine, spans = policy.family.expand(torch.tensor(engine_ids), pictures)
        assert len(ids) == int(held.sum())
        table = [Media(str(n), picture.size, image=picture) for n, picture in enumerate(pictures)]
        long = torch.full((len(ids) + 3,), 67)  # beside a longer row, so that the case's has padding
        asked = Batch(
            {"group_ids": torch.arange(2)},
            prompts=[Prompt("case", {}, ids, engine, spans), Prompt("long", {}, long, long)],
            media=table,
        )
        batch = tiny.samples(policy, asked, [[1, 2], [4]])
        for layout in LAYOUTS:
            positions = policy.layout(batch, layout).positions
            row = positions[:, 0] if layout != "padded" else positions[:, 1]
            got = torch.full(wanted.shape, -1).masked_scatter(held, row[:, : len(ids)])
            close(got, wanted.tolist(), case)
            answer = len(ids) if layout != "shared" else len(ids) + len(long)
            assert row[:, answer].tolist() == [expected["next_position"]] * 3
            if layout == "padded":
                assert positions[:, 0, : len(ids)].equal(row[:, : len(ids)])
                assert positions[0, 2, : len(long)].tolist() == list(range(len(long)))


def _engine_ids(policy: Policy, mark: str, count: int) -> list[int]:
    """Ids of a run of the case's tokens before expansion."""
    return {"P": [], "T": [66] * count, "I": [policy.family.placeholder_id]}[mark]


OPERATIONS = table(completion_logprobs, shift_mask_to_targets, position_ids, mrope_position_ids)


@cases_of(OPERATIONS)
def test_a_fault_reported_of_another_library(case: Case) -> None:
    OPERATIONS[case["input"]["op"]](case["input"], case["expected"], case)
