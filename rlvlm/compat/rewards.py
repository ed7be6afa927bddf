"""Peers' reward functions, unchanged: ``style: verl``, ``easyr1`` (RLLaVA's too) or ``trl`` in a reward node.

The style is always named and never guessed from a signature::

    reward:
      rules:
        mine: {style: verl, path: my_rewards.py, function: compute_score, weight: 1.0}

Keys of the node beside those of :func:`load_reward` are passed on as keyword arguments.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlvlm.errors import ConfigError, RewardError, nearest
from rlvlm.registry import Part, load_plugins, unregistered
from rlvlm.rewards.rule import TRAITS

STYLES = ("verl", "easyr1", "trl")
Function = Callable[..., Any]

_GOLD_COLUMNS = ("answer", "ground_truth", "reward_model")
_DEFAULT_FUNCTION = {"verl": "compute_score", "easyr1": "compute_score", "trl": None}
_NODE_KEYS = ("style", "path", "function", "reward_type", "conversational")


def load_reward(label: str, node: Mapping[str, Any]) -> Part:
    """Builds the part that a reward node with a ``style`` names.

    Args:
        label: of the rule, for messages.
        node: ``style``, ``path`` (a ``.py`` file or a dotted module), ``function`` (``compute_score`` unless given; needed
            for ``trl``), ``reward_type`` (``batch`` or ``sequential``, of EasyR1; the module's ``REWARD_TYPE`` unless given),
            ``conversational`` (of TRL: completions go in as lists of messages), and keyword arguments of the function.

    Raises ``ConfigError`` when the function isn't there or a key is missing.
    """
    style = str(node.get("style"))
    if not isinstance(node.get("path"), str):
        raise ConfigError(
            f"reward.rules.{label} with style '{style}' names its function by 'path' (a .py file or a module) and 'function'."
        )
    (module,) = load_plugins([node["path"]])
    name = node.get("function") or _DEFAULT_FUNCTION.get(style)
    if not name:
        raise ConfigError(
            f"reward.rules.{label} with style '{style}' needs 'function', the name of the function in '{node['path']}'."
        )
    function = getattr(module, str(name), None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(
            f"'{node['path']}' has no function '{name}'{nearest(str(name), own)}, which reward.rules.{label} names."
        )
    reward_type = node.get("reward_type") or getattr(module, "REWARD_TYPE", None)
    arguments = {str(key): value for key, value in node.items() if key not in _NODE_KEYS}
    messages = bool(node.get("conversational", False))
    return adapt(function, style, label, reward_type=reward_type, conversational=messages, **arguments)


def adapt(
    function: Callable[..., Any],
    style: str,
    label: str = "reward",
    *,
    reward_type: str | None = None,
    conversational: bool = False,
    **arguments: Any,
) -> Part:
    """Makes a reward part of a peer's function.

    Args:
        style: ``verl``, ``easyr1`` or ``trl``.
        reward_type: of ``easyr1``: ``batch``, the function takes a list of dicts, or ``sequential``, it takes one.
        conversational: of ``trl``: completions go in as lists of messages.
        arguments: keyword arguments that every call gets.

    Raises ``ConfigError`` for another style or reward type.
    """
    if style not in STYLES:
        raise ConfigError(f"a reward's style is one of {', '.join(STYLES)}, got '{style}'{nearest(style, STYLES)}.")
    if style == "easyr1" and reward_type not in ("batch", "sequential"):
        raise ConfigError(
            f"reward '{label}' of style easyr1 needs 'reward_type: batch' or 'reward_type: sequential', "
            f"or REWARD_TYPE in its module; got {reward_type!r}."
        )
    if style == "verl":
        call = _verl_async(function, arguments) if inspect.iscoroutinefunction(function) else _verl(function, arguments)
    elif style == "trl":
        make = _trl_async if inspect.iscoroutinefunction(function) else _trl
        call = make(function, arguments, conversational)
    else:
        call = _easyr1_batch(function, arguments) if reward_type == "batch" else _easyr1(function, arguments)
    batched = style == "trl" or reward_type == "batch"
    alone = not batched and not inspect.iscoroutinefunction(
        function
    )  # whole batches and coroutines stay in this process
    traits = {**TRAITS, "batched": batched, "isolated": True if alone else None, "range": (-math.inf, math.inf)}
    return unregistered("reward", label, call, {}, traits)


def _gold(answer: Any, ground_truth: Any, reward_model: Any) -> Any:
    """The gold answer where peers' data keep it: verl's ``reward_model``, a column ``ground_truth``, or ours."""
    if isinstance(reward_model, Mapping) and "ground_truth" in reward_model:
        return reward_model["ground_truth"]
    return answer if ground_truth is None else ground_truth


def _verl(function: Function, arguments: Mapping[str, Any]) -> Function:
    def call(
        completion: str,
        answer: Any = None,
        ground_truth: Any = None,
        reward_model: Any = None,
        data_source: Any = "",
        extra_info: Any = None,
    ) -> Any:
        gold = _gold(answer, ground_truth, reward_model)
        return _from_verl(function(data_source, completion, gold, extra_info=extra_info or {}, **arguments))

    return call


def _verl_async(function: Function, arguments: Mapping[str, Any]) -> Function:
    async def call(
        completion: str,
        answer: Any = None,
        ground_truth: Any = None,
        reward_model: Any = None,
        data_source: Any = "",
        extra_info: Any = None,
    ) -> Any:
        gold = _gold(answer, ground_truth, reward_model)
        return _from_verl(await function(data_source, completion, gold, extra_info=extra_info or {}, **arguments))

    return call


def _from_verl(result: Any) -> Any:
    """A number, a dict with ``score``, or a list that starts with the score."""
    if isinstance(result, Mapping):
        return _scored(result, "score")
    return result[0] if isinstance(result, (list, tuple)) and result else result


def _scored(result: Mapping[str, Any], key: str) -> dict[str, Any]:
    if key not in result:
        raise RewardError(f"the peer's reward gave a dict without '{key}', with {list(result)} instead.")
    return {"score": result[key], "detail": {name: value for name, value in result.items() if name != key}}


def _easyr1(function: Function, arguments: Mapping[str, Any]) -> Function:
    def call(
        completion: str,
        answer: Any = None,
        ground_truth: Any = None,
        reward_model: Any = None,
        response_length: Any = None,
    ) -> Any:
        gold = _gold(answer, ground_truth, reward_model)
        given = {"response": completion, "response_length": response_length, "ground_truth": gold}
        return _scored(function(given, **arguments), "overall")

    return call


def _easyr1_batch(function: Function, arguments: Mapping[str, Any]) -> Function:
    def call(
        completion: Sequence[str], record: Sequence[Mapping[str, Any]], response_length: Sequence[Any] | None = None
    ) -> list[Any]:
        rows = [
            {"response": text, "response_length": tokens, "ground_truth": _gold(*map(one.get, _GOLD_COLUMNS))}
            for text, one, tokens in zip(completion, record, response_length or [None] * len(completion), strict=True)
        ]
        return [_scored(result, "overall") for result in function(rows, **arguments)]

    return call


def _trl(function: Function, arguments: Mapping[str, Any], conversational: bool) -> Function:
    def call(completion: Sequence[str], record: Sequence[Mapping[str, Any]]) -> list[Any]:
        return _from_trl(function(**_trl_columns(completion, record, arguments, conversational), **arguments))

    return call


def _trl_async(function: Function, arguments: Mapping[str, Any], conversational: bool) -> Function:
    async def call(completion: Sequence[str], record: Sequence[Mapping[str, Any]]) -> list[Any]:
        return _from_trl(await function(**_trl_columns(completion, record, arguments, conversational), **arguments))

    return call


def _trl_columns(
    completion: Sequence[str], record: Sequence[Mapping[str, Any]], taken: Mapping[str, Any], conversational: bool
) -> dict[str, Any]:
    """Completions, prompts and the records' columns as keyword arguments, but for those that the node gives."""
    names = dict.fromkeys(name for one in record for name in one if name not in taken)
    columns: dict[str, Any] = {name: [one.get(name) for one in record] for name in names}
    columns.setdefault("prompts", [one.get("problem") for one in record])
    texts = [[{"role": "assistant", "content": text}] if conversational else text for text in completion]
    return {**columns, "completions": texts}


def _from_trl(results: Sequence[Any]) -> list[Any]:
    """``None`` for a sample that the function leaves out counts 0, as in TRL's sum."""
    return [{"score": 0.0, "detail": {"applies": False}} if result is None else result for result in results]
