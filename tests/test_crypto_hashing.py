"""Content ids and Merkle roots: known values, one spelling, and no two lists with one root."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.crypto.hashing import (
    ContentId,
    content_from_text,
    content_id,
    content_text,
    merkle_root,
)
from hypothesis import given, settings
from hypothesis import strategies as st

GOLDEN = Path(__file__).parent / "golden" / "merkle_roots.txt"

leaf_lists = st.lists(st.binary(min_size=32, max_size=32).map(ContentId), max_size=40)


def numbered(count: int) -> list[ContentId]:
    return [content_id(index.to_bytes(4, "big")) for index in range(count)]


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
    with pytest.raises(ValueError, match="leaf 1"):
        merkle_root([content_id(b""), ContentId(bytes(size))])


def test_merkle_roots_are_frozen() -> None:
    lines = GOLDEN.read_text().split("\n")[1:-1]
    expected = {int(count): root for count, root in (line.split() for line in lines)}
    assert {count: merkle_root(numbered(count)).hex() for count in expected} == expected


@settings(deadline=None)
@given(leaf_lists, leaf_lists)
def test_different_lists_have_different_roots(one: list[ContentId], other: list[ContentId]) -> None:
    assert (merkle_root(one) == merkle_root(other)) == (one == other)


@settings(deadline=None)
@given(leaf_lists.filter(bool), st.data())
def test_any_change_of_a_leaf_changes_the_root(
    leaves: list[ContentId], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(leaves) - 1))
    bit = data.draw(st.integers(0, 255))
    changed = int.from_bytes(leaves[index], "big") ^ (1 << bit)
    other = list(leaves)
    other[index] = ContentId(changed.to_bytes(32, "big"))
    assert merkle_root(other) != merkle_root(leaves)


@pytest.mark.parametrize("count", range(2, 18))
def test_order_and_count_are_part_of_the_root(count: int) -> None:
    leaves = numbered(count)
    root = merkle_root(leaves)
    swapped = [leaves[1], leaves[0], *leaves[2:]]
    variants = {
        "swapped": swapped,
        "reversed": leaves[::-1],
        "rotated": leaves[1:] + leaves[:1],
        "one less": leaves[:-1],
        "last one twice": [*leaves, leaves[-1]],
        "whole list twice": leaves * 2,
        "root as a leaf": [root],
        "zero leaf added": [*leaves, ContentId(bytes(32))],
    }
    roots = {name: merkle_root(variant) for name, variant in variants.items()}
    if count == 2:
        assert roots["swapped"] == roots["reversed"] == roots["rotated"]
    assert root not in roots.values()


def test_a_root_is_no_content_id_of_what_it_is_made_of() -> None:
    leaves = numbered(2)
    assert merkle_root(leaves[:1]) not in (leaves[0], content_id(leaves[0]))
    assert merkle_root(leaves) != content_id(leaves[0] + leaves[1])
