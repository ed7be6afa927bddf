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

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlvlm.data.marks import IMAGE, Slot, read_marks
from rlvlm.data.pixels import is_picture, is_picture_name
from rlvlm.errors import DataError, RlvlmError, nearest
from rlvlm.registry import Part, Registry

PICTURE_COLUMNS = (
    "images",
    "image",
    "image_path",
    "image_paths",
    "image_file",
    "img",
    "img_path",
    "picture",
    "pictures",
)
_NUMBERED_COLUMN = re.compile(r"(?:image|img|picture)s?[_-]?(\d+)", re.IGNORECASE)
_VIDEO_COLUMNS = ("videos", "video", "audios", "audio")
_NO_PICTURES = (
    "id",
    "uid",
    "answer",
    "solution",
    "ground_truth",
    "problem",
    "question",
    "source",
    "data_source",
    "caption",
)

FORMATS = Registry("format", "formats", builtins=("rlvlm.data.formats",), readable=lambda: ("row",))
register_format = FORMATS.register

_PROBLEM_COLUMNS = ("problem", "question", "query", "instruction", "prompt")
_PART_PICTURES = ("image", "image_url", "url", "path", "bytes", "base64")
SAYING_KEYS = {"tool_calls", "function_call", "reasoning_content"}
"""Keys of a message that say something where its content is empty."""
_ANSWER_COLUMNS = ("answer", "solution", "ground_truth")


def format_of(row: Mapping[str, Any], chosen: Part | None, renamed: bool, origin: str) -> Part:
    """The format that is set, or the one that the row's columns tell; ``DataError`` when they tell none.

    Args:
        chosen: the format that the source's settings name, or ``None`` to tell it for each row.
        renamed: whether ``columns`` names the file's columns, which makes the row a flat one.
    """
    if chosen is not None:
        return chosen
    name = _told_by(row) or ("flat" if renamed else None)
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
    held = {name for name, value in row.items() if is_filled(value)}
    if {"chosen", "rejected"} <= held:
        raise DataError(
            "the row is a pair of preferences ('chosen' and 'rejected'), which are not read; to learn from the chosen answers set "
            "the source's columns: {completion: chosen} and format: completion."
        )
    for column, name in (("samples", "packed"), ("conversations", "llava"), ("messages", "messages")):
        if column in held:
            return name
    if "prompt" in held and "completion" in held:
        return "completion"
    if "reward_model" in held or _is_messages(row.get("prompt")):
        return "verl"
    if "problem" in held and held & {"problem_type", "prompt_type"}:
        return "llava_ov_rl"
    if {"instruction", "output"} <= held or {"query", "response"} <= held:
        return "instruction"
    if held & set(_PROBLEM_COLUMNS):
        return "flat"
    return "caption" if "caption" in held else None


def is_filled(value: Any) -> bool:
    """Whether a column holds anything: not null, an empty text or an empty list; 0 and false are something."""
    return value is not None and not (isinstance(value, (str, bytes, Sequence, Mapping)) and not len(value))


def rename(row: Mapping[str, Any], columns: Mapping[str, str], origin: str) -> Mapping[str, Any]:
    """The row with our names beside the file's."""
    return {**row, **{ours: column_of(row, theirs, origin) for ours, theirs in columns.items()}} if columns else row


def as_record(row: Mapping[str, Any], format: Part, columns: Mapping[str, str], origin: str) -> dict[str, Any]:
    """One row as a record; every fault is a ``DataError`` that names file and row."""
    try:
        record = dict(format({"row": rename(row, columns, origin)}))
        _resolve_marks(record, row)
        _check(record, origin)
    except RlvlmError as error:
        raise (error if str(error).startswith(origin) else DataError(f"{origin}: {error}")) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(
            f"{origin}: format '{format.name}' can't read the row ({type(error).__name__}: {error})."
        ) from error
    return record


def _check(record: dict[str, Any], origin: str) -> None:
    moving = next((name for name in _VIDEO_COLUMNS if is_filled(record.get(name)) and record[name] is not False), None)
    if moving is not None:
        raise DataError(
            f"{origin}: the row holds videos or audio (column '{moving}'), which are not read; leave such rows out with 'where'."
        )
    for name, value in record.items():
        if not _is_unicode(value):
            raise DataError(
                f"{origin}: the column '{name}' holds half of a surrogate pair, which is no valid text: {value!r:.60}."
            )
    record["images"] = picture_list(record.get("images"))
    if not record["images"]:
        _check_no_pictures(record, origin)
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


def _check_no_pictures(record: Mapping[str, Any], origin: str) -> None:
    """Raises ``DataError`` where a column that is not read holds a picture: the question would be asked blindly."""
    for name, value in record.items():
        if name not in _NO_PICTURES and not name.endswith("_id") and _is_picture(value):
            raise DataError(
                f"{origin}: the column '{name}' holds a picture and is not read; set the source's 'columns: {{images: {name}}}'."
            )


def _is_picture(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_picture(one) for one in value)
    if isinstance(value, Mapping):
        return isinstance(value.get("bytes"), (bytes, bytearray)) and is_picture(bytes(value["bytes"]))
    if isinstance(value, (bytes, bytearray)):
        return is_picture(bytes(value))
    if isinstance(value, str):
        return value.startswith("data:image/") or (not any(map(str.isspace, value)) and is_picture_name(value))
    return hasattr(value, "getbands")  # a PIL image


