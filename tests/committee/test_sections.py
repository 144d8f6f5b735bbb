"""Sections: each block in one of them, none empty, all of about the same length."""

from __future__ import annotations

import pytest
from distro_node.protocol.codec.layout import UpdateLayout
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.committee.sections import most_sections, sections
from distro_node.protocol.wire.manifest import ParameterSpec
from hypothesis import given
from hypothesis import strategies as st

SHAPES = st.lists(
    st.lists(st.integers(1, 150), min_size=0, max_size=3).map(tuple), min_size=1, max_size=6
)


def layout_of(*shapes: tuple[int, ...], chunk: int = 64, top_k: int = 8) -> UpdateLayout:
    parameters = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
    return update_layout(parameters, chunk, top_k)


@given(SHAPES, st.data())
def test_every_block_is_in_one_section_and_no_section_is_empty(shapes, data):
    layout = layout_of(*shapes)
    count = data.draw(st.integers(1, most_sections(layout)))

    cut = sections(layout, count)

    found = [
        (run.tensor, block)
        for section in cut
        for run in section.runs
        for block in range(run.first, run.first + run.blocks)
    ]
    assert found == [
        (index, block)
        for index, tensor in enumerate(layout.tensors)
        for block in range(tensor.blocks)
    ]
    assert len(cut) == count
    assert all(section.runs for section in cut)


@given(SHAPES, st.data())
def test_a_sections_layout_has_the_blocks_of_its_runs(shapes, data):
    layout = layout_of(*shapes)
    count = data.draw(st.integers(1, most_sections(layout)))

    for section in sections(layout, count):
        for run, cut in zip(section.runs, section.layout.tensors, strict=True):
            tensor = layout.tensors[run.tensor]
            assert (cut.blocks, cut.elements, cut.top_k) == (
                run.blocks,
                tensor.elements,
                tensor.top_k,
            )


def test_sections_are_as_long_as_whole_blocks_allow():
    layout = layout_of((640, 640), (64,), (1280, 64))

    lengths = [
        sum(each.blocks * each.elements for each in section.layout.tensors)
        for section in sections(layout, 7)
    ]

    assert max(lengths) - min(lengths) <= 2 * 64 * 64


@pytest.mark.parametrize("count", [0, 3])
def test_no_more_sections_than_blocks_and_one_at_least(count):
    with pytest.raises(ValueError, match="2 blocks cannot be cut into"):
        sections(layout_of((64, 64), (5,)), count)
