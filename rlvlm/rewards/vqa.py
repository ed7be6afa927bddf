"""``vqa_consistency``: a vision-language model is asked whether the picture shows what the answer says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvlm.errors import ConfigError, RewardError
from rlvlm.ranges import at_least
from rlvlm.rewards.models import LoadOnce, as_text, batches, check_path, load_pretrained
from rlvlm.rewards.pictures import decode, first_handle
from rlvlm.rewards.rule import register_reward

QUESTION = "Does this picture show the following? {text}\nAnswer yes or no."


@register_reward(
    "vqa_consistency",
    batched=True,
    in_trainer=True,
    ranges=(at_least(1, "batch_size"),),
    example={
        "completion": "<answer>two dogs on a beach</answer>",
        "record": {"images": ["beach.jpg"]},
        "options": {"path": "llava-hf/llava-1.5-7b-hf"},
    },
)
class VqaConsistency:
    """P(yes) / (P(yes) + P(no)) of a vision-language model that is asked whether the picture shows the answer.

    Args:
        path: folder or hub name of an image-text-to-text model with a chat template.
        question: what it is asked; ``{text}`` stands for the answer.
        yes, no: the words whose first tokens are compared.
        device: where it runs; ``None`` takes a GPU where there is one.
        batch_size: rows at once.

    A blank answer scores 0; a record without a picture raises ``RewardError``. Source: VQAScore (2404.01291).
    """

    def __init__(
        self,
        path: str,
        *,
        question: str = QUESTION,
        yes: str = "Yes",
        no: str = "No",
        device: str | None = None,
        batch_size: int = 8,
    ) -> None:
        check_path("vqa_consistency", path)
        if "{text}" not in question:
            raise ConfigError(f"the option 'question' of reward 'vqa_consistency' holds '{{text}}', got {question!r}.")
        self._question, self._words, self._batch_size = question, (yes, no), batch_size
        self._loaded = LoadOnce(lambda: _load(path, device))

    def __call__(
        self, images: Sequence[Any], answer_text: Sequence[str], unmarked_text: Sequence[str]
    ) -> list[float | RewardError]:
        """Scores of all rows."""
        texts = [answer or loose for answer, loose in zip(answer_text, unmarked_text, strict=True)]
        scores: list[float | RewardError] = [0.0] * len(texts)
        handles: dict[int, Any] = {}
        for row, text in enumerate(texts):
            try:
                handles[row] = first_handle(images[row], "vqa_consistency")
            except RewardError as error:
                scores[row] = error
            else:
                if not text.strip():
                    del handles[row]
        for some in batches(list(handles), self._batch_size):
            pictures = [decode(handles[row]) for row in some]
            words = self._loaded()[1].tokenizer
            questions = [self._question.replace("{text}", as_text(words, texts[row])) for row in some]
            for row, score in zip(some, self._ask(pictures, questions), strict=True):
                scores[row] = score
        return scores

    def _ask(self, pictures: Sequence[Any], questions: Sequence[str]) -> list[float]:
        import torch

        model, processor = self._loaded()
        prompts = [
            processor.apply_chat_template(
                [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}],
                add_generation_prompt=True,
            )
            for question in questions
        ]
        given = processor(text=prompts, images=[[picture] for picture in pictures], padding=True, return_tensors="pt")
        ids = [processor.tokenizer(word, add_special_tokens=False).input_ids[0] for word in self._words]
        with torch.inference_mode():
            logits = model(**given.to(model.device), logits_to_keep=1).logits[:, -1, ids].float()
        return logits.softmax(-1)[:, 0].tolist()


def _load(path: str, device: str | None) -> tuple[Any, Any]:
    processor = load_pretrained("AutoProcessor", path)
    processor.tokenizer.padding_side = "left"  # the last position is the one that answers
    return load_pretrained("AutoModelForImageTextToText", path, device), processor
