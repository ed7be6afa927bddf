"""Reward functions with the signatures of other libraries, each called as its own library calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rlvlm
from rlvlm.batch import Batch, Prompt
from rlvlm.cli.main import main as cli
from rlvlm.compat.styles import STYLES
from rlvlm.rewards import Runner
from rlvlm.rewards.compose import PEER_STYLES
from rlvlm.rewards.config import RewardConfig
from rlvlm.roles.reward import Reward

SOURCE = """
import os, signal

def in_main_thread():
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    except ValueError:
        return 0.0
    return 1.0

# verl
def compute_score(solution_str, ground_truth, data_source=None, extra_info=None):
    return 1.0 if ground_truth in solution_str and data_source == "geo" and extra_info["split"] else -1.0

def verl_scorer(predict_str, ground_truth, use_boxed=True):
    return float(ground_truth in predict_str)

def verl_two(a, b):
    return float(b in a)

def verl_own_options(completion, test_cases, continuous=False, score=1.0):
    return float(test_cases in completion and continuous is False) * score

def verl_three(source, text, truth):
    return float(truth in text and source == "geo")

def verl_places(data_source, solution_str, ground_truth, extra_info, /):
    return float(ground_truth in solution_str)

def verl_all(**given):
    return float(given["ground_truth"] in given["solution_str"])

def verl_default(data_source="geo", solution_str="", ground_truth="?", extra_info=None, **kwargs):
    return float(ground_truth in solution_str) + kwargs.get("bonus", 0.0)

def verl_star(*given):
    return float(given[2] in given[1])

def verl_tuple(data_source, solution_str, ground_truth, extra_info=None):
    return (float(ground_truth in solution_str), "why")

async def verl_later(solution_str, ground_truth, **kwargs):
    return {"score": float(ground_truth in solution_str), "thread": in_main_thread()}

def verl_batch(data_sources, solution_strs, ground_truths, extra_infos, bonus=0.0):
    assert all(one["split"] for one in extra_infos)
    return [{"score": float(b in a) + bonus, "acc": 1} for a, b in zip(solution_strs, ground_truths)]

# EasyR1, RLLaVA
def easy_columns(reward_inputs):
    return [{"overall": float(one["level"]) if one["ground_truth"] in one["response"] else 0.0} for one in reward_inputs]

def easy_columns_row(reward_input):
    return {"overall": float(reward_input["level"]), "tokens": reward_input["response_length"]}

def easy_earlier(predicts, ground_truths, format_weight=0.1):
    return [{"overall": float(b in a), "format": format_weight} for a, b in zip(predicts, ground_truths)]

def easy_earlier_row(predict, ground_truth):
    return {"overall": float(ground_truth in predict)}

# TRL
def trl_all(prompts, completions, completion_ids, level, trainer_state, log_metric, log_extra, **kwargs):
    log_metric("level", sum(level) / len(level))
    log_metric("level", 0.0)
    log_extra("seen", [len(ids) for ids in completion_ids])
    assert prompts == ["q3", "q4"], prompts
    return [float(trainer_state.global_step + len(ids)) for ids in completion_ids]

def trl_strict(completions, level):
    return [float(one) for one in level]

def trl_messages(prompts, completions, **kwargs):
    return [float(one[0]["content"] in ("it is 3", "it is 5") and asked[-1]["role"] == "user") for asked, one in zip(prompts, completions)]

def trl_alarm(completions, **kwargs):
    return [in_main_thread() for _ in completions]

async def trl_later(completions, log_metric=None, **kwargs):
    log_metric("n", len(completions))
    return [in_main_thread() for _ in completions]

def get_scaled(scale, offset=0.0):
    calls = []
    def scaled(completions, **kwargs):
        calls.append(1)
        return [scale * len(text) + offset + len(calls) for text in completions]
    return scaled

class Scorer:
    def __init__(self, scale=1.0):
        self.scale, self.calls = scale, 0

    def __call__(self, completions, **kwargs):
        self.calls += 1
        return [self.scale * self.calls for _ in completions]

    @staticmethod
    def static(completions, **kwargs):
        return [2.0 for _ in completions]

    @classmethod
    def of_class(cls, completions, **kwargs):
        return [3.0 for _ in completions]

    def method(self, completions, **kwargs):
        return [4.0 * self.scale for _ in completions]

