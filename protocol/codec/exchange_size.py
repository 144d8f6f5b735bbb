"""Bytes that members exchange: in a round, or in a step with committees."""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.blobs import MAX_BLOB_BYTES
from ..wire.manifest import Manifest, ParameterSpec
from ..wire.work_specs import SpeakersSpec
from .aggregate import longest_tally, tally_bytes
from .layout import UpdateLayout, manifest_layout, update_layout
from .sections import Section, most_sections, panel_count, sections
from .sign_vote import part_bytes
from .sign_vote_tree import way_bytes


def sent(layout: UpdateLayout, speakers: SpeakersSpec | None) -> int:
    """Return the bytes of each member's message about its gradient: an update, or a sign vote."""
    if speakers is None:
        return layout.body_bytes
    (whole,) = sections(layout, 1)
    return part_bytes(whole, speakers.one_of, 0)


def received(layout: UpdateLayout, speakers: SpeakersSpec | None, members: int) -> int:
    """Return the approximate bytes that each of `members` receives: the others' updates or, in a
    step of two rounds, the parts of their sign votes for its own section and an aggregate for
    each section."""
    if speakers is None:
        return (members - 1) * layout.body_bytes
    if members < 2:
        return 0
    count = panel_count(members, speakers.panel, most_sections(layout))
    cut = sections(layout, count)
    tallies = sum(tally_bytes(section, members) for section in cut)
    parts = sum(_part(cut, number, speakers.one_of) for number in range(count)) // count
    return (members - 1) * parts + tallies


def check_size(manifest: Manifest) -> None:
    """Raise `ValueError` for a manifest whose updates, or whose committees' aggregates, are too large
    to be sent as one blob. While members are few, one committee aggregates the whole model."""
    bytes_ = _longest(manifest_layout(manifest), manifest.speakers)
    if bytes_ > MAX_BLOB_BYTES:
        optimizer = manifest.optimizer
        most = largest_top_k(
            manifest.parameters, optimizer.chunk, manifest.speakers, optimizer.top_k
        )
        what = "an update" if manifest.speakers is None else "an aggregate"
        raise ValueError(
            f"optimizer.top_k ({optimizer.top_k}) is too large for {manifest.elements:,} "
            f"parameters: {what} would have {bytes_ / 1e6:.1f} MB, of "
            f"{MAX_BLOB_BYTES / 1e6:.1f} MB that can be sent as one blob; set it to {most} or "
            "less"
        )


def largest_top_k(
    parameters: Sequence[ParameterSpec], chunk: int, speakers: SpeakersSpec | None, most: int
) -> int:
    """Return the largest number of coefficients a block, up to `most`, with which an update or an
    aggregate can be sent as one blob; at least 1, even where that cannot."""
    least, beyond = 1, most + 1
    while beyond - least > 1:
        tried = (least + beyond) // 2
        if _longest(update_layout(parameters, chunk, tried), speakers) <= MAX_BLOB_BYTES:
            least = tried
        else:
            beyond = tried
    return least


def _longest(layout: UpdateLayout, speakers: SpeakersSpec | None) -> int:
    return layout.body_bytes if speakers is None else longest_tally(layout)


def _part(cut: tuple[Section, ...], number: int, one_of: int) -> int:
    return part_bytes(cut[number], one_of, 0) + way_bytes(number, len(cut))
