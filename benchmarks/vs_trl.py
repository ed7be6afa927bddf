"""A whole GRPO step against TRL's ``GRPOTrainer``: same model, data, group size, lengths, learning rate and threads.

Both run in one environment with the same torch and transformers, in turns, each in a process of its own. A step is the time
from the end of one optimiser step to the end of the next, data and rewards included, start-up left out. Answers are forced
to the full length on both sides, so that token counts are equal. TRL is timed at several micro-batch sizes and its best
counts. On our side the standing gates are on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.peers import ROOT, peer_python

THREADS = 2
WARM = 2


@dataclass(frozen=True)
class Shape:
    """How much a step does.

    Attributes:
        steps: timed in each turn, on our side and on TRL's.
        splits: gradient-accumulation steps that TRL is tried with.
        turns: how often the two sides alternate.
    """

    prompts: int
    samples: int
    tokens: int
    steps: tuple[int, int]
    splits: tuple[int, ...]
    turns: int


SHAPES = {
    "quickstart": Shape(prompts=16, samples=8, tokens=8, steps=(30, 30), splits=(1, 2), turns=3),
    "one_image": Shape(prompts=4, samples=16, tokens=24, steps=(5, 2), splits=(1, 4), turns=2),
}


def main() -> None:
    """Runs both shapes and prints a table and the ratios."""
    python, ratios = peer_python(), {}
    print(f"{'shape':<12} {'side':<18} {'s/step':>8} {'peak MiB':>9}")
    for name, shape in SHAPES.items():
        best = min(shape.splits, key=lambda split: _turn(python, name, "trl", split, quick=True)["median"])
        ours, theirs = [], []
        for _ in range(shape.turns):
            ours.append(_turn(python, name, "ours"))
            theirs.append(_turn(python, name, "trl", best))
        for side, turns in (("rlvlm", ours), (f"TRL (split {best})", theirs)):
            times = [second for turn in turns for second in turn["seconds"]]
            print(f"{name:<12} {side:<18} {statistics.median(times):>8.4f} {max(t['peak_mib'] for t in turns):>9.0f}")
        pairs = [b["median"] / a["median"] for a, b in zip(ours, theirs, strict=True)]
        ratios[f"step_{name}"] = round(statistics.median(pairs), 2)
        ratios[f"memory_{name}"] = round(max(t["peak_mib"] for t in ours) / max(t["peak_mib"] for t in theirs), 2)
    print(json.dumps(ratios))


def _turn(python: Any, shape: str, side: str, split: int = 1, quick: bool = False) -> dict[str, Any]:
    command = [str(python), "-m", "benchmarks.vs_trl", "--side", side, "--shape", shape, "--split", str(split)]
    env = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *(["--quick"] if quick else [])], env=env, cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{side} failed on {shape}:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    return {**result, "median": statistics.median(result["seconds"])}


# ---------------------------------------------------------------- the two shapes, the same for both sides


def _parts(shape: str) -> tuple[Any, Any, Any]:
    """Model, tokenizer and image processor."""
    import torch

    torch.manual_seed(0)
    if shape == "quickstart":
        from rlvlm.models.toys import toy_llava

        made = toy_llava()
        return made.model, made.tokenizer, made.image_processor
    from tokenizers.pre_tokenizers import WhitespaceSplit

    from benchmarks.generate import qwen2_5_vl

    made = qwen2_5_vl()
    made.tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    made.tokenizer.eos_token = "w0"
    made.tokenizer.chat_template = (
        "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
        "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|> {% else %}{{ c['text'] }}{% endif %}"
        "{% endfor %}{% endif %}{% endfor %}"
    )
    return made.model, made.tokenizer, made.image_processor


def _records(shape: str, count: int) -> list[dict[str, Any]]:
    """Questions with pictures and answers."""
    if shape == "quickstart":
        from rlvlm.data.toys.shapes import shapes

        source = shapes(0, "train", size=count)
        return [{k: source[i][k] for k in ("problem", "answer", "images")} for i in range(count)]
    from PIL import Image

    question = " ".join(f"w{index}" for index in range(1, 41))
    noise = [Image.effect_noise((392, 392), 50).convert("RGB") for _ in range(16)]
    return [{"problem": question, "answer": "w1", "images": [noise[i % 16]]} for i in range(count)]


def _score(completion: str, answer: str) -> float:
    """A cheap rule that random weights get a spread of rewards from."""
    return random.Random(completion).random() + (answer in completion)


# ---------------------------------------------------------------- our side


def _ours(shape: str, steps: int) -> list[float]:
    from rlvlm.data.loader import Loader
    from rlvlm.data.sources import register_source
    from rlvlm.engines.train.config import OptimizerConfig
    from rlvlm.models.policy import Policy
    from rlvlm.pipelines.build import build_rlvr
    from rlvlm.pipelines.config import Stage
    from rlvlm.rewards import register_reward
    from rlvlm.roles.config import ActorConfig, RolloutConfig
    from rlvlm.roles.reward import Reward
    from rlvlm.tracking.recorder import Recorder
    from rlvlm.tracking.rundir import RunDir

    sizes = SHAPES[shape]
    records = _records(shape, sizes.prompts * (steps + WARM + 4))

    @register_source("benchmark")
    def benchmark(seed: int) -> list[dict[str, Any]]:
        return records

    @register_reward("benchmark")
    def rule(completion: str, answer: str) -> float:
        return _score(completion, answer)

    stage = Stage()
    stage.actor = ActorConfig(optimizer=OptimizerConfig(lr=1e-5, weight_decay=0.0), token_budget=65536)
    stage.rollout = RolloutConfig(n=sizes.samples, max_new_tokens=sizes.tokens)
    stage.data.train, stage.data.prompts_per_step, stage.data.template = "benchmark", sizes.prompts, None
    stage.reward.rules = {"benchmark": 1.0}
    policy = Policy.from_parts(*_parts(shape)).eval()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Reward(stage.reward) as reward:
        recorder = Recorder(RunDir.create(folder), trackers=["jsonl"], show=False)
        recorder.begin("rlvr", total=steps + WARM)
        parts, _ = build_rlvr(stage, policy, reward)
        parts.rollout.params = replace(parts.rollout.params, ignore_eos=True)
        loader = Loader(stage.data, policy.family, 0)
        last = time.perf_counter()
        for step, prompts in zip(range(1, steps + WARM + 1), loader, strict=False):
            metrics = parts.step(prompts, step, recorder)
            recorder.log(step, metrics)
            assert metrics["tokens"] == sizes.prompts * sizes.samples * sizes.tokens
            now = time.perf_counter()
            seconds.append(now - last)
            last = now
        loader.close()
        recorder.close()
    return seconds[WARM:]


# ---------------------------------------------------------------- TRL's side


def _trl(shape: str, steps: int, split: int) -> list[float]:
    import transformers
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    sizes = SHAPES[shape]
    model, tokenizer, image_processor = _parts(shape)
    records = _records(shape, sizes.prompts * (steps + WARM + 2))
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": r["problem"]}], "image": r["images"][0], "answer": r["answer"]}
            for r in records
        ]
    )
    banned = [
        index
        for token, index in tokenizer.get_vocab().items()
        if token in ("<image>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    ]
    rows = sizes.prompts * sizes.samples
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            fp16=False,
            per_device_train_batch_size=rows // split,
            gradient_accumulation_steps=split,
            num_generations=sizes.samples,
            max_completion_length=sizes.tokens,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            max_steps=steps + WARM,
            beta=0.0,
            loss_type="dapo",
            temperature=1.0,
            top_k=0,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=0,
            gradient_checkpointing=False,
            disable_tqdm=True,
            weight_decay=0.0,
            generation_kwargs={"min_new_tokens": sizes.tokens, "suppress_tokens": banned},
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=[_trl_reward],
            args=config,
            train_dataset=data,
            processing_class=_trl_processor(shape, tokenizer, image_processor),
        )
        ends: list[float] = []

        class Clock(transformers.TrainerCallback):
            def on_step_end(self, *args: Any, **kwargs: Any) -> None:
                ends.append(time.perf_counter())

        trainer.add_callback(Clock())
        trainer.train()
        lengths = [
            entry["completions/mean_length"]
            for entry in trainer.state.log_history
            if "completions/mean_length" in entry
        ]
        assert set(lengths) == {float(sizes.tokens)}, lengths
    return [b - a for a, b in itertools.pairwise(ends)][WARM - 1 :]


def _trl_reward(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    texts = [c[0]["content"] if isinstance(c, list) else c for c in completions]
    flat = [t if isinstance(t, str) else "".join(part.get("text", "") for part in t) for t in texts]
    return [_score(text, gold) for text, gold in zip(flat, answer, strict=False)]


def _trl_processor(shape: str, tokenizer: Any, image_processor: Any) -> Any:
    import transformers

    if shape == "quickstart":
        return transformers.LlavaProcessor(
            image_processor=image_processor,
            tokenizer=tokenizer,
            patch_size=14,
            vision_feature_select_strategy="default",
            image_token="<image>",
            num_additional_image_tokens=1,
            chat_template=tokenizer.chat_template,
        )

    class PictureProcessor(transformers.Qwen2_5_VLProcessor):
        """Without a video processor, which needs torchvision."""

        @classmethod
        def get_attributes(cls) -> list[str]:
            return ["image_processor", "tokenizer"]

        def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
            self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
            transformers.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    return PictureProcessor(image_processor, tokenizer, tokenizer.chat_template)


def _child(arguments: argparse.Namespace) -> None:
    import torch

    from rlvlm.engines.host_memory import keep_freed_memory

    torch.set_num_threads(THREADS)
    keep_freed_memory()  # ours does this by itself; TRL gets the same
    ours, theirs = SHAPES[arguments.shape].steps
    sides: dict[str, Callable[[], list[float]]] = {
        "ours": lambda: _ours(arguments.shape, ours),
        "trl": lambda: _trl(arguments.shape, max(1, theirs // 5) if arguments.quick else theirs, arguments.split),
    }
    seconds = sides[arguments.side]()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mib": peak}))


def _read(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("ours", "trl"))
    parser.add_argument("--shape", choices=tuple(SHAPES))
    parser.add_argument("--split", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asked = _read(sys.argv[1:])
    if asked.side:
        _child(asked)
    else:
        main()