scorer = Scorer(5.0)

def trl_pictures(completions, images, **kwargs):
    return [float(own[0].getpixel((0, 0))[0]) for own in images]

def areal_picture(prompt, completions, prompt_ids, completion_ids, image, **data):
    return float(image.getpixel((0, 0))[0])

# ms-swift
class ORM:
    def __init__(self, args=None, **kwargs):
        self.args = args

class Cosine(ORM):
    def __init__(self, args=None, accuracy_orm=None):
        super().__init__(args)
        self.most, self.penalty = args.cosine_max_len, args.repetition_max_penalty

    def __call__(self, completions, level, **kwargs):
        assert kwargs["messages"][0][-1] == {"role": "assistant", "content": completions[0]}
        return [self.most + self.penalty + len(ids) for ids in kwargs["response_token_ids"]]

class AsyncOrm(ORM):
    async def __call__(self, completions, **kwargs):
        return [1.0 for _ in completions]

class NoArguments:
    def __call__(self, completions, **kwargs):
        return [float(len(text)) for text in completions]

class Requests(ORM):
    def __call__(self, infer_requests, level, **kwargs):
        return [float(isinstance(one, str)) for one in infer_requests]

# AReaL
def areal(prompt, completions, prompt_ids, completion_ids, answer, **kwargs):
    assert prompt.startswith("q") and kwargs["level"]
    return float(answer in completions) + len(prompt_ids) + len(completion_ids)

def areal_other(question, text, question_ids, text_ids, answer):
    return float(answer in text)

async def areal_later(prompt, completions, prompt_ids, completion_ids, answer, **data):
    return float(answer in completions)

class System:
    def reward(self, prompt, completions, answer, level=None, *args, **kwargs):
        return {"reward": float(answer in completions) * level, "acc_reward": 1.0}

# OpenRLHF
def reward_func(queries, prompts, labels, **kwargs):
    import torch
    assert all(query.startswith(prompt) for query, prompt in zip(queries, prompts))
    rewards = torch.tensor([float(label in query[len(prompt):]) for query, prompt, label in zip(queries, prompts, labels)])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"accuracy": rewards.mean(), "each": rewards}}

def openrlhf_plain(queries, prompts, labels):
    return [float(label in query) for query, label in zip(queries, labels)]
