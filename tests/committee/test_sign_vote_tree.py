"""The id of a sign vote: each part can be checked alone, and no other bytes pass for it."""

from __future__ import annotations

import pytest
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.protocol.committee.sign_vote_tree import (
    open_part,
    part_name,
    proof_bytes,
    sign_vote_id,
    with_proof,
)
from distro_node.protocol.wire.errors import ProtocolError
from hypothesis import given
from hypothesis import strategies as st


def parts_of(count: int) -> tuple[list[bytes], list[ContentId]]:
    parts = [bytes([1, number % 251]) * (1 + number % 3) for number in range(count)]
    return parts, [content_id(part) for part in parts]


@given(st.integers(1, 70), st.data())
def test_each_part_comes_back(count, data):
    parts, ids = parts_of(count)
    section = data.draw(st.integers(0, count - 1))

    told = with_proof(ids, section, parts[section])

    assert len(told) == len(parts[section]) + proof_bytes(section, count)
    assert open_part(sign_vote_id(ids), section, count, told) == parts[section]


@given(st.integers(1, 20), st.data())
def test_nothing_else_passes_for_a_part(count, data):
    parts, ids = parts_of(count)
    section, sign_vote = data.draw(st.integers(0, count - 1)), sign_vote_id(ids)
    told = with_proof(ids, section, parts[section])
    place = data.draw(st.integers(0, len(told) - 1))
    changed = told[:place] + bytes([told[place] ^ 1]) + told[place + 1 :]

    for wrong in (changed, told + b"\0", told[:-1], b"\0" + told, b""):
        with pytest.raises(ProtocolError):
            open_part(sign_vote, section, count, wrong)


@pytest.mark.parametrize(("number", "count"), [(1, 6), (0, 5), (0, 7), (5, 6)])
def test_a_part_is_of_its_section_and_of_so_many(number, count):
    parts, ids = parts_of(6)
    told = with_proof(ids, 0, parts[0])

    with pytest.raises(ProtocolError):
        open_part(sign_vote_id(ids), number, count, told)


def test_a_node_is_no_part():
    """Otherwise the author could send one committee as a part what another receives in its inclusion
    proof."""
    _, ids = parts_of(2)
    two = sign_vote_id(ids)
    inner = b"\2" + ids[0] + ids[1]

    for count in (1, 2):
        with pytest.raises(ProtocolError):
            open_part(two, 0, count, inner)
    assert sign_vote_id([content_id(inner)]) != two


def test_ways_are_short():
    assert proof_bytes(0, 1) == 0
    assert max(proof_bytes(section, 10) for section in range(10)) == 4 * 32
    assert max(proof_bytes(section, 341) for section in range(341)) == 9 * 32


def test_names_distinguish_sign_votes_and_sections():
    one, two = (sign_vote_id(parts_of(count)[1]) for count in (2, 3))

    names = [part_name(one, 0, 2), part_name(one, 1, 2), part_name(one, 0, 3), part_name(two, 0, 2)]
    assert len({*names, one, two}) == 6


def test_a_sign_vote_has_the_same_name_in_every_version():
    known = "853acae13e5a16ff9cf3ddd285fda9b1a1d3b459844e2e88ac2b659829242a39"
    assert sign_vote_id(parts_of(5)[1]).hex() == known