def _resolve_marks(record: dict[str, Any], row: Mapping[str, Any]) -> None:
    """Marks of other libraries in the record's texts as ``<image>``, with the pictures in their order."""
    if not is_filled(record.get("messages")):
        record.pop("messages", None)
    turns = record.get("messages")
    if turns is not None and not _is_messages(turns):
        return  # told by the check
    texts = [record.get("problem")] if turns is None else [turn["content"] for turn in turns]
    if "samples" in record or not all(isinstance(text, str) for text in texts):
        return
    pictures = picture_list(record.get("images"))
    numbers = _picture_numbers(row, pictures)
    marked, pictures = read_marks([str(text) for text in texts], pictures, numbers, record.get("objects"))
    record["images"] = pictures
    if turns is None:
        record["problem"] = marked[0]
    else:
        record["messages"] = [{**turn, "content": text} for turn, text in zip(turns, marked, strict=True)]


def _picture_numbers(row: Mapping[str, Any], pictures: Sequence[Any]) -> list[int]:
    """What marks call the pictures by: the numbers of their columns, else their places from 1."""
    numbers = [number for number, _ in _numbered_columns(row)]
    several = any(is_filled(row.get(name)) for name in PICTURE_COLUMNS)
    return numbers if len(numbers) == len(pictures) and not several else list(range(1, len(pictures) + 1))


def _numbered_columns(row: Mapping[str, Any]) -> list[tuple[int, str]]:
    """(number, name) of the filled columns ``image_1``, ``image_2``, …, in order."""
    found = ((_NUMBERED_COLUMN.fullmatch(str(name)), name) for name, value in row.items() if is_filled(value))
    return sorted((int(match[1]), name) for match, name in found if match)


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


def _is_unicode(value: Any) -> bool:
    """Whether every text in a value, however deep, is one that can be written to a file."""
    if isinstance(value, str):
        return is_text(value)
    if isinstance(value, Mapping):
        return all(_is_unicode(name) and _is_unicode(held) for name, held in value.items())
    return not isinstance(value, (list, tuple)) or all(_is_unicode(one) for one in value)


def picture_list(value: Any) -> list[Any]:
    """A picture column as a list: nothing, one picture (a string is one, not its letters), or several."""
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [picture for picture in value if picture is not None]
    if not is_filled(value) or (isinstance(value, Mapping) and not any(is_filled(held) for held in value.values())):
        return []
    return [value]


def take_pictures(row: Mapping[str, Any]) -> list[Any]:
    """The pictures of a row under any of their usual names, or in the columns ``image_1``, ``image_2``, …"""
    for name in PICTURE_COLUMNS:
        if pictures := picture_list(row.get(name)):
            return pictures
    return [picture for _, name in _numbered_columns(row) for picture in picture_list(row[name])]


def take_problem(row: Mapping[str, Any]) -> str:
    """The question of a row under any of its usual names."""
    return _take(row, _PROBLEM_COLUMNS)


def take_answer(row: Mapping[str, Any]) -> Any:
    """The answer of a row under any of its usual names, or ``None``."""
    filled = next((row[name] for name in _ANSWER_COLUMNS if is_filled(row.get(name))), None)
    return (
        next((row[name] for name in _ANSWER_COLUMNS if row.get(name) is not None), None) if filled is None else filled
    )


def _take(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if is_filled(row.get(name)):
            return row[name]
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


def flatten_content(messages: Any) -> tuple[list[dict[str, Any]], list[Slot]]:
    """Messages with text content, ``<image>`` for each picture part, and what each of these marks stands for.

    The other keys of a message that hold anything are kept for the chat template (``tool_calls``, ``reasoning_content``, ``name``) and
    the loss (``loss_mask``). A number is its text; a list of numbers, such as a box, is its JSON.
    """
    flat: list[dict[str, Any]] = []
    slots: list[Slot] = []
    for message in messages:
        kept = {str(name): value for name, value in message.items() if is_filled(value)}
        text, found = _content(message.get("content"), calls=bool(kept.keys() & SAYING_KEYS))
        slots += found
        flat.append({**kept, "role": str(message["role"]), "content": text})
    return flat, slots


def _content(content: Any, calls: bool) -> tuple[str, list[Slot]]:
    if content is None and not calls:
        raise DataError("a message has no content (null) and no 'tool_calls' either; leave it out or give it its text.")
    if isinstance(content, str):
        return content, [Slot()] * content.count(IMAGE)
    if content is None or isinstance(content, (bool, int, float)):
        return "" if content is None else str(content), []
    if isinstance(content, Sequence) and content and all(isinstance(one, (int, float)) for one in content):
        return json.dumps(list(content)), []
    texts: list[str] = []
    slots: list[Slot] = []
    for part in [content] if isinstance(content, Mapping) else content:
        text, found = _part(part)
        texts.append(text)
        slots += found
    return "".join(texts), slots


def _part(part: Any) -> tuple[str, list[Slot]]:
    if isinstance(part, str):
        return part, [Slot()] * part.count(IMAGE)
    kind = part.get("type")
    if kind is None:
        kind = next((name for name in ("image", "image_url") if is_filled(part.get(name))), "text")
    if kind in ("image", "image_url", "input_image"):
        held = next((part[name] for name in _PART_PICTURES if is_filled(part.get(name))), None)
        if isinstance(held, Mapping) and "url" in held:
            held = held["url"]
        index = part.get("index")
        if index is not None and (isinstance(index, bool) or int(index) != index):
            raise DataError(f"an image part's index is a whole number, got {index!r}.")
        return IMAGE, [Slot(held) if held is not None else Slot(index=None if index is None else int(index))]
    if kind in ("text", "input_text", "output_text"):
        text = str(part["text"])
        return text, [Slot()] * text.count(IMAGE)
    raise DataError(f"a message holds a part of type '{kind}'; text and image are read.")


def _is_messages(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(
            isinstance(turn, Mapping)
            and is_text(turn.get("role"))
            and ("content" in turn or any(is_filled(turn.get(name)) for name in SAYING_KEYS))
            for turn in value
        )
    )
