"""``reward_model``: a sequence-classification model that rates a question with its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rlvlm.ranges import at_least
from rlvlm.rewards.models import LoadOnce, as_text, batches, check_path, load_pretrained
from rlvlm.rewards.rule import register_reward


@register_reward(
    "reward_model",
    batched=True,
    in_trainer=True,
    ranges=(at_least(1, "max_length", "batch_size"), at_least(0, "label")),
    range=(float("-inf"), float("inf")),
    example={
        "completion": "Two dogs.",
        "record": {"problem": "What is on the beach?"},
        "options": {"path": "my-reward-model", "squash": "sigmoid"},
    },
)
class RewardModel:
    """The rating that a sequence-classification model gives to a problem and its completion.

    Args:
        path: folder or hub name of the model.
        squash: ``sigmoid`` brings the rating to 0..1; of several labels the probability of ``label`` is taken then.
        label: which of the model's labels is the rating.
        part: ``visible`` rates the text outside thinking, ``whole`` the whole completion, ``answer`` the answer alone.
        max_length: tokens that are read; longer text is cut at its end.
        device: where it runs; ``None`` takes a GPU where there is one.
        batch_size: rows at once.

    Reads the column ``problem`` where there is one, and puts it with the text through the model's chat template if it has one.
    """

    def __init__(
        self,
        path: str,
        *,
        squash: Literal["sigmoid"] | None = None,
        label: int = 0,
        part: Literal["visible", "whole", "answer"] = "visible",
        max_length: int = 2048,
        device: str | None = None,
        batch_size: int = 16,
    ) -> None:
        check_path("reward_model", path)
        self._squash, self._label, self._part = squash, label, part
        self._max_length, self._batch_size = max_length, batch_size
        self._loaded = LoadOnce(lambda: _load(path, device))

    def __call__(
        self,
        completion: Sequence[str],
        visible_text: Sequence[str],
        answer_text: Sequence[str],
        problem: Sequence[Any] | None = None,
    ) -> list[float]:
        """Ratings of all rows."""
        texts = {"visible": visible_text, "whole": completion, "answer": answer_text}[self._part]
        problems = [""] * len(texts) if problem is None else ["" if one is None else str(one) for one in problem]
        scores: list[float] = []
        for some in batches(list(zip(problems, texts, strict=True)), self._batch_size):
            scores.extend(self._rate(some))
        return scores

    def _rate(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        import torch

        model, tokenizer = self._loaded()
        texts = [_conversation(tokenizer, problem, as_text(tokenizer, text)) for problem, text in pairs]
        given = tokenizer(texts, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt")
        names = {
            name: value.to(model.device) for name, value in given.items() if name in ("input_ids", "attention_mask")
        }
        with torch.inference_mode():
            logits = model(**names).logits.float()
        if self._squash and logits.shape[1] > 1:
            return logits.softmax(-1)[:, self._label].tolist()
        ratings = logits[:, self._label]
        return (ratings.sigmoid() if self._squash else ratings).tolist()


def _conversation(tokenizer: Any, problem: str, text: str) -> str:
    if tokenizer.chat_template is None:
        return f"{problem}\n{text}" if problem else text
    turns = [{"role": "user", "content": problem}, {"role": "assistant", "content": text}]
    return str(tokenizer.apply_chat_template(turns if problem else turns[1:], tokenize=False))


def _load(path: str, device: str | None) -> tuple[Any, Any]:
    model, tokenizer = (
        load_pretrained("AutoModelForSequenceClassification", path, device),
        load_pretrained("AutoTokenizer", path),
    )
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id  # decoder models find the last token by it
    return model, tokenizer
