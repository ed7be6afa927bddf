"""``clip_similarity`` and ``clip_retrieval``: does the answer describe the picture, by an image–text encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.ranges import at_least
from rlvlm.rewards.models import LoadOnce, as_text, batches, check_path, load_pretrained
from rlvlm.rewards.pictures import decode, distinct, first_handle
from rlvlm.rewards.rule import register_reward

_EXAMPLE = {
    "completion": "<answer>two dogs on a beach</answer>",
    "record": {"images": ["beach.jpg"]},
    "options": {"path": "openai/clip-vit-base-patch32"},
}
_RANGES = (at_least(1, "batch_size"),)
_ENCODERS: dict[tuple[str, str | None], LoadOnce] = {}
"""Encoders by path and device: both rules share one model."""


class _Encoder:
    """A CLIP-like model: unit vectors of pictures and texts, and the scale of its logits."""

    def __init__(self, path: str, device: str | None) -> None:
        self.model = load_pretrained("AutoModel", path, device)
        self.tokenizer = load_pretrained("AutoTokenizer", path)
        self.tokenizer.padding_side = "right"
        self.processor = load_pretrained("AutoImageProcessor", path)
        scale = getattr(self.model, "logit_scale", None)
        self.scale = 100.0 if scale is None else float(scale.exp())

    def texts(self, texts: Sequence[str], batch_size: int) -> Any:
        """Unit vectors [n, d] of texts, cut and padded to the model's length: SigLIP was trained so, CLIP does not mind."""
        import torch

        length = getattr(getattr(self.model.config, "text_config", None), "max_position_embeddings", 77)
        parts = []
        for some in batches(texts, batch_size):
            given = self.tokenizer(
                [as_text(self.tokenizer, text) for text in some],
                padding="max_length",
                truncation=True,
                max_length=length,
                return_tensors="pt",
            )
            read = {
                name: given[name].to(self.model.device) for name in ("input_ids", "attention_mask") if name in given
            }
            parts.append(_unit(self.model.get_text_features(**read)))
        return torch.cat(parts)

    def pictures(self, images: Sequence[Any], batch_size: int) -> Any:
        """Unit vectors [n, d] of PIL images."""
        import torch

        parts = []
        for some in batches(images, batch_size):
            pixels = self.processor(images=list(some), return_tensors="pt")["pixel_values"].to(self.model.device)
            parts.append(_unit(self.model.get_image_features(pixel_values=pixels)))
        return torch.cat(parts)


def _unit(features: Any) -> Any:
    vectors = getattr(features, "pooler_output", features).float()
    return vectors / vectors.norm(dim=-1, keepdim=True)


@dataclass
class _Embedded:
    """Rows that have both a picture and an answer: vectors of the distinct pictures [p, d] and of the answers [n, d].

    ``picture_of`` is the picture of each answer, ``rows`` their rows, ``scores`` what the other rows get.
    """

    pictures: Any
    answers: Any
    picture_of: list[int]
    rows: list[int]
    scores: list[float | RewardError]

    def put(self, values: Any) -> list[float | RewardError]:
        """The scores of all rows, with ``values`` [n] for those embedded."""
        for row, value in zip(self.rows, values.tolist(), strict=True):
            self.scores[row] = value
        return self.scores


class _Clip:
    """Options and embedding that both rules share."""

    def __init__(self, rule: str, path: str, device: str | None, batch_size: int) -> None:
        check_path(rule, path)
        self.rule, self.batch_size = rule, batch_size
        self.encoder = _ENCODERS.setdefault((path, device), LoadOnce(lambda: _Encoder(path, device)))

    def embed(self, images: Sequence[Any], answers: Sequence[str], unmarked: Sequence[str]) -> _Embedded:
        """A row with a blank answer scores 0, one without a picture fails."""
        import torch

        texts = [answer or loose for answer, loose in zip(answers, unmarked, strict=True)]
        scores: list[float | RewardError] = [0.0] * len(texts)
        rows: list[int] = []
        handles: list[Any] = []
        for row, text in enumerate(texts):
            try:
                handle = first_handle(images[row], self.rule)
            except RewardError as error:
                scores[row] = error
                continue
            if text.strip():
                rows.append(row)
                handles.append(handle)
        if not rows:
            return _Embedded(torch.zeros(0, 1), torch.zeros(0, 1), [], [], scores)
        kept, picture_of = distinct(handles)
        with torch.inference_mode():
            pictures = self.encoder().pictures([decode(handle) for handle in kept], self.batch_size)
            return _Embedded(
                pictures, self.encoder().texts([texts[row] for row in rows], self.batch_size), picture_of, rows, scores
            )


@register_reward("clip_similarity", batched=True, in_trainer=True, example=_EXAMPLE, ranges=_RANGES)
class ClipSimilarity:
    """Cosine between picture and answer under a CLIP-like model, negative ones as 0.

    Args:
        path: folder or hub name of the model.
        device: where it runs; ``None`` takes a GPU where there is one.
        batch_size: pictures or texts at once.

    A blank answer scores 0; a record without a picture fails. Source: CLIPScore (2104.08718), without its factor 2.5.
    """

    def __init__(self, path: str, *, device: str | None = None, batch_size: int = 32) -> None:
        self._clip = _Clip("clip_similarity", path, device, batch_size)

    def __call__(
        self, images: Sequence[Any], answer_text: Sequence[str], unmarked_text: Sequence[str]
    ) -> list[float | RewardError]:
        """Scores of all rows."""
        found = self._clip.embed(images, answer_text, unmarked_text)
        return found.put((found.pictures[found.picture_of] * found.answers).sum(-1).clamp(0.0, 1.0))


@register_reward("clip_retrieval", batched=True, in_trainer=True, example=_EXAMPLE, ranges=_RANGES)
class ClipRetrieval:
    """Mean of P(picture | answer) and P(answer | picture) within the batch, under a CLIP-like model.

    The picture is told from all pictures of the batch, the answer from those given to other pictures: what is paid is
    what tells this picture from the others.

    Args:
        path: folder or hub name of the model.
        device: where it runs; ``None`` takes a GPU where there is one.
        batch_size: pictures or texts at once.

    A blank answer scores 0; a record without a picture fails. Raises ``RewardError`` for a batch with only one picture.
    """

    def __init__(self, path: str, *, device: str | None = None, batch_size: int = 32) -> None:
        self._clip = _Clip("clip_retrieval", path, device, batch_size)

    def __call__(
        self, images: Sequence[Any], answer_text: Sequence[str], unmarked_text: Sequence[str]
    ) -> list[float | RewardError]:
        """Scores of all rows."""
        import torch

        found = self._clip.embed(images, answer_text, unmarked_text)
        if not found.rows:
            return found.scores
        if len(found.pictures) < 2:
            raise RewardError(
                "reward 'clip_retrieval' tells pictures apart, and the batch has only one; use clip_similarity, or more prompts."
            )
        logits = self._clip.encoder().scale * found.answers @ found.pictures.T  # [answers, pictures]
        own = torch.tensor(found.picture_of, device=logits.device)
        to_picture = logits.softmax(1).gather(1, own[:, None]).squeeze(1)
        rivals = own[:, None] != own[None, :]
        rivals.fill_diagonal_(True)
        to_answer = logits[:, own].T.masked_fill(~rivals, -torch.inf).softmax(1).diagonal()
        return found.put((to_picture + to_answer) / 2)
