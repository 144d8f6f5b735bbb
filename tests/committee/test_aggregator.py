"""Aggregators: they have the same state after each step, whichever sign votes reached which of them."""

from __future__ import annotations

import numpy as np
from distro_node.protocol.codec.layout import UpdateLayout, update_layout
from distro_node.protocol.committee.aggregate import decode_aggregate
from distro_node.protocol.committee.aggregator_state import Aggregator
from distro_node.protocol.committee.sections import sections
from distro_node.protocol.committee.sign_vote import encode_part, selected_count
from distro_node.protocol.wire.manifest import ParameterSpec

ONE_OF = 2
LAYOUT: UpdateLayout = update_layout([ParameterSpec(name="a", shape=(64, 16))], 16, 8)
SECTION = sections(LAYOUT, 2)[1]


def aggregator() -> Aggregator:
    return Aggregator(SECTION, 1, 2, ONE_OF)


def part(member: int, step: int) -> bytes:
    generator = np.random.default_rng([member, step])
    signs = [
        1 - 2 * generator.integers(0, 2, (each.blocks, selected_count(each, ONE_OF, step)), np.int8)
        for each in SECTION.layout.tensors
    ]
    return encode_part(SECTION, signs)


def told(step: int, *, without: int | None = None) -> list[tuple[bytes | None, int]]:
    """Return the parts of five members, one of which may be missing; the second has weight 2."""
    return [(None if m == without else part(m, step), 1 + (m == 1)) for m in range(5)]


def test_aggregators_of_the_same_sign_votes_agree():
    first, second = aggregator(), aggregator()
    for step in range(6):
        said = first.aggregate(step, told(step))
        assert second.aggregate(step, told(step)) == said
        assert decode_aggregate(LAYOUT, said).counted == (True,) * 5
        assert first.settle(said)
        assert second.settle(said)


def test_who_lacked_a_sign_vote_that_nobody_counted_goes_on_with_the_others():
    """One of three had a sign vote that the others lacked: the agreed aggregate decides."""
    more, less = aggregator(), aggregator()
    agreed = less.aggregate(0, told(0, without=3))
    assert more.aggregate(0, told(0)) != agreed

    assert more.settle(agreed)
    assert less.settle(agreed)

    assert more.aggregate(1, told(1)) == less.aggregate(1, told(1))


def test_who_lacks_a_sign_vote_that_was_counted_cannot_follow():
    more, less = aggregator(), aggregator()
    agreed = more.aggregate(0, told(0))
    less.aggregate(0, told(0, without=3))

    assert not less.settle(agreed)


def test_what_does_not_decode_counts_as_no_vote():
    one, other = aggregator(), aggregator()
    garbled = told(0)
    garbled[3] = b"\1nothing", 1

    assert one.aggregate(0, garbled) == other.aggregate(0, told(0, without=3))


def test_an_honest_member_does_not_follow_a_committee_of_liars():
    honest, liar = aggregator(), aggregator()
    honest.aggregate(0, told(0))
    # It claims to have counted all, and has counted other parts.
    lie = liar.aggregate(0, [(part(m, 7), 1) for m in range(5)])

    assert not honest.settle(lie)


def test_with_no_sign_vote_at_all_there_is_an_aggregate():
    said = aggregator().aggregate(0, [(None, 1)] * 3)
    assert decode_aggregate(LAYOUT, said).counted == (False,) * 3
