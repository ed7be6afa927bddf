"""The formats that records come in, one function each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvlm.data.records import (
    flatten_content,
    picture_list,
    register_format,
    take_answer,
    take_pictures,
    take_problem,
)
from rlvlm.errors import DataError

_LLAVA_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_ANSWER_ONLY, _THINK = "answer_only", "think_answer"


@register_format("flat")
def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """``problem`` (or ``question``), ``answer`` (or ``solution``), ``images`` (or ``image``): EasyR1, RLLaVA, most others."""
    return {**row, "problem": take_problem(row), "answer": take_answer(row), "images": take_pictures(row)}


@register_format("verl")
def verl(row: Mapping[str, Any]) -> dict[str, Any]:
    """verl parquet: ``prompt`` messages, ``images``, ``reward_model.ground_truth``, ``data_source``, ``extra_info``."""
    messages, pictures = flatten_content(row["prompt"])
    answer = (row.get("reward_model") or {}).get("ground_truth", take_answer(row))
    others = {name: value for name, value in row.items() if name != "prompt"}
    written = {"messages": messages, "answer": answer, "images": take_pictures(row) or pictures}
    return {"prompt_template": "as_is", **others, **written}  # the prompt holds its instructions already


@register_format("llava")
def llava(row: Mapping[str, Any]) -> dict[str, Any]:
    """LLaVA conversations: turns of ``from`` (human, gpt, system) and ``value``, with ``image`` one path or several."""
    messages = []
    for turn in row["conversations"]:
        speaker = turn.get("from", turn.get("role"))
        if speaker not in _LLAVA_ROLES:
            raise DataError(f"a conversation turn is from 'human', 'gpt' or 'system', got {speaker!r}.")
        messages.append({"role": _LLAVA_ROLES[speaker], "content": turn.get("value", turn.get("content"))})
    others = {name: value for name, value in row.items() if name != "conversations"}
    return {**others, "messages": messages, "images": take_pictures(row)}


@register_format("messages")
def messages(row: Mapping[str, Any]) -> dict[str, Any]:
    """``messages`` of ``role`` and ``content`` (text, or parts of text and image), with ``images`` beside or inside."""
    turns, pictures = flatten_content(row["messages"])
    return {"prompt_template": "as_is", **row, "messages": turns, "images": take_pictures(row) or pictures}


@register_format("llava_ov_rl")
def llava_ov_rl(row: Mapping[str, Any], *, use_prompt_type: bool = True) -> dict[str, Any]:
    """LLaVA-OneVision-1.5-RL: ``problem``, ``answer`` list, ``answer_type``; ``prompt_type`` chooses the prompt template.

    ``normal`` asks for the answer only, anything else for thinking first; ``use_prompt_type=false`` leaves the choice to
    ``data.template``. An answer list of one is that answer; a ``format_guidance`` goes before the problem.
    """
    answer = row.get("answer")
    if isinstance(answer, (list, tuple)) and len(answer) == 1:
        answer = answer[0]
    guidance = row.get("format_guidance")
    problem = f"{guidance}\n{row['problem']}" if guidance else row["problem"]
    record = {**row, "problem": problem, "answer": answer, "images": picture_list(row.get("images", row.get("image")))}
    if use_prompt_type and row.get("prompt_type") is not None:
        record["prompt_template"] = _ANSWER_ONLY if row["prompt_type"] == "normal" else _THINK
    return record


@register_format("caption")
def caption(row: Mapping[str, Any], *, instruction: str = "Describe the picture.") -> dict[str, Any]:
    """A picture and its ``caption``: the instruction as the user's turn, the caption as the assistant's."""
    turns = [{"role": "user", "content": instruction}, {"role": "assistant", "content": str(row["caption"])}]
    return {**row, "messages": turns, "images": take_pictures(row)}


@register_format("packed")
def packed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A bin of ``rlvlm data pack``: ``samples``, each with ``messages`` and its number of ``pictures``, and all their images."""
    samples = [{"prompt_template": "as_is", **sample} for sample in row["samples"]]
    return {**row, "samples": samples, "images": take_pictures(row)}
