"""Aggregates: the strongest sums in whole numbers, the same in every order of addition."""

from __future__ import annotations

import numpy as np
import pytest
from distro_node.protocol.codec.update import UpdateLayout, update_layout
from distro_node.protocol.committee.aggregate import (
    Aggregate,
    Momentum,
    decode_aggregate,
    encode_aggregate,
    max_aggregate_bytes,
    summed,
)
from distro_node.protocol.committee.sections import Section, sections
from distro_node.protocol.committee.sign_vote import selected_count, selected_positions
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import ParameterSpec
from hypothesis import given
from hypothesis import strategies as st

LAYOUT: UpdateLayout = update_layout(
    [ParameterSpec(name="a", shape=(32, 64)), ParameterSpec(name="b", shape=(24,))], 16, 8
)


def section_of(count: int = 2, number: int = 0) -> Section:
    return sections(LAYOUT, count)[number]


def sign_votes_of(section: Section, members: int, step: int, rotation_steps: int = 4) -> list:
    generator = np.random.default_rng([members, step])
    return [
        (
            [
                (
                    1
                    - 2
                    * generator.integers(
                        0, 2, (each.blocks, selected_count(each, rotation_steps, step))
                    )
                ).astype(np.int8)
                for each in section.layout.tensors
            ],
            1 + member % 2,
        )
        for member in range(members)
    ]


def aggregate_of(section: Section, members: int, number: int = 0, count: int = 2) -> Aggregate:
    momentum = Momentum(section)
    momentum.add(summed(section, 4, 0, sign_votes_of(section, members, 0)), 4, 0)
    return Aggregate(number, count, (True,) * members, momentum.take_strongest(0))


def test_the_order_of_sign_votes_makes_no_difference():
    section = section_of()
    sign_votes = sign_votes_of(section, 7, 3)

    for one, other in zip(
        summed(section, 4, 3, sign_votes), summed(section, 4, 3, sign_votes[::-1]), strict=True
    ):
        assert np.array_equal(one, other)


def test_an_aggregate_holds_the_strongest_of_all_sign_votes():
    """Compared with floating-point numbers, with values that need no rounding."""
    section = section_of()
    momentum, model = (
        Momentum(section),
        [np.zeros((each.blocks, each.elements)) for each in section.layout.tensors],
    )

    for step in range(9):
        sums = summed(section, 4, step, sign_votes_of(section, 5, step))
        momentum.add(sums, 4, step)
        said = momentum.take_strongest(step)
        for index, (values, told) in enumerate(zip(model, sums, strict=True)):
            values -= np.floor(values / 32)
            values[:, selected_positions(values.shape[1], 4, step)] += 256 * told
            for block, row in enumerate(values):
                order = sorted(range(len(row)), key=lambda place: (-abs(row[place]), place))
                chosen = sorted(order[: section.layout.tensors[index].top_k])
                assert said.positions[index][block].tolist() == chosen
                signs = said.signs[index][block]
                assert (signs[row[chosen] != 0] == np.sign(row[chosen])[row[chosen] != 0]).all()
                row[chosen] = 0


def test_a_copy_goes_its_own_way():
    section = section_of()
    momentum = Momentum(section)
    momentum.add(summed(section, 4, 0, sign_votes_of(section, 3, 0)), 4, 0)

    copied = momentum.copy()
    first = momentum.take_strongest(0)

    again = copied.take_strongest(0)
    for one, other in zip(first.positions, again.positions, strict=True):
        assert np.array_equal(one, other)
    # A coefficient taken out of one is not taken out again.
    second = momentum.take_strongest(1)
    assert not np.array_equal(second.positions[0], first.positions[0])


def test_what_was_never_received_is_undone_in_the_next_step():
    section = section_of()
    momentum = Momentum(section)

    first, second = momentum.take_strongest(0), momentum.take_strongest(1)

    assert np.array_equal(first.positions[0], second.positions[0])
    assert np.array_equal(first.signs[0], -second.signs[0])


def test_a_momentum_of_which_all_agree_stays_in_its_numbers():
    section = section_of()
    momentum = Momentum(section)
    most = [
        np.full((each.blocks, selected_count(each, 1, 0)), 2 * 1024, np.int32)
        for each in section.layout.tensors
    ]

    for step in range(400):
        momentum.add(most, 1, step)

    said = momentum.take_strongest(0)
    assert all((signs == 1).all() for signs in said.signs)


@given(st.integers(1, 1024), st.integers(0, 1))
def test_an_aggregate_comes_back(members, number):
    section = section_of(2, number)
    counted = tuple(place % 3 != 0 for place in range(members))
    told = aggregate_of(section, 3, number)
    aggregate = Aggregate(number, 2, counted, told.update)

    body = encode_aggregate(section, aggregate)
    found = decode_aggregate(LAYOUT, body)

    assert (found.section, found.sections, found.counted) == (number, 2, counted)
    assert encode_aggregate(section, found) == body
    assert len(body) <= max_aggregate_bytes(LAYOUT)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: b"",
        lambda body: b"\3" + body[1:],
        lambda body: body[:1] + b"\0\2" + body[3:],
        lambda body: body[:3] + b"\0\0" + body[5:],
        lambda body: body[:3] + b"\xff\xff" + body[5:],
        lambda body: body[:5] + b"\xff\xff" + body[7:],
        lambda body: body[:7] + b"\xff" + body[8:],
        lambda body: body[:8],
        lambda body: body + b"\0",
        lambda body: body[:-1],
    ],
)
def test_what_is_no_aggregate_is_refused(change):
    body = encode_aggregate(section_of(), aggregate_of(section_of(), 3))

    with pytest.raises(ProtocolError):
        decode_aggregate(LAYOUT, change(body))


@given(st.binary(max_size=400))
def test_whatever_the_bytes_an_aggregate_has_one_encoding(data):
    try:
        aggregate = decode_aggregate(LAYOUT, b"\4" + data)
    except ProtocolError:
        return
    section = sections(LAYOUT, aggregate.sections)[aggregate.section]
    assert encode_aggregate(section, aggregate) == b"\4" + data
