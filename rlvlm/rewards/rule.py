"""The registry of reward rules and the names that a rule may read.

A rule is a function (or a class, for what is loaded once) from what it reads to a float, or to
``{"score": float, "detail": {…}}``. It reads the names below and the record's columns, by parameter name.
"""

from __future__ import annotations

from rlvlm.registry import Registry

INJECTED: dict[str, str] = {
    "completion": "the completion as text, whole",
    "record": "the record, with all its columns",
    "answer_text": "the answer, found outside thinking; '' when there is none or several differ",
    "candidates": "the marked answers outside thinking, each once",
    "n_candidates": "how many there are",
    "visible_text": "the text outside thinking",
    "unmarked_text": "the text outside thinking when nothing in it is marked, else ''",
    "think_prefilled": "whether the prompt ends with an opened <think>",
    "response_length": "tokens of the completion",
    "max_length": "token limit of a completion",
    "truncated": "whether the completion stopped by length",
    "completion_ids": "token ids of the completion",
    "prompt_ids": "token ids of the prompt, as the model sees it",
    "training": "where training stands: {step, steps, epoch}, each null where it is not known",
}
"""Names that the library fills in; a record column of the same name is an error."""

DERIVED: dict[str, str] = {
    "images": "handles of the record's pictures (decode() gives a PIL image)",
    "image_size": "(width, height) of the first picture as the record has it",
    "resized_size": "(width, height) of the first picture as the model sees it",
}
"""Names that are filled in from the record's pictures where the record has no column of that name."""

_RULES = "format number multiple_choice boolean string bbox math ocr html svg code repetition length clip vqa judge reward_model"

TRAITS = {
    "batched": False,
    "isolated": None,
    "in_trainer": False,
    "stateful": False,
    "imports": (),
    "range": (0.0, 1.0),
    "example": None,
    "ranges": (),
    "ordered": (),
    "ready": None,
    "details": None,
}
"""Traits of a rule and their defaults:

- ``batched``: it takes columns and gives a list; a ``RewardError`` in place of a score fails that row alone.
- ``isolated``: ``False`` runs it in the trainer's own thread, where nothing can stop it: for what takes microseconds and can't hang.
  Otherwise it runs in a process that a time limit kills: functions of one row in the pool, the others in one of their own.
- ``in_trainer``: it holds a model on the trainer's device, or waits for a server, and runs in a thread of the trainer. Past its time
  its rows fail and the thread is left behind, so it must not hold the interpreter (as a regular expression can).
- ``stateful``: a function with state between calls, which one process must see all of; a class has it in any case.
- ``imports``: modules of the extra ``rewards`` that it needs; their absence is told before a run.
- ``ranges``: of its numeric options, as of ``rlvlm.ranges``; ``ordered``: pairs of options, the first at most the second.
- ``ready``: called with its options when the rule is built; raises where this machine can't run it, so that a run is told before it starts.
- ``details``: keys of the numbers that it may tell beside its score, which filters may name; ``None`` where they are not known.
- ``range``: of its scores. ``example``: for the documentation.
"""

REWARDS = Registry(
    "reward", "rewards", builtins=[f"rlvlm.rewards.{module}" for module in _RULES.split()], traits=TRAITS
)

register_reward = REWARDS.register
