"""The styles of other libraries' reward functions: what each is called with, and what it may give.

Facts as of November 2026: verl (``reward_manager`` naive and batch), EasyR1 and RLLaVA (``AutoRewardManager``), TRL
(``GRPOTrainer._calculate_rewards``), ms-swift (``swift/rewards/orm.py``), AReaL and LLaVA-OneVision-1.5-RL (workflows), OpenRLHF
(``reward_func``).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvlm.compat.calling import by_name, parameter_names, taken, then
from rlvlm.errors import RewardError
from rlvlm.rewards.execute import Batched

Function = Callable[..., Any]
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Call:
    """A function with what its node says of the way it is called.

    Attributes:
        arguments: keyword arguments that every call gets.
        conversational: of ``trl``: completions are lists of messages; ``None`` goes by the record's prompt, as TRL does.
        one_row: of ``easyr1``: it takes one completion, not the batch.
    """

    function: Function
    arguments: Mapping[str, Any] = field(default_factory=dict)
    conversational: bool | None = None
    one_row: bool = False


@dataclass(frozen=True)
class Style:
    """One library's way of calling a reward.

    Attributes:
        form: the call, for listings.
        make: the reward of a :class:`Call`, a function of what it reads.
        batched: it takes whole batches; ``None`` where the node says so.
        names: of functions that are taken where the node names none, in turn.
        columns: the record's columns are its keyword arguments.
        keys: of the node that say how it is called, and are no keyword arguments of the function.
        construct: builds a class that the node names.
    """

    form: str
    make: Callable[[Call], Function]
    batched: bool | None
    names: tuple[str, ...] = ()
    columns: bool = False
    keys: tuple[str, ...] = ()
    construct: Callable[[type, Mapping[str, Any]], Any] = field(default=lambda cls, build: cls(**build))


def _verl(call: Call) -> Function:
    names = ("data_source", "solution_str", "ground_truth", "extra_info")
    ask = by_name(call.function, names, "solution_str", call.arguments, {2: names[1:3], 1: names[1:2]})

    def score(
        completion: str,
        answer: Any = None,
        ground_truth: Any = None,
        reward_model: Any = None,
        data_source: Any = "",
        extra_info: Any = None,
    ) -> Any:
        gold = _gold({"answer": answer, "ground_truth": ground_truth, "reward_model": reward_model})
        given = (data_source, completion, gold, extra_info or {})
        return then(ask(dict(zip(names, given, strict=True))), _from_verl)

    return score


def _verl_batch(call: Call) -> Function:
    names = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
    ask = by_name(call.function, names, "solution_strs", call.arguments, {2: names[1:3], 1: names[1:2]})

    def score(completion: Sequence[str], record: Records) -> Any:
        given = {
            "data_sources": [one.get("data_source") or "" for one in record],
            "solution_strs": list(completion),
            "ground_truths": [_gold(one) for one in record],
            "extra_infos": [one.get("extra_info") or {} for one in record],
        }
        return then(ask(given), lambda results: [_from_verl(result) for result in results])

    return score


def _from_verl(result: Any) -> Any:
    """A number, a dict with ``score``, or a list that starts with the score."""
    if isinstance(result, Mapping):
        return _scored(result, "score")
    return result[0] if isinstance(result, (list, tuple)) and result else result


def _scored(result: Any, key: str) -> dict[str, Any]:
    if not isinstance(result, Mapping) or key not in result:
        got = f"a dict without '{key}', with {list(result)}" if isinstance(result, Mapping) else repr(result)
        raise RewardError(f"the reward function gave {got}, expected a dict with '{key}'.")
    return {"score": result[key], "detail": {name: value for name, value in result.items() if name != key}}


def _easyr1(call: Call) -> Function:
    return _easyr1_row(call) if call.one_row else _easyr1_batch(call)


def _easyr1_row(call: Call) -> Function:
    earlier = "predict" in parameter_names(call.function)  # EasyR1 before its dicts: (predict, ground_truth)

    def score(completion: str, record: Mapping[str, Any], response_length: Any = None) -> Any:
        given = _reward_input(completion, record, response_length)
        if earlier:
            result = call.function(predict=completion, ground_truth=given["ground_truth"], **call.arguments)
        else:
            result = call.function(given, **call.arguments)
        return then(result, lambda one: _scored(one, "overall"))

    return score


def _easyr1_batch(call: Call) -> Function:
    earlier = "predicts" in parameter_names(call.function)

    def score(completion: Sequence[str], record: Records, response_length: Sequence[Any] | None = None) -> Any:
        lengths = response_length or [None] * len(completion)
        rows = [_reward_input(*one) for one in zip(completion, record, lengths, strict=True)]
        if earlier:
            golds = [one["ground_truth"] for one in rows]
            results = call.function(predicts=list(completion), ground_truths=golds, **call.arguments)
        else:
            results = call.function(rows, **call.arguments)
        return then(results, lambda many: [_scored(result, "overall") for result in many])

    return score


def _reward_input(completion: str, record: Mapping[str, Any], tokens: Any) -> dict[str, Any]:
    """One row as EasyR1 and RLLaVA hand it over: every column of the record, and the response."""
    return {**record, "response": completion, "response_length": tokens, "ground_truth": _gold(record)}


def _trl(call: Call) -> Function:
    def score(
        completion: Sequence[str],
        record: Records,
        completion_ids: Sequence[Any] | None = None,
        training: Sequence[Any] | None = None,
    ) -> Any:
        log = _Log(len(completion))
        as_messages = call.conversational
        if as_messages is None:
            as_messages = bool(record) and _has_messages(record[0])
        texts = [[{"role": "assistant", "content": text}] if as_messages else text for text in completion]
        given = {
            **_columns(record, ("prompt", "completion", "completion_ids")),
            "prompts": [(_messages if as_messages else _text)(one) for one in record],
            "completions": texts,
            **({} if completion_ids is None else {"completion_ids": list(completion_ids)}),
            "trainer_state": _trainer_state(training),
            "log_extra": log.extra,
            "log_metric": log.metric,
            **call.arguments,
        }
        try:
            results = call.function(**taken(call.function, given))
        except TypeError as error:
            if not as_messages and "string indices" in str(error):
                raise RewardError(
                    f"the reward function reads completions as messages ({error}); set 'conversational: true' in its node."
                ) from error
            raise
        return then(results, log.take)

    return score


def _swift(call: Call) -> Function:
    def score(
        completion: Sequence[str],
        record: Records,
        completion_ids: Sequence[Any] | None = None,
        truncated: Sequence[Any] | None = None,
        training: Sequence[Any] | None = None,
    ) -> Any:
        turns = [
            [*_messages(one), {"role": "assistant", "content": text}]
            for one, text in zip(record, completion, strict=True)
        ]
        given = {
            **_columns(record, ("completions",)),
            "messages": turns,
            **({} if completion_ids is None else {"response_token_ids": list(completion_ids)}),
            **({} if truncated is None else {"is_truncated": list(truncated)}),
            "trainer_state": _trainer_state(training),
            **call.arguments,
        }
        results = call.function(list(completion), **taken(call.function, given))
        return then(results, _Log(len(completion)).take)

    return score


SWIFT_ARGUMENTS: dict[str, Any] = {
    "cosine_min_len_value_wrong": -0.5,
    "cosine_max_len_value_wrong": 0.0,
    "cosine_min_len_value_correct": 1.0,
    "cosine_max_len_value_correct": 0.5,
    "cosine_max_len": None,
    "repetition_n_grams": 3,
    "repetition_max_penalty": -1.0,
    "soft_max_length": None,
    "soft_cache_length": None,
}
"""What ms-swift's reward classes read of the trainer's arguments, with its defaults."""


def _construct_swift(cls: type, build: Mapping[str, Any]) -> Any:
    """Builds a class of ms-swift: the trainer's arguments as ``args`` where it takes them."""
    given = {**build, "args": types.SimpleNamespace(**{**SWIFT_ARGUMENTS, **build})}
    return cls(**(taken(cls, given) if cls.__init__ is not object.__init__ else {}))  # type: ignore[misc]


