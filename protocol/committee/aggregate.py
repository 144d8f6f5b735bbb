"""Aggregates: the result that the committee of a section computes from all sign votes, and its bytes.

An aggregator keeps a momentum of the sums of signs, in whole numbers. In each step the momentum decays
by 1/32, the sums of the new signs are added, and the strongest coefficients of each block are taken out
of it; their positions and signs are the aggregate. This is integer arithmetic, and nothing depends on an
order. So aggregators that count the same sign votes produce the same bytes, and different aggregates
show that the aggregators did not count the same.

    byte 0          4, the format
    bytes 1 - 2     the number of the section, from 0
    bytes 3 - 4     the number of sections
    bytes 5 - 6     the number of sign votes that the round's record names
    mask            a bit for each of these sign votes in the order of the record, from the highest bit
                    of a byte down: 1 if it was counted; zero bits up to a whole byte
    the rest        positions and signs, as the body of an update of this section (`codec.update`)

Numbers of several bytes begin with the most significant.

An aggregator that cannot aggregate abstains by sending the single byte 5 (`ABSTAIN`), so that no member
waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...crypto.hashing import content_id
from ..codec.layout import UpdateLayout
from ..codec.update import DecodedUpdate, check_update, decode_update, encode_update
from ..wire.errors import ProtocolError
from ..wire.manifest import MAX_MEMBERS
from .sections import Section, most_sections, sections
from .sign_vote import Signs, selected_count, selected_positions

FORMAT = 4
ABSTAIN = bytes([5])
ABSTENTION = content_id(ABSTAIN)
"""The content id that an abstaining aggregator announces."""

_HEADER_BYTES = 7

# A sign counts 2^8 in the momentum, which decays by 2^-5 per step in whole numbers. With 1,024 members
# of weight 2, the momentum of a coefficient on which all agree approaches 2^24.
_WORTH_BITS = 8
_FADES_BITS = 5

_BLOCKS_AT_ONCE = 1024


@dataclass(frozen=True)
class Aggregate:
    """A decoded aggregate."""

    section: int
    sections: int
    counted: tuple[bool, ...]
    """Whether each sign vote that the record names was counted, in its order."""
    update: DecodedUpdate
    """Positions and signs, for each run of the section."""


class Momentum:
    """Momentum of a section: the coefficients of each run, int32 (blocks, elements)."""

    def __init__(self, section: Section) -> None:
        """Start at zero."""
        self._section = section
        self._runs = [
            np.zeros((run.blocks, run.elements), np.int32) for run in section.layout.tensors
        ]

    def copy(self) -> Momentum:
        """Return an independent copy."""
        made = copy(self)
        made._runs = [run.copy() for run in self._runs]
        return made

    def add(self, sums: Sequence[npt.NDArray[np.int32]], rotation_steps: int, step: int) -> None:
        """Decay the momentum, and add the sums of the step's signs for each run, (blocks, selected)."""
        for momentum, selected_sums in zip(self._runs, sums, strict=True):
            momentum -= momentum >> _FADES_BITS
            momentum[:, selected_positions(momentum.shape[1], rotation_steps, step)] += (
                selected_sums << _WORTH_BITS
            )

    def take_strongest(self, step: int) -> DecodedUpdate:
        """Remove the strongest coefficients of each block and return their positions and signs. Of
        equally strong ones, the first in the block are taken."""
        tensors = self._section.layout.tensors
        found = [
            _strongest(momentum, tensor.top_k, step)
            for momentum, tensor in zip(self._runs, tensors, strict=True)
        ]
        return DecodedUpdate([positions for positions, _ in found], [signs for _, signs in found])


def summed(
    section: Section,
    rotation_steps: int,
    step: int,
    sign_votes: Iterable[tuple[Sequence[Signs], int]],
) -> list[npt.NDArray[np.int32]]:
    """Return for each run of a section the sums of the signs in these sign votes of a step, int32
    (blocks, selected). `sign_votes`: the signs for each run, with the sign vote's update weight."""
    tensors = section.layout.tensors
    sums = [
        np.zeros((each.blocks, selected_count(each, rotation_steps, step)), np.int32)
        for each in tensors
    ]
    for signs_by_run, weight in sign_votes:
        for total, signs in zip(sums, signs_by_run, strict=True):
            total += signs if weight == 1 else signs.astype(np.int32) * np.int32(weight)
    return sums


def encode_aggregate(section: Section, aggregate: Aggregate) -> bytes:
    """Return the bytes of an aggregate of this section."""
    header = section_header(aggregate.section, aggregate.sections)
    header += len(aggregate.counted).to_bytes(2, "big")
    mask = np.packbits(np.array(aggregate.counted, np.uint8)).tobytes()
    body = encode_update(section.layout, aggregate.update.positions, aggregate.update.signs)
    return header + mask + body


