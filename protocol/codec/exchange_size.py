"""Number of bytes that members exchange in a round or, with committees, in a step."""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.blobs import MAX_BLOB_BYTES
from ..wire.manifest import Manifest, ParameterSpec
from ..wire.work_specs import CommitteesSpec
from .aggregate import aggregate_bytes, max_aggregate_bytes
from .layout import UpdateLayout, manifest_layout, update_layout
from .sections import Section, committee_count, most_sections, sections
from .sign_vote import part_bytes
from .sign_vote_tree import proof_bytes


def sent(layout: UpdateLayout, committees: CommitteesSpec | None) -> int:
    """Return the length in bytes of what each member sends of its gradient: an update or, with
    committees, a sign vote. The sign vote is taken as one part; a part for each section adds a few
    bytes."""
    if committees is None:
        return layout.body_bytes
    (whole,) = sections(layout, 1)
    # Step 0 stands for every step: they differ by at most one coefficient per block.
    return part_bytes(whole, committees.rotation_steps, 0)


def received(layout: UpdateLayout, committees: CommitteesSpec | None, members: int) -> int:
    """Return the approximate bytes that each of `members` receives: the others' updates or, in a
    step of two rounds, the parts of their sign votes for its own section and an aggregate for
    each section."""
    if committees is None:
        return (members - 1) * layout.body_bytes
    if members < 2:
        return 0
    count = committee_count(members, committees.min_members, most_sections(layout))
    cut = sections(layout, count)
    aggregates = sum(aggregate_bytes(section, members) for section in cut)
    part_lengths = (_part_length(cut, number, committees.rotation_steps) for number in range(count))
    return (members - 1) * (sum(part_lengths) // count) + aggregates


def check_size(manifest: Manifest) -> None:
    """Raise `ValueError` for a manifest whose updates, or whose committees' aggregates, are too large
    to be sent as one blob. While there are few members, one committee aggregates the whole model."""
    bytes_ = _longest(manifest_layout(manifest), manifest.committees)
    if bytes_ > MAX_BLOB_BYTES:
        optimizer = manifest.optimizer
        most = largest_top_k(
            manifest.parameters, optimizer.chunk, manifest.committees, optimizer.top_k
        )
        what = "an update" if manifest.committees is None else "an aggregate"
        raise ValueError(
            f"optimizer.top_k ({optimizer.top_k}) is too large for {manifest.elements:,} "
            f"parameters: {what} would have {bytes_ / 1e6:.1f} MB, of "
            f"{MAX_BLOB_BYTES / 1e6:.1f} MB that can be sent as one blob; set it to {most} or "
            "less"
        )


def largest_top_k(
    parameters: Sequence[ParameterSpec], chunk: int, committees: CommitteesSpec | None, most: int
) -> int:
    """Return the largest number of coefficients per block, up to `most`, with which an update or an
    aggregate can be sent as one blob; 1 if there is none."""
    least, beyond = 1, most + 1
    while beyond - least > 1:
        tried = (least + beyond) // 2
        if _longest(update_layout(parameters, chunk, tried), committees) <= MAX_BLOB_BYTES:
            least = tried
        else:
            beyond = tried
    return least


def _longest(layout: UpdateLayout, committees: CommitteesSpec | None) -> int:
    return layout.body_bytes if committees is None else max_aggregate_bytes(layout)


def _part_length(cut: tuple[Section, ...], number: int, rotation_steps: int) -> int:
    """Return the length in bytes of one section's part of a sign vote, in step 0, with its proof."""
    return part_bytes(cut[number], rotation_steps, 0) + proof_bytes(number, len(cut))
