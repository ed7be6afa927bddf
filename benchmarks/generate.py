"""Generation: the in-process engine against ``model.generate(num_return_sequences=G)``, same weights, tokens and threads.

Both sides draw the same number of tokens at temperature 1 with the picture tokens banned; ours also gives their
log-probs. ``speedup`` is of the shape with one 392×392 picture in each of 4 prompts, 16 samples of 24 tokens;
``speedup_quickstart`` of 32 prompts, 8 samples of 8 tokens by the quickstart's model.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models

from rlvlm.batch import Batch, Media, Prompt
from rlvlm.engines.inference.config import SamplingParams
from rlvlm.engines.inference.hf import HfEngine
from rlvlm.models.loading import ModelParts
from rlvlm.models.policy import Policy
from rlvlm.models.toys import toy_llava

REPEATS = 7
SPECIAL = ("<image>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")


@dataclass(frozen=True)
class Shape:
    """One comparison: a model, and how much of what it generates."""

    name: str
    build: Callable[[], ModelParts]
    placeholder: str
    picture: int
    words: int
    prompts: int
    samples: int
    tokens: int


def words(vocab: int) -> Any:
    """A tokenizer of ``vocab`` ids: the picture tokens, and one word for each of the others."""
    plain = [*(f"w{index}" for index in range(vocab - len(SPECIAL) - 1)), "<unk>"]
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(plain)}, unk_token="<unk>"))
    core.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<unk>", unk_token="<unk>")


def qwen2_5_vl() -> ModelParts:
    """4 M parameters: 4 layers of width 256, a vision tower of 4 layers of width 128."""
    tokenizer = words(1000)
    ids = tokenizer.get_vocab()
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "eos_token_id": None,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0},
    }
    vision = {
        "depth": 4,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 4,
        "out_hidden_size": 256,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1, 3],
    }
    config = transformers.Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    processor = transformers.Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, size={"shortest_edge": 28**2, "longest_edge": 28**2 * 1024}
    )
    return ModelParts(transformers.Qwen2_5_VLForConditionalGeneration(config), tokenizer, processor)


SHAPES = (
    Shape(
        "one picture",
        qwen2_5_vl,
        "<|vision_start|><|image_pad|><|vision_end|>",
        392,
        40,
        prompts=4,
        samples=16,
        tokens=24,
    ),
    Shape("quickstart", toy_llava, "<image>", 42, 17, prompts=32, samples=8, tokens=8),
)


def make_prompts(policy: Policy, shape: Shape) -> Batch:
    """``shape.prompts`` prompts of a random picture and random words each."""
    random = np.random.default_rng(0)
    plain = np.setdiff1d(np.arange(len(policy.tokenizer)), policy.family.banned_ids)
    prompts, media = [], []
    for number in range(shape.prompts):
        image = Image.fromarray(random.integers(0, 256, (shape.picture, shape.picture, 3), dtype=np.uint8))
        ids, engine_ids, spans = policy.family.encode_prompt(shape.placeholder, [image])
        question = torch.from_numpy(random.choice(plain, shape.words))
        spans = tuple(dataclasses.replace(span, media=number) for span in spans)
        prompts.append(Prompt(str(number), {}, torch.cat((ids, question)), torch.cat((engine_ids, question)), spans))
        media.append(Media(str(number), policy.family.target_size(image.size), image=image))
    return Batch({"group_ids": torch.arange(shape.prompts)}, prompts=prompts, media=media)


def theirs(model: Any, policy: Policy, prompts: Batch, shape: Shape) -> Callable[[], Any]:
    """``generate`` with every prompt given once."""
    ids = torch.stack([prompt.ids for prompt in prompts.prompts])
    pixels = [policy.family.pixels(picture) for picture in prompts.media]
    inputs = {name: torch.cat([one[name] for one in pixels]) for name in pixels[0]}
    if "image_grid_thw" in inputs:
        inputs["mm_token_type_ids"] = (ids == policy.family.placeholder_id).long()
    settings = transformers.GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=shape.samples,
        max_new_tokens=shape.tokens,
        suppress_tokens=list(policy.family.banned_ids),
        pad_token_id=0,
    )

    def run() -> Any:
        with torch.inference_mode():
            return model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings, **inputs
            )

    return run


def compare(shape: Shape) -> tuple[float, float]:
    """Median seconds of their side and of ours, taken in turn."""
    torch.manual_seed(0)
    parts = shape.build()
    model = parts.model.eval()
    peer = copy.deepcopy(model)  # keeps transformers' own attention
    policy = Policy.from_parts(model, parts.tokenizer, parts.image_processor)
    prompts = make_prompts(policy, shape)
    params = SamplingParams(n=shape.samples, max_new_tokens=shape.tokens, ignore_eos=True)
    engine = HfEngine(policy.eval())
    their_side = theirs(peer, policy, prompts, shape)
    their_times: list[float] = []
    our_times: list[float] = []
    width = len(prompts.prompts[0].ids)
    for step in range(REPEATS + 2):
        start = time.perf_counter()
        out = their_side()
        middle = time.perf_counter()
        mine = engine.generate(prompts, params, step)
        end = time.perf_counter()
        count = shape.prompts * shape.samples * shape.tokens
        assert (out.shape[1] - width) * len(out) == int(mine["loss_mask"].sum()) == count
        if step >= 2:  # the first two rounds warm up
            their_times.append(middle - start)
            our_times.append(end - middle)
    print(
        f"{shape.name:<12} {sum(p.numel() for p in model.parameters()) / 1e6:5.2f} M  {shape.prompts:>3} prompts x "
        f"{width:>3} tokens  {shape.samples:>3} samples x {shape.tokens:>3} tokens"
    )
    return statistics.median(their_times), statistics.median(our_times)


def main() -> None:
    """Prints the table, then one line of JSON."""
    transformers.logging.set_verbosity_error()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    figures: dict[str, float] = {}
    for shape, suffix in zip(SHAPES, ("", "_quickstart"), strict=True):
        their_seconds, our_seconds = compare(shape)
        ratio = their_seconds / our_seconds
        print(f"  generate {their_seconds:7.3f} s   rlvlm {our_seconds:7.3f} s   {ratio:5.2f}x")
        figures |= {f"speedup{suffix}": round(ratio, 3), f"seconds{suffix}": round(our_seconds, 4)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
