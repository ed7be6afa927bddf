"""A real but tiny LLaVA, made from a config in memory: enough to watch reinforcement learning work on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from rlvlm.models.loading import ModelParts, register_model_builder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>")
WHOLE = ("<answer>", "</answer>")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEAD = 32  # vLLM's CPU attention takes no smaller one


@register_model_builder("toy_llava")
def toy_llava(
    *,
    task: Literal["shapes", "digits"] = "shapes",
    hidden: int = 128,
    layers: int = 2,
    kv_heads: int = 2,
    mlp: int = 192,
    vision_hidden: int = 128,
    vision_layers: int = 1,
    vision_mlp: int = 128,
    side: int = 42,
    patch: int = 14,
    init_std: float = 0.08,
) -> ModelParts:
    """A LLaVA-architecture model (CLIP tower, projector, Qwen2) of about 0.5 M parameters with a tokenizer for a toy task."""
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        Qwen2Config,
    )

    tokenizer = toy_tokenizer(_corpus(task))
    ids = tokenizer.get_vocab()
    text = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"],
    )
    vision = CLIPVisionConfig(
        hidden_size=vision_hidden,
        intermediate_size=vision_mlp,
        num_hidden_layers=vision_layers,
        num_attention_heads=vision_hidden // HEAD,
        image_size=side,
        patch_size=patch,
        projection_dim=vision_hidden,
    )
    config = LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=ids["<image>"],
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "patch_embedding" not in name:
                weight.normal_(0, init_std)  # the usual 0.02 leaves so narrow a model on a plateau
    processor = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    return ModelParts(model, tokenizer, processor)


def toy_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on a task's texts: lossless, with one token for each frequent word."""
    from transformers import PreTrainedTokenizerFast  # here, as below: a recipe is checked without transformers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    roles = ["user\n", "assistant\n"] * 50
    core.train_from_iterator(
        [*texts, *roles], trainers.BpeTrainer(vocab_size=352, initial_alphabet=alphabet, show_progress=False)
    )
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in WHOLE])
    fast = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT
    return fast


def _corpus(task: str) -> list[str]:
    from rlvlm.data.toys import digits, shapes  # here: only the chosen task's packages need to be installed

    modules: dict[str, Any] = {"shapes": shapes, "digits": digits}
    texts: list[str] = modules[task].corpus()
    return texts