def _areal(call: Call) -> Function:
    names = ("prompt", "completions", "prompt_ids", "completion_ids")
    by_keyword = "completions" in parameter_names(call.function)

    def score(completion: str, record: Mapping[str, Any], prompt_ids: Any = None, completion_ids: Any = None) -> Any:
        head = (_text(record), completion, list(prompt_ids or ()), list(completion_ids or ()))
        columns = {**{str(name): value for name, value in record.items() if name not in names}, **call.arguments}
        if by_keyword:
            given = {**dict(zip(names, head, strict=True)), **columns}
            return then(call.function(**taken(call.function, given)), _from_areal)
        return then(call.function(*head, **taken(call.function, columns)), _from_areal)

    return score


def _from_areal(result: Any) -> Any:
    return _scored(result, "reward") if isinstance(result, Mapping) else result


def _openrlhf(call: Call) -> Function:
    names = ("queries", "prompts", "labels")
    ask = by_name(call.function, names, "queries", call.arguments)

    def score(completion: Sequence[str], record: Records) -> Any:
        prompts = [_text(one) for one in record]
        queries = [prompt + text for prompt, text in zip(prompts, completion, strict=True)]
        given = {"queries": queries, "prompts": prompts, "labels": [_gold(one) for one in record]}
        return then(ask(given), lambda result: _from_openrlhf(result, len(queries)))

    return score


def _from_openrlhf(result: Any, rows: int) -> Any:
    """Rewards, or a dict of ``rewards``, ``scores`` and ``extra_logs``: of each row a detail, of the batch a metric."""
    if not isinstance(result, Mapping):
        return _listed(result)
    if "rewards" not in result:
        raise RewardError(f"the reward function gave a dict without 'rewards', with {list(result)} instead.")
    details: list[dict[str, Any]] = [{} for _ in range(rows)]
    metrics: dict[str, float] = {}
    told = {**{name: result[name] for name in ("scores",) if name in result}, **(result.get("extra_logs") or {})}
    for name, value in told.items():
        values = _listed(value)
        if len(values) == rows and not (rows == 1 and isinstance(value, (int, float))):
            for detail, one in zip(details, values, strict=True):
                detail[str(name)] = one
        elif len(values) == 1:
            metrics[str(name)] = float(values[0])
    rewards = _listed(result["rewards"])
    if len(rewards) != rows:
        return rewards  # whose number is told to be wrong
    return Batched([{"score": one, "detail": own} for one, own in zip(rewards, details, strict=True)], metrics)


