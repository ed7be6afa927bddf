"""The formats that records come in, one function each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvlm.data.marks import fill_slots
from rlvlm.data.records import (
    flatten_content,
    is_filled,
    register_format,
    take_answer,
    take_pictures,
    take_problem,
)
from rlvlm.errors import DataError

_LLAVA_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_LLAVA_ROLES |= {
    "observation": "tool",
    "tool": "tool",
    "function_call": "assistant",
    "bot": "assistant",
    "model": "assistant",
}
_ANSWER_ONLY, _THINK = "answer_only", "think_answer"


@register_format("flat")
def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """``problem`` (or ``question``), ``answer`` (or ``solution``), ``images`` (or ``image``): EasyR1, RLLaVA, most others."""
    return {**row, "problem": take_problem(row), "answer": take_answer(row), "images": take_pictures(row)}


@register_format("verl")
def verl(row: Mapping[str, Any]) -> dict[str, Any]:
    """verl parquet: ``prompt`` messages, ``images``, ``reward_model.ground_truth``, ``data_source``, ``extra_info``."""
    if isinstance(row["prompt"], str):
        raise DataError("verl's 'prompt' is a list of messages, got text; set the source's format: flat.")
    messages, slots = flatten_content(row["prompt"])
    answer = (row.get("reward_model") or {}).get("ground_truth")
    answer = answer if is_filled(answer) else take_answer(row)
    others = {name: value for name, value in row.items() if name != "prompt"}
    written = {"messages": messages, "answer": answer, "images": fill_slots(slots, take_pictures(row))}
    return {"prompt_template": "as_is", **others, **written}  # the prompt holds its instructions already


@register_format("llava")
def llava(row: Mapping[str, Any]) -> dict[str, Any]:
    """LLaVA conversations: turns of ``from`` (human, gpt, system) and ``value``, with ``image`` one path or several."""
    turns = []
    for turn in row["conversations"]:
        speaker = turn.get("from", turn.get("role"))
        if str(speaker).lower() not in _LLAVA_ROLES:
            raise DataError(f"a conversation turn is from 'human', 'gpt' or 'system', got {speaker!r}.")
        others = {name: value for name, value in turn.items() if name not in ("from", "value")}
        said = turn.get("value", turn.get("content"))
        turns.append({**others, "role": _LLAVA_ROLES[str(speaker).lower()], "content": said})
    others = {name: value for name, value in row.items() if name != "conversations"}
    return _dialogue(turns, others)


def _dialogue(turns: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> dict[str, Any]:
    """A record of turns as they come: a last turn that lists several texts is the first of them to learn from, all as answers."""
    record = dict(columns)
    last = turns[-1]["content"] if turns and "content" in turns[-1] else None
    if (
        turns
        and turns[-1]["role"] == "assistant"
        and isinstance(last, (list, tuple))
        and last
        and all(isinstance(one, str) for one in last)
    ):
        turns = [*turns[:-1], {**turns[-1], "content": last[0]}]
        if not is_filled(record.get("answer")):
            record["answer"] = list(last)
    messages, slots = flatten_content(turns)
    return {**record, "messages": messages, "images": fill_slots(slots, take_pictures(columns))}


@register_format("messages")
def messages(row: Mapping[str, Any]) -> dict[str, Any]:
    """``messages`` of ``role`` and ``content`` (text, or parts of text and image), with ``images`` beside or inside."""
    return {"prompt_template": "as_is", **_dialogue(row["messages"], row)}


@register_format("completion")
def completion(row: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's ``prompt`` and ``completion``, each a text or a list of messages; the completion's last turn is what is learned."""
    turns = [*_turns(row["prompt"], "user"), *_turns(row["completion"], "assistant")]
    others = {name: value for name, value in row.items() if name not in ("prompt", "completion")}
    return {"prompt_template": "as_is", **_dialogue(turns, others)}


def _turns(value: Any, role: str) -> list[Mapping[str, Any]]:
    return list(value) if isinstance(value, (list, tuple)) else [{"role": role, "content": value}]


@register_format("instruction")
def instruction(row: Mapping[str, Any]) -> dict[str, Any]:
    """Alpaca's ``instruction``, ``input`` and ``output``, or ms-swift's ``query`` and ``response``; ``history`` holds earlier pairs."""
    asked = row.get("instruction") if is_filled(row.get("instruction")) else row.get("query")
    asked = f"{asked}\n{row['input']}" if is_filled(row.get("input")) else asked
    said = row.get("output") if is_filled(row.get("output")) else row.get("response")
    pairs = [*(row.get("history") or ()), (asked, said)]
    roles = ("user", "assistant")
    turns = [{"role": role, "content": text} for pair in pairs for role, text in zip(roles, pair, strict=True)]
    others = {name: value for name, value in row.items() if name not in ("input", "output", "response", "history")}
    return _dialogue(turns, others)


@register_format("llava_ov_rl")
def llava_ov_rl(row: Mapping[str, Any], *, use_prompt_type: bool = True) -> dict[str, Any]:
    """LLaVA-OneVision-1.5-RL: ``problem``, ``answer`` list, ``answer_type``; ``prompt_type`` chooses the prompt template.

    ``normal`` asks for the answer only, anything else for thinking first; ``use_prompt_type=false`` leaves the choice to
    ``data.template``. An answer list of one is that answer; a ``format_guidance`` goes before the problem.
    """
    answer = take_answer(row)
    if isinstance(answer, (list, tuple)) and len(answer) == 1:
        answer = answer[0]
    guidance = row.get("format_guidance")
    problem = f"{guidance}\n{row['problem']}" if guidance else row["problem"]
    record = {**row, "problem": problem, "answer": answer, "images": take_pictures(row)}
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
