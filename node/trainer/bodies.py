"""The bodies that a trainer makes and reads: updates or, where panels speak, sheets and tallies."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.codec.sections import sections
from ...protocol.codec.sheet import encode_part, heard_of, step_of
from ...protocol.codec.tally import decode_tally, joined
from ...protocol.codec.update import DecodedUpdate, UpdateLayout, decode_update, encode_update
from ...protocol.wire.manifest import Manifest
from .optimizer import LocalOptimizer
from .part import Part


def make_body(
    manifest: Manifest, layout: UpdateLayout, part: Part, optimizer: LocalOptimizer, round: int
) -> bytes:
    """Take the update of a round from the momentum; with speakers tell its sheet, as that of one
    section. Empty where another process has it."""
    speakers = manifest.speakers
    if speakers is None:
        taken = part.merged(optimizer.take(round))
        return b"" if taken is None else encode_update(layout, taken.positions, taken.signs)
    one_of, turn = speakers.one_of, step_of(round)
    told = part.told(optimizer.tell(one_of, turn), lambda tensor: heard_of(tensor, one_of, turn))
    return b"" if told is None else encode_part(sections(layout, 1)[0], told)


def coefficients_of(manifest: Manifest, layout: UpdateLayout, round: int) -> int:
    """Of how many coefficients a body of a round tells."""
    speakers = manifest.speakers
    if speakers is None:
        return layout.coefficients
    turn = step_of(round)
    return sum(tensor.blocks * heard_of(tensor, speakers.one_of, turn) for tensor in layout.tensors)


def read_bodies(
    manifest: Manifest, layout: UpdateLayout, bodies: Sequence[bytes], counts: Sequence[int]
) -> tuple[list[DecodedUpdate], list[int]]:
    """What a round's bodies say that count so often each, and how often that counts. With speakers they
    are tallies of different sections, and together say one thing once.

    Raises `ProtocolError`.
    """
    if manifest.speakers is None:
        return [decode_update(layout, body) for body in bodies], list(counts)
    tallies = [decode_tally(layout, body) for body in bodies]
    return ([joined(layout, tallies)], [1]) if tallies else ([], [])
