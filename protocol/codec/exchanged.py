"""How many bytes members exchange: in a round, or in a step where panels speak for the others."""

from __future__ import annotations

from ..wire.work_specs import SpeakersSpec
from .layout import UpdateLayout
from .sections import Section, most_sections, panel_count, sections
from .sheet import part_bytes
from .sheet_tree import way_bytes
from .tally import tally_bytes


def sent(layout: UpdateLayout, speakers: SpeakersSpec | None) -> int:
    """The bytes of what each member makes of its gradient: an update, or a sheet."""
    if speakers is None:
        return layout.body_bytes
    (whole,) = sections(layout, 1)
    return part_bytes(whole, speakers.one_of, 0)


def received(layout: UpdateLayout, speakers: SpeakersSpec | None, members: int) -> int:
    """The bytes that each of so many members receives, about: the others' updates or, in a step of two
    rounds, their sheets' parts for its own section and a tally for each section."""
    if speakers is None:
        return (members - 1) * layout.body_bytes
    if members < 2:
        return 0
    count = panel_count(members, speakers.panel, most_sections(layout))
    cut = sections(layout, count)
    tallies = sum(tally_bytes(section, members) for section in cut)
    parts = sum(_part(cut, number, speakers.one_of) for number in range(count)) // count
    return (members - 1) * parts + tallies


def _part(cut: tuple[Section, ...], number: int, one_of: int) -> int:
    return part_bytes(cut[number], one_of, 0) + way_bytes(number, len(cut))
