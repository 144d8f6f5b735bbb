"""Content ids: known values, and one spelling."""

from __future__ import annotations

import pytest
from distro_node.crypto.hashing import (
    ContentId,
    content_from_text,
    content_id,
    content_text,
)
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (b"abc", "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
    ],
)
def test_content_id_is_blake3(data: bytes, expected: str) -> None:
    assert content_id(data).hex() == expected
    assert content_id(memoryview(data)).hex() == expected


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32))
def test_content_text_round_trip(raw: bytes) -> None:
    text = content_text(ContentId(raw))
    assert len(text) == 52
    assert text == text.lower()
    assert content_from_text(text) == raw


@settings(deadline=None)
@given(
    st.text(max_size=60) | st.text("abcdefghijklmnopqrstuvwxyz234567=", min_size=50, max_size=54)
)
def test_any_text_is_a_content_id_in_its_one_spelling_or_a_value_error(text: str) -> None:
    try:
        cid = content_from_text(text)
    except ValueError:
        return
    assert content_text(cid) == text


def test_other_spellings_of_a_content_id_are_refused() -> None:
    text = content_text(content_id(b"x"))
    last = "abcdefghijklmnopqrstuvwxyz234567".index(text[-1])
    assert last % 16 == 0, "only the top bit of the last character is used"
    same_bytes = text[:-1] + "abcdefghijklmnopqrstuvwxyz234567"[last + 1]
    for wrong in (text.upper(), text + "====", text[:-1], text + "a", " " + text, same_bytes):
        with pytest.raises(ValueError, match="content id"):
            content_from_text(wrong)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_ids_of_another_length_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32"):
        content_text(ContentId(bytes(size)))