def decode_aggregate(layout: UpdateLayout, body: bytes) -> Aggregate:
    """Decode an aggregate of any section of a layout; memory and time are bounded by the layout.

    Raises `ProtocolError`: `malformed`, or as `decode_update` does.
    """
    number, count, counted, section, update_body = _opened(layout, body)
    return Aggregate(number, count, counted, decode_update(section.layout, update_body))


def _opened(layout: UpdateLayout, body: bytes) -> tuple[int, int, tuple[bool, ...], Section, bytes]:
    """Return the header fields of an aggregate, its section, and the body of its update, which is not
    checked yet."""
    if len(body) < _HEADER_BYTES or body[0] != FORMAT:
        raise ProtocolError("malformed", "not an aggregate of a known format")
    numbers = (int.from_bytes(body[start : start + 2], "big") for start in (1, 3, 5))
    number, count, sign_votes = numbers
    most = min(most_sections(layout), MAX_MEMBERS)
    if not number < count <= most or sign_votes > MAX_MEMBERS:
        raise ProtocolError(
            "malformed", f"section {number} of {count}, with {sign_votes} sign votes"
        )
    mask = np.frombuffer(body, np.uint8, offset=_HEADER_BYTES)[: -(-sign_votes // 8)]
    bits = np.unpackbits(mask)
    if len(bits) < sign_votes or bits[sign_votes:].any():
        raise ProtocolError("malformed", "the mask does not fit the number of sign votes")
    section = sections(layout, count)[number]
    counted = tuple(bits[:sign_votes].astype(bool).tolist())
    return number, count, counted, section, body[_HEADER_BYTES + len(mask) :]


def check_aggregate(layout: UpdateLayout, body: bytes) -> None:
    """Check the bytes that an aggregator announced: an aggregate of any section, or an abstention.
    Raises as `decode_aggregate` does."""
    if body != ABSTAIN:
        *_, section, update_body = _opened(layout, body)
        check_update(section.layout, update_body)


def joined(layout: UpdateLayout, aggregates: Sequence[Aggregate]) -> DecodedUpdate:
    """Return aggregates of different sections as one update. Blocks of a section without an aggregate
    have signs of 0."""
    tensors = layout.tensors
    positions = [np.tile(np.arange(t.top_k, dtype=np.int16), (t.blocks, 1)) for t in tensors]
    signs = [np.zeros((tensor.blocks, tensor.top_k), np.int8) for tensor in tensors]
    for aggregate in aggregates:
        section = sections(layout, aggregate.sections)[aggregate.section]
        for index, run in enumerate(section.runs):
            own = slice(run.first, run.first + run.blocks)
            positions[run.tensor][own] = aggregate.update.positions[index]
            signs[run.tensor][own] = aggregate.update.signs[index]
    return DecodedUpdate(positions, signs)


def aggregate_bytes(section: Section, sign_votes: int) -> int:
    """Return the length in bytes of an aggregate of a section from a record with `sign_votes` sign
    votes."""
    return _HEADER_BYTES + -(-sign_votes // 8) + section.layout.body_bytes


def max_aggregate_bytes(layout: UpdateLayout) -> int:
    """Return the largest length in bytes of an aggregate of any section."""
    return _HEADER_BYTES + -(-MAX_MEMBERS // 8) + layout.body_bytes


def section_header(section: int, sections: int) -> bytes:
    """Return the bytes with which every aggregate of a section begins. `section` counts from 0."""
    return bytes([FORMAT]) + section.to_bytes(2, "big") + sections.to_bytes(2, "big")


def _strongest(
    momentum: npt.NDArray[np.int32], top_k: int, step: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Remove the strongest coefficients. Returns their positions and signs, (blocks, top_k)."""
    # The search takes four times the memory of the momentum, so it is done for slices of the blocks.
    found = [
        _strongest_of(momentum[first : first + _BLOCKS_AT_ONCE], top_k, step)
        for first in range(0, len(momentum), _BLOCKS_AT_ONCE)
    ]
    positions, signs = zip(*found, strict=True)
    return np.concatenate(positions), np.concatenate(signs)


def _strongest_of(
    momentum: npt.NDArray[np.int32], top_k: int, step: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    elements = momentum.shape[1]
    # Strength and position in one number, distinct for all coefficients, so no sorting order matters.
    order = np.abs(momentum).astype(np.int64) * elements
    order += np.arange(elements - 1, -1, -1)
    positions = np.argpartition(order, elements - top_k, axis=1)[:, elements - top_k :]
    positions = np.sort(positions, axis=1).astype(np.int32)
    values = np.take_along_axis(momentum, positions, axis=1)
    np.put_along_axis(momentum, positions, 0, axis=1)
    # A coefficient of 0 needs a sign as well, for example in a block without any signs yet. It
    # alternates, so that the next step undoes its effect.
    at_zero = 1 if step % 2 == 0 else -1
    signs = np.where(values == 0, at_zero, np.sign(values)).astype(np.int8)
    return positions, signs
