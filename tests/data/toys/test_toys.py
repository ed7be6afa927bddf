"""The drawn tasks: right answers, the same record every time, held-out records that were never trained on."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rlvlm.data.toys import digits, shapes
from rlvlm.data.toys.answers import PHRASINGS
from rlvlm.models.toys import toy_tokenizer


def count_blobs(picture, colour: tuple[int, int, int]) -> int:
    """Cells of the grid whose middle shows a colour: a second opinion on the answer."""
    pixels = np.asarray(picture).astype(int)
    near = np.abs(pixels - np.array(colour)).sum(-1) < 10
    cells = near.reshape(shapes.GRID, shapes.CELL, shapes.GRID, shapes.CELL).sum((1, 3))
    return int((cells > 20).sum())


def test_the_answer_is_the_number_of_shapes_of_that_colour():
    source = shapes.shapes(3, "train", size=200)
    for index in range(200):
        record = source[index]
        colour = re.fullmatch(r"How many (\w+) shapes\?", record["problem"])[1]
        assert count_blobs(record["images"][0], shapes.COLOURS[colour]) == int(record["answer"])
        assert record["answer"] in record["response"]
        assert any(record["response"] == phrasing.format(record["answer"]) for phrasing in PHRASINGS)


@pytest.mark.parametrize("make", [shapes.shapes, digits.digits])
def test_a_record_is_the_same_in_any_order_of_reading_and_splits_differ(make):
    first, again = make(0, "train", size=50), make(0, "train", size=50)
    for index in (7, 3, 7, 49):
        a, b = first[index], again[index]
        assert (a["problem"], a["answer"], a["response"]) == (b["problem"], b["answer"], b["response"])
        assert a["images"][0].tobytes() == b["images"][0].tobytes()
    held_out = make(0, "eval", size=50)
    trained = {first[i]["images"][0].tobytes() for i in range(50)}
    assert not any(held_out[i]["images"][0].tobytes() in trained for i in range(50))
    with pytest.raises(IndexError):
        first[50]


def test_held_out_digits_are_other_scans_than_those_trained_on():
    train, held_out = digits.digits(0, "train"), digits.digits(0, "eval")
    assert (len(train.scans), len(held_out.scans)) == (1500, digits.HELD_OUT)
    assert train.scans.base is held_out.scans.base or len(train.scans) + len(held_out.scans) == 1797


def test_digits_asks_what_it_is_told_to():
    for ask, expected in (("read", {"left", "right"}), ("add", {"sum"}), ("both", {"left", "right", "sum"})):
        source = digits.digits(0, "train", size=60, ask=ask)
        assert {source[i]["problem"] for i in range(60)} == {digits.QUESTIONS[kind] for kind in expected}
    added = digits.digits(1, "train", size=60, ask="add")
    assert max(int(added[i]["answer"]) for i in range(60)) > 9


def test_the_tokenizer_writes_every_text_of_the_task_without_loss_in_few_tokens():
    for module in (shapes, digits):
        tokenizer = toy_tokenizer(module.corpus())
        for text in module.corpus():
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.decode(ids) == text
            assert len(ids) <= 8