def _listed(value: Any) -> list[Any]:
    """Numbers of a tensor, an array, a list, or one alone."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, (list, tuple)) else [value]


class _Log:
    """What a TRL function logs while it scores: columns of the completions, and means of the batch."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._columns: dict[str, list[Any]] = {}
        self._metrics: dict[str, list[float]] = {}

    def extra(self, column: str, values: Sequence[Any]) -> None:
        """``log_extra``: one value for each completion."""
        self._columns.setdefault(str(column), []).extend(values)

    def metric(self, name: str, value: Any) -> None:
        """``log_metric``: a number; several of one name are averaged."""
        self._metrics.setdefault(str(name), []).append(float(value))

    def take(self, results: Sequence[Any]) -> Batched:
        """The scores with what was logged. ``None`` for a sample that the function leaves out counts 0, as in TRL's sum."""
        values = [self._value(row, result) for row, result in enumerate(results)]
        return Batched(values, {name: sum(many) / len(many) for name, many in self._metrics.items()})

    def _value(self, row: int, result: Any) -> Any:
        detail = {name: many[row] for name, many in self._columns.items() if len(many) == self._rows}
        if result is None:
            return {"score": 0.0, "detail": {"applies": False, **detail}}
        return {"score": result, "detail": detail} if detail else result


def _trainer_state(training: Sequence[Any] | None) -> Any:
    """Where training stands, under the names of transformers' ``TrainerState``."""
    at: Mapping[str, Any] = (training[0] if training else None) or {}
    return types.SimpleNamespace(
        global_step=at.get("step") or 0,
        max_steps=at.get("steps") or 0,
        epoch=float(at.get("epoch") or 0),
        log_history=[],
        is_local_process_zero=True,
        is_world_process_zero=True,
    )


def _gold(record: Mapping[str, Any]) -> Any:
    """The reference answer where other libraries keep it: verl's ``reward_model``, a column ``ground_truth``, or ours."""
    model = record.get("reward_model")
    if isinstance(model, Mapping) and "ground_truth" in model:
        return model["ground_truth"]
    return next((record[name] for name in ("ground_truth", "answer", "solution") if record.get(name) is not None), None)


def _columns(records: Records, left_out: Sequence[str]) -> dict[str, list[Any]]:
    names = dict.fromkeys(str(name) for one in records for name in one if name not in left_out)
    return {name: [one.get(name) for one in records] for name in names}


def _has_messages(record: Mapping[str, Any]) -> bool:
    return any(isinstance(record.get(name), (list, tuple)) and record[name] for name in ("prompt", "messages"))


def _messages(record: Mapping[str, Any]) -> list[Any]:
    """The prompt as messages: the record's own up to the last user turn, or its problem as the user's."""
    for name in ("prompt", "messages"):
        turns = record.get(name)
        if isinstance(turns, (list, tuple)) and turns:
            answered = isinstance(turns[-1], Mapping) and turns[-1].get("role") == "assistant"
            return list(turns[:-1] if answered else turns)
    return [{"role": "user", "content": _text(record)}]


def _text(record: Mapping[str, Any]) -> str:
    """The prompt as text, without a chat template."""
    for name in ("problem", "prompt", "question"):
        if isinstance(record.get(name), str):
            return str(record[name])
    if not _has_messages(record):
        return ""
    return "\n".join(_content(turn.get("content")) for turn in _messages(record) if isinstance(turn, Mapping))


def _content(content: Any) -> str:
    parts = content if isinstance(content, (list, tuple)) else [content]
    return "".join(str(part.get("text") or "") if isinstance(part, Mapping) else str(part or "") for part in parts)


STYLES: dict[str, Style] = {
    "verl": Style(
        "compute_score(data_source=, solution_str=, ground_truth=, extra_info=)", _verl, False, ("compute_score",)
    ),
    "easyr1": Style(
        "compute_score(reward_input) or compute_score(reward_inputs), which give 'overall'",
        _easyr1,
        None,
        ("main", "compute_score"),
        keys=("reward_type",),
    ),
    "trl": Style(
        "f(prompts=, completions=, completion_ids=, **columns)", _trl, True, columns=True, keys=("conversational",)
    ),
    "verl_batch": Style(
        "compute_score(data_sources=, solution_strs=, ground_truths=, extra_infos=)",
        _verl_batch,
        True,
        ("compute_score",),
    ),
    "areal": Style("f(prompt, completions, prompt_ids, completion_ids, **columns)", _areal, False, columns=True),
    "openrlhf": Style("reward_func(queries, prompts, labels)", _openrlhf, True, ("reward_func",)),
    "swift": Style("f(completions, **columns)", _swift, True, columns=True, construct=_construct_swift),
}
"""Every style by its name in a reward node."""
