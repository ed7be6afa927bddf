"""Tokens as text for people."""

from __future__ import annotations

from rlvlm.tracking.text import token_pieces, without_placeholders


class Bytes:
    """A tokenizer whose tokens are bytes, as byte-level ones split a character that is rare."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", errors="replace")

    def convert_ids_to_tokens(self, ids):
        return [f"<0x{index:02X}>" for index in ids]


def test_a_character_of_several_tokens_stands_with_the_last_of_them():
    assert token_pieces(Bytes(), list("aé€".encode())) == ["a", "", "é", "", "", "€"]


def test_a_character_that_is_cut_off_is_spelled_and_never_a_replacement_mark():
    assert token_pieces(Bytes(), list("a€".encode())[:-1]) == ["a", "", "<0xE2><0x82>"]
    assert "\ufffd" not in "".join(token_pieces(Bytes(), [0xFF] * 20))
    assert token_pieces(Bytes(), []) == []


def test_bytes_that_are_no_character_leave_what_follows_as_it_is():
    assert token_pieces(Bytes(), [0xFF, *b"ab"]) == ["<0xFF>", "a", "b"]
    assert token_pieces(Bytes(), [0xE2, 0x82, *b"a ", *"é".encode()]) == ["", "<0xE2><0x82>", "a", " ", "", "é"]


def test_a_question_is_shown_without_its_pictures_marks():
    assert without_placeholders("<image>\nHow many?") == "How many?"
