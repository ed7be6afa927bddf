"""What a row means: formats turn raw rows into records.

A record is a mapping with ``problem`` (text) or ``messages`` (``{role, content}`` with text content), ``images`` (a list of
whatever :class:`~rlvlm.data.media.Picture` takes), ``answer`` where there is one, and every other column of the row under
its own name, for rewards to read. ``<image>`` in a text is where the next picture stands.

A format of your own is a function from row to record::

    @register_format("mine")
    def mine(row):
        return {"problem": row["q"], "images": [row["jpg"]], "answer": row["a"]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlvlm.errors import DataError, RlvlmError, nearest
from rlvlm.registry import Part, Registry

IMAGE = "<image>"
"""Where the next picture stands in a text."""
PICTURE_COLUMNS = ("images", "image", "image_path")

FORMATS = Registry("format", "formats", builtins=("rlvlm.data.formats",), readable=lambda: ("row",))
register_format = FORMATS.register

_PROBLEM_COLUMNS = ("problem", "question")
_ANSWER_COLUMNS = ("answer", "solution", "ground_truth")


def format_of(row: Mapping[str, Any], chosen: Part | None, renamed: bool, origin: str) -> Part:
    """The format that is set, or the one that the row's columns tell; ``DataError`` when they tell none.

    Args:
        chosen: the format that the source's settings name, or ``None`` to tell it for each row.
        renamed: whether ``columns`` names the file's columns, which makes the row a flat one.
    """
    if chosen is not None:
        return chosen
    name = "flat" if renamed else _told_by(row)
    if name is None:
        raise DataError(
            f"{origin}: can't tell what the row means from its columns {sorted(map(str, row))}; "
            "set the source's 'format', or 'columns' such as {problem: …, answer: …, images: …}."
        )
    return _plain_format(name)


@lru_cache(maxsize=16)
def _plain_format(name: str) -> Part:
    return FORMATS.build(name)


def _told_by(row: Mapping[str, Any]) -> str | None:
    held = {name for name, value in row.items() if value is not None}
    if "samples" in held:
        return "packed"
    if "conversations" in held:
        return "llava"
    if "messages" in held:
        return "messages"
    if "reward_model" in held or _is_messages(row.get("prompt")):
        return "verl"
    if "problem" in held and held & {"problem_type", "prompt_type"}:
        return "llava_ov_rl"
    if held & set(_PROBLEM_COLUMNS):
        return "flat"
    return "caption" if "caption" in held else None


def as_record(row: Mapping[str, Any], format: Part, columns: Mapping[str, str], origin: str) -> dict[str, Any]:
    """One row as a record; every fault is a ``DataError`` that names file and row."""
    try:
        named = {**row, **{ours: column_of(row, theirs, origin) for ours, theirs in columns.items()}}
        record = dict(format({"row": named}))
        _check(record, origin)
    except RlvlmError as error:
        raise (error if str(error).startswith(origin) else DataError(f"{origin}: {error}")) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(
            f"{origin}: format '{format.name}' can't read the row ({type(error).__name__}: {error})."
        ) from error
    return record


def _check(record: dict[str, Any], origin: str) -> None:
    if record.get("videos") or record.get("audios"):
        raise DataError(
            f"{origin}: the row holds videos or audio, which are not read; leave such rows out with 'where'."
        )
    record["images"] = picture_list(record.get("images"))
    if "samples" in record:
        _check_samples(record["samples"], origin)
    elif record.get("messages") is not None:
        _check_messages(record["messages"], origin)
    elif not isinstance(record.get("problem"), str):
        raise DataError(
            f"{origin}: a record needs 'problem' (text) or 'messages' (a list of role and content), "
            f"got the columns {sorted(map(str, record))}."
        )
    if record.get("problem") is not None:
        _check_text(record["problem"], origin)


def _check_samples(samples: Any, origin: str) -> None:
    """The samples of a packed bin: messages, and whole numbers of pictures and tokens."""
    if not isinstance(samples, Sequence) or not samples or not all(isinstance(sample, Mapping) for sample in samples):
        raise DataError(f"{origin}: 'samples' of a packed bin is a list of samples, got {str(samples)[:40]}.")
    for number, sample in enumerate(samples):
        for name in ("pictures", "tokens"):
            if not isinstance(sample.get(name), int) or sample[name] < 0:
                raise DataError(
                    f"{origin}: sample {number} of the bin needs '{name}', a number, got {sample.get(name)!r}."
                )
        _check_messages(sample.get("messages"), f"{origin}, sample {number}")


def _check_messages(messages: Any, origin: str) -> None:
    if not _is_messages(messages):
        raise DataError(f"{origin}: 'messages' is a list of role and content, got {str(messages)[:40]}.")
    for turn in messages:
        _check_text(turn["content"], origin)


def _check_text(text: Any, origin: str) -> None:
    if not is_text(text):
        raise DataError(f"{origin}: {str(text)[:40]!r} is no valid text; problem and contents are strings of Unicode.")


def is_text(value: Any) -> bool:
    """Whether this is a string that a tokenizer takes."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()  # fails on half of a surrogate pair, which JSON can spell and no tokenizer takes
    except UnicodeEncodeError:
        return False
    return True


def picture_list(value: Any) -> list[Any]:
    """A picture column as a list: nothing, one picture (a string is one, not its letters), or several."""
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [picture for picture in value if picture is not None]
    if isinstance(value, str) and not value:
        return []
    return [value]


def take_pictures(row: Mapping[str, Any]) -> list[Any]:
    """The pictures of a row under any of their usual names."""
    return picture_list(next((row[name] for name in PICTURE_COLUMNS if row.get(name) is not None), None))


def take_problem(row: Mapping[str, Any]) -> str:
    """The question of a row under any of its usual names."""
    return _take(row, _PROBLEM_COLUMNS)


def take_answer(row: Mapping[str, Any]) -> Any:
    """The answer of a row under any of its usual names, or ``None``."""
    return next((row[name] for name in _ANSWER_COLUMNS if row.get(name) is not None), None)


def _take(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise DataError(f"a row needs one of the columns {', '.join(names)}, got {sorted(map(str, row))}.")


def column_of(row: Mapping[str, Any], name: str, origin: str) -> Any:
    """A column by name, or by a dotted path into mappings; ``DataError`` with the nearest name when there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise DataError(
                f"{origin}: the row has no column '{name}'{nearest(part, value if isinstance(value, Mapping) else row)}."
            )
        value = value[part]
    return value


def flatten_content(messages: Any) -> tuple[list[dict[str, str]], list[Any]]:
    """Messages with text content, ``<image>`` for each picture part, and the pictures that the parts themselves hold."""
    flat, pictures = [], []
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            texts = []
            for part in content or ():
                if part.get("type") in ("image", "image_url"):
                    texts.append(IMAGE)
                    held = part.get("image") or part.get("image_url")
                    if held is not None:
                        pictures.append(held.get("url", held) if isinstance(held, Mapping) else held)
                elif part.get("type", "text") == "text":
                    texts.append(part["text"])
                else:
                    raise DataError(f"a message holds a part of type '{part.get('type')}'; text and image are read.")
            content = "".join(texts)
        flat.append({"role": str(message["role"]), "content": content})
    return flat, pictures


def _is_messages(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(isinstance(turn, Mapping) and is_text(turn.get("role")) and "content" in turn for turn in value)
    )
