"""Reward functions of other libraries, unchanged: a reward node with a ``style``.

The style is always named and never guessed from a signature::

    reward:
      rules:
        mine: {style: verl, path: my_rewards.py:compute_score, weight: 1.0}

Keys of the node beside those of :func:`load_reward` are passed on as keyword arguments.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from rlvlm.compat.calling import as_async, is_coroutine, with_pictures
from rlvlm.compat.functions import find_function
from rlvlm.compat.styles import STYLES, Call
from rlvlm.errors import ConfigError, nearest
from rlvlm.registry import Part, unregistered
from rlvlm.rewards.rule import TRAITS

REWARD_TYPES = ("batch", "sequential")
_NODE_KEYS = ("style", "path", "function", "build")


def load_reward(label: str, node: Mapping[str, Any]) -> Part:
    """Builds the part that a reward node with a ``style`` names.

    Args:
        label: of the rule, for messages.
        node: ``style``; ``path``, a ``.py`` file or a dotted module, with the function's name after a colon or in ``function``
            (without one ``compute_score``, EasyR1's ``main`` or OpenRLHF's ``reward_func``; others need it): a function, a class, or a
            dotted name such as ``Class.method``; ``build``, the arguments that a class or a factory is built with; ``reward_type``
            (of EasyR1: ``batch`` or ``sequential``; the module's ``REWARD_TYPE`` unless given, else ``batch``); ``conversational``
            (of TRL: whether completions go in as messages); and keyword arguments of the function.

    Raises ``ConfigError`` when the function isn't there or a key is missing or wrong.
    """
    style = str(node.get("style"))
    _check_style(style)
    known = STYLES[style]
    found = find_function(label, node, known.names, known.construct)
    keys = {key: node[key] for key in known.keys if node.get(key) is not None}
    if "reward_type" in known.keys:
        keys.setdefault("reward_type", getattr(found.module, "REWARD_TYPE", None))
    arguments = {str(key): value for key, value in node.items() if key not in (*_NODE_KEYS, *known.keys)}
    return _part(found.function, style, label, keys, arguments, found.stateful)


def adapt(
    function: Callable[..., Any],
    style: str,
    label: str = "reward",
    *,
    reward_type: str | None = None,
    conversational: bool | None = None,
    **arguments: Any,
) -> Part:
    """Makes a reward part of another library's function.

    Args:
        function: or a class, which is built without arguments.
        style: one of ``STYLES``.
        reward_type: of ``easyr1``: ``batch``, the function takes a list of dicts, or ``sequential``, it takes one.
        conversational: of ``trl``: completions go in as lists of messages; ``None`` goes by the record's prompt.
        arguments: keyword arguments that every call gets.

    Raises ``ConfigError`` for another style or reward type.
    """
    _check_style(style)
    stateful = not inspect.isroutine(function)
    if inspect.isclass(function):
        function = STYLES[style].construct(function, {})
    keys = {"reward_type": reward_type, "conversational": conversational}
    return _part(function, style, label, keys, arguments, stateful)


def _check_style(style: str) -> None:
    if style not in STYLES:
        raise ConfigError(f"a reward's style is one of {', '.join(STYLES)}, got '{style}'{nearest(style, STYLES)}.")


def _part(
    function: Callable[..., Any],
    style: str,
    label: str,
    keys: Mapping[str, Any],
    arguments: Mapping[str, Any],
    stateful: bool,
) -> Part:
    batched, conversational = STYLES[style].batched, keys.get("conversational")
    if conversational is not None and not isinstance(conversational, bool):
        raise ConfigError(f"reward.rules.{label}.conversational is true or false, got {conversational!r}.")
    if batched is None:
        reward_type = keys.get("reward_type") or REWARD_TYPES[0]
        if reward_type not in REWARD_TYPES:
            raise ConfigError(
                f"reward '{label}' of style {style} has 'reward_type: batch' or 'reward_type: sequential', got {reward_type!r}."
            )
        batched = reward_type == "batch"
    score = STYLES[style].make(Call(function, arguments, conversational, one_row=not batched))
    if STYLES[style].columns:
        score = with_pictures(score, function, batched)
    traits = {**TRAITS, "batched": batched, "stateful": stateful, "range": (-math.inf, math.inf)}
    return unregistered("reward", label, as_async(score) if is_coroutine(function) else score, {}, traits)