"""

RECORDS = [
    {"problem": "q3", "answer": "3", "level": 2, "data_source": "geo", "extra_info": {"split": "a"}},
    {"problem": "q4", "answer": "4", "level": 4, "data_source": "geo", "extra_info": {"split": "b"}},
]
COMPLETIONS = ("it is 3", "it is 5")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("styles") / "theirs.py"
    file.write_text(SOURCE, encoding="utf-8")
    return str(file)


def _run(*nodes: dict[str, Any], records: Any = RECORDS) -> Any:
    rules = {f"r{number}": node for number, node in enumerate(nodes)}
    runner = Runner(RewardConfig(rules=rules, workers=1, timeout=30.0))
    given = {
        "response_length": [3, 3],
        "completion_ids": [[7, 8, 9], [7, 8]],
        "prompt_ids": [[1, 2], [1, 2]],
        "truncated": [False, True],
        "training": [{"step": 10, "steps": 20, "epoch": 1}] * 2,
    }
    try:
        return runner.score(runner.samples(COMPLETIONS, records, **given))
    finally:
        runner.close()


def _scores(path: str, expected: dict[str, list[float]], **node: Any) -> None:
    nodes = [{**node, "path": f"{path}:{name}"} for name in expected]
    found = _run(*nodes)
    assert not found.failures, found.failures
    assert dict(zip(expected, found.parts.values(), strict=True)) == expected


def test_every_style_of_a_node_is_known_by_both_sides() -> None:
    assert tuple(STYLES) == PEER_STYLES


def test_verl_functions_are_called_by_keyword_and_by_place_only_where_the_signature_wants_it(path: str) -> None:
    expected = {"compute_score": [1.0, -1.0]}
    names = "verl_scorer verl_two verl_own_options verl_three verl_places verl_all verl_default verl_star verl_tuple verl_later"
    _scores(path, {**expected, **{name: [1.0, 0.0] for name in names.split()}}, style="verl")
    assert _run({"style": "verl", "path": path}).scores == [1.0, -1.0]
    assert _run({"style": "verl", "path": path, "function": "verl_default", "bonus": 0.5}).scores == [1.5, 0.5]


def test_an_async_function_runs_where_signals_work(path: str) -> None:
    found = _run({"style": "verl", "path": path, "function": "verl_later"})
    assert [one["thread"] for one in found.details["r0"].values()] == [1.0, 1.0]


def test_verl_batch_gets_lists(path: str) -> None:
    found = _run({"style": "verl_batch", "path": path, "function": "verl_batch", "bonus": 0.5})
    assert found.scores == [1.5, 0.5]
    assert found.details["r0"][0] == {"acc": 1}


def test_easyr1_gets_every_column_and_has_its_own_defaults(path: str, tmp_path: Path) -> None:
    _scores(path, {"easy_columns": [2.0, 0.0], "easy_earlier": [1.0, 0.0]}, style="easyr1")
    _scores(
        path, {"easy_columns_row": [2.0, 4.0], "easy_earlier_row": [1.0, 0.0]}, style="easyr1", reward_type="sequential"
    )
    (tmp_path / "own.py").write_text(
        "def main(reward_inputs):\n    return [{'overall': 7.0} for _ in reward_inputs]\n"
        "def compute_score(reward_inputs):\n    return [{'overall': 0.0} for _ in reward_inputs]\n"
    )
    assert _run({"style": "easyr1", "path": str(tmp_path / "own.py")}).scores == [7.0, 7.0]


def test_trl_gets_ids_state_and_what_it_logs_by(path: str) -> None:
    found = _run({"style": "trl", "path": path, "function": "trl_all"})
    assert found.scores == [13.0, 12.0]
    assert found.metrics == {"r0": {"level": 1.5}}
    assert found.details["r0"] == {0: {"seen": 3}, 1: {"seen": 2}}
    _scores(path, {"trl_strict": [2.0, 4.0], "trl_alarm": [1.0, 1.0], "trl_later": [1.0, 1.0]}, style="trl")


def test_trl_completions_are_messages_where_the_prompt_is_or_the_node_says_so(path: str) -> None:
    node = {"style": "trl", "path": path, "function": "trl_messages"}
    assert _run({**node, "conversational": True}).scores == [1.0, 1.0]
    asked = [{**one, "prompt": [{"role": "user", "content": one["problem"]}]} for one in RECORDS]
    assert _run(node, records=asked).scores == [1.0, 1.0]
    found = _run(node)
    assert "set 'conversational: true'" in found.failures[0].message


def test_factories_classes_methods_and_objects_can_be_named(path: str) -> None:
    expected = {
        "Scorer": [1.0, 1.0],
        "Scorer.static": [2.0, 2.0],
        "Scorer.of_class": [3.0, 3.0],
        "Scorer.method": [4.0, 4.0],
        "scorer": [5.0, 5.0],
        "scorer.method": [20.0, 20.0],
    }
    _scores(path, expected, style="trl")
    assert _run({"style": "trl", "path": path, "function": "get_scaled", "build": {"scale": 2.0}}).scores == [
        15.0,
        15.0,
    ]
    assert _run({"style": "trl", "path": path, "function": "Scorer", "build": {"scale": 9.0}}).scores == [9.0, 9.0]


def test_what_a_class_or_a_factory_keeps_lasts_from_batch_to_batch(path: str) -> None:
    rules = {
        "made": {"style": "trl", "path": path, "function": "get_scaled", "build": {"scale": 0.0}},
        "built": {"style": "trl", "path": path, "function": "Scorer"},
    }
    runner = Runner(RewardConfig(rules=rules, timeout=30.0))
    found = [runner.score(runner.samples(COMPLETIONS, RECORDS)).scores[0] for _ in range(3)]
    runner.close()
    assert found == [2.0, 4.0, 6.0]


def test_swift_classes_get_the_trainers_arguments_and_token_ids(path: str) -> None:
    node = {"style": "swift", "path": f"{path}:Cosine", "build": {"cosine_max_len": 100}}
    assert _run(node).scores == [102.0, 101.0]
    _scores(path, {"AsyncOrm": [1.0, 1.0], "NoArguments": [7.0, 7.0], "Requests": [1.0, 1.0]}, style="swift")


def test_areal_functions_get_prompt_ids_and_columns(path: str) -> None:
    expected = {"areal": [6.0, 4.0], "areal_other": [1.0, 0.0], "areal_later": [1.0, 0.0], "System.reward": [2.0, 0.0]}
    _scores(path, expected, style="areal")


class Handle:
    """A picture that is decoded where it is asked for."""

    def __init__(self, red: int) -> None:
        self.red = red

    def decode(self) -> Any:
        """The picture."""
        from PIL import Image

        return Image.new("RGB", (2, 2), (self.red, 0, 0))


def test_functions_that_name_pictures_get_them_decoded(path: str) -> None:
    rules = {
        "many": {"style": "trl", "path": f"{path}:trl_pictures"},
        "one": {"style": "areal", "path": f"{path}:areal_picture", "weight": 100.0},
    }
    runner = Runner(RewardConfig(rules=rules, workers=1, timeout=30.0))
    found = runner.score(runner.samples(COMPLETIONS, RECORDS, images=[[Handle(5)], [Handle(7)]]))
    runner.close()
    assert found.scores == [505.0, 707.0]


def test_openrlhf_functions_get_queries_and_give_rewards_and_logs(path: str) -> None:
    found = _run({"style": "openrlhf", "path": path})
    assert found.scores == [1.0, 0.0]
    assert found.metrics == {"r0": {"accuracy": 0.5}}
    assert found.details["r0"][0] == {"scores": 1.0, "each": 1.0}
    _scores(path, {"openrlhf_plain": [1.0, 1.0]}, style="openrlhf")  # the query holds the prompt, q4


def test_the_role_hands_ids_over_and_keeps_the_metrics(path: str) -> None:
    prompts = [
        Prompt(uid=f"u{n}", record=one, ids=torch.tensor([1, 2]), engine_ids=torch.tensor([1, 2]))
        for n, one in enumerate(RECORDS)
    ]
    batch = Batch(
        {
            "group_ids": torch.tensor([0, 1]),
            "input_ids": torch.tensor([[1, 2, 7, 8, 9], [1, 2, 7, 8, 0]]),
            "loss_mask": torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 0]]).bool(),
        },
        objects={"completions": list(COMPLETIONS)},
        prompts=prompts,
        meta={"step": 10},
    )
    rules = {
        "logged": {"style": "trl", "path": path, "function": "trl_all"},
        "ids": {"style": "areal", "path": f"{path}:areal"},
    }
    with Reward(RewardConfig(rules=rules, timeout=30.0), steps=20) as reward:
        scored = reward.score(batch)
    assert scored["scores"].tolist() == [13.0 + 6.0, 12.0 + 4.0]
    assert scored.meta["metrics"]["mean/reward/logged/level"] == 1.5


@pytest.mark.parametrize(
    ("style", "name"),
    [
        ("verl", "verl_all"),
        ("trl", "trl_alarm"),
        ("swift", "NoArguments"),
        ("areal", "areal_later"),
        ("openrlhf", "openrlhf_plain"),
    ],
)
def test_the_command_line_scores_by_every_style(
    style: str, name: str, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**record, "completion": text} for record, text in zip(RECORDS, COMPLETIONS, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code = cli(["score", str(tmp_path / "rows.jsonl"), "--reward", f"mine=1,style={style},path={path}:{name}"])
    assert code == 0, capsys.readouterr()
    assert "errors:" not in capsys.readouterr().out


def test_check_reward_takes_every_style() -> None:
    def trl(completions: list[str], **kwargs: Any) -> list[float]:
        return [float("42" in text) for text in completions]

    class Orm:
        def __call__(self, completions: list[str], **kwargs: Any) -> list[float]:
            return [float("42" in text) for text in completions]

    def openrlhf(queries: list[str], prompts: list[str], labels: list[str]) -> list[float]:
        return [float("42" in text) for text in queries]

    for function, style in ((trl, "trl"), (Orm, "swift"), (openrlhf, "openrlhf")):
        assert rlvlm.check_reward(function, style=style, timeout=30.0).ok
