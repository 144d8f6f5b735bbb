"""Sign votes: every coefficient is selected in rotation, decoding inverts encoding, other bytes are
refused."""

from __future__ import annotations

import numpy as np
import pytest
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.committee.sections import Section, sections
from distro_node.protocol.committee.sign_vote import (
    cut_sign_vote,
    decode_part,
    encode_part,
    part_bytes,
    selected_count,
    selected_positions,
)
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import ParameterSpec
from hypothesis import given
from hypothesis import strategies as st


def section_of(*shapes: tuple[int, ...], count: int = 1, number: int = 0) -> Section:
    parameters = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
    return sections(update_layout(parameters, 64, 64), count)[number]


def random_signs(
    section: Section, rotation_steps: int, step: int, seed: int = 0
) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [
        (
            1
            - 2
            * generator.integers(0, 2, (each.blocks, selected_count(each, rotation_steps, step)))
        ).astype(np.int8)
        for each in section.layout.tensors
    ]


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(0, 1000))
def test_every_coefficient_is_sent_once_in_a_cycle(elements, rotation_steps, first):
    heard = [
        selected_positions(elements, rotation_steps, first + step) for step in range(rotation_steps)
    ]

    assert np.array_equal(np.sort(np.concatenate(heard)), np.arange(elements))
    assert all((np.diff(each) > 0).all() for each in heard)
    assert max(map(len, heard)) - min(map(len, heard)) <= 1


def test_the_rotation_does_not_change():
    # Members of two versions must select the same coefficients.
    assert (
        selected_positions(4096, 4, 6)[:8].tolist() == selected_positions(4096, 4, 2)[:8].tolist()
    )
    assert selected_positions(16, 4, 0).tolist() == [0, 3, 12, 15]
    assert int(selected_positions(4096, 8, 3).sum()) == 1009009


@given(st.integers(1, 9), st.integers(0, 20), st.integers(0, 2))
def test_a_part_comes_back(rotation_steps, step, number):
    section = section_of((128, 192), (70,), (3, 5), count=3, number=number)
    signs = random_signs(section, rotation_steps, step, seed=step)

    part = encode_part(section, signs)

    assert len(part) == part_bytes(section, rotation_steps, step)
    for told, found in zip(signs, decode_part(section, rotation_steps, step, part), strict=True):
        assert np.array_equal(told, found)


@given(st.binary(max_size=80))
def test_whatever_the_bytes_a_part_has_one_spelling(data):
    section = section_of((5, 7), (9,))

    try:
        signs = decode_part(section, 3, 1, data)
    except ProtocolError:
        return
    assert encode_part(section, signs) == data


def test_a_part_with_another_format_or_padding_is_refused():
    section = section_of((5, 7))
    part = encode_part(section, random_signs(section, 3, 1))

    for wrong in (b"\2" + part[1:], part[:-1] + bytes([part[-1] | 1]), part + b"\0", part[:-1]):
        with pytest.raises(ProtocolError):
            decode_part(section, 3, 1, wrong)


@pytest.mark.parametrize("step", range(4))
def test_parts_of_all_sections_hold_what_one_part_of_the_whole_holds(step):
    shapes = ((128, 192), (70,))
    whole, three = section_of(*shapes), [section_of(*shapes, count=3, number=n) for n in range(3)]
    signs = random_signs(whole, 5, step)

    parts = cut_sign_vote(whole, three, 5, step, encode_part(whole, signs))

    for section, part in zip(three, parts, strict=True):
        told = [signs[run.tensor][run.first : run.first + run.blocks] for run in section.runs]
        assert part == encode_part(section, told)


def test_a_sign_vote_of_another_length_is_not_cut():
    whole = section_of((128, 192))
    sign_vote = encode_part(whole, random_signs(whole, 4, 1))

    for wrong in (sign_vote + b"\0", sign_vote[:-1], b""):
        with pytest.raises(ProtocolError):
            cut_sign_vote(whole, [whole], 4, 1, wrong)
