"""The tally: what those who speak for a section make of everybody's sheets, and its bytes.

A speaker keeps a momentum of the sums of signs, in whole numbers. In each step it fades by a
thirty-second, the signs that are told are added to it, and of each block the strongest coefficients are
taken out of it; their signs are the tally. Nothing in it is rounded and nothing depends on an order, so
speakers who count the same sheets make the same bytes, and a different tally shows that somebody counted
otherwise.

    byte 0          4, the format
    bytes 1 - 2     the number of the section, from 0
    bytes 3 - 4     how many sections there are
    bytes 5 - 6     how many sheets the round's record names
    mask            a bit for each of them in the order of the record, from the highest bit of a byte
                    down: 1 if it was counted; zero bits up to a whole byte
    the rest        positions and signs, as the body of an update of this section (`update`)

Numbers of several bytes begin with the most significant.

Who cannot say one says nothing: a single byte, 5 (`SILENCE`), so that nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...crypto.hashing import content_id
from ..wire.errors import ProtocolError
from ..wire.manifest import MAX_MEMBERS
from .layout import UpdateLayout
from .sections import Section, most_sections, sections
from .sheet import Signs, heard_in, heard_of
from .update import DecodedUpdate, check_update, decode_update, encode_update

FORMAT = 4
SILENCE = bytes([5])
SAID_NOTHING = content_id(SILENCE)
"""What a speaker announces that says nothing."""

_HEADER_BYTES = 7

# A sign counts so much, of which a fading momentum keeps whole numbers. With 1,024 members that count
# twice the momentum of a coefficient that all agree on comes to 2^24 in the end.
_WORTH_BITS = 8
_FADES_BITS = 5

_BLOCKS_AT_ONCE = 1024


@dataclass(frozen=True)
class Tally:
    """A tally as it is told."""

    section: int
    sections: int
    counted: tuple[bool, ...]
    """Of each sheet that the record names, in its order, whether it was counted."""
    said: DecodedUpdate
    """Positions and signs, for each run of the section."""


class Momentum:
    """What a speaker keeps of a section: of each run the coefficients, int32 (blocks, elements)."""

    def __init__(self, section: Section) -> None:
        """Nothing was heard yet."""
        self._section = section
        self._runs = [
            np.zeros((run.blocks, run.elements), np.int32) for run in section.layout.tensors
        ]

    def copy(self) -> Momentum:
        """Another one with the same numbers."""
        made = Momentum.__new__(Momentum)
        made._section, made._runs = self._section, [run.copy() for run in self._runs]
        return made

    def hear(self, sums: Sequence[npt.NDArray[np.int32]], one_of: int, turn: int) -> None:
        """Fade, and take in the sums of the signs that were told of each run, (blocks, heard)."""
        for momentum, told in zip(self._runs, sums, strict=True):
            momentum -= momentum >> _FADES_BITS
            momentum[:, heard_in(momentum.shape[1], one_of, turn)] += told << _WORTH_BITS

    def speak(self, turn: int) -> DecodedUpdate:
        """Take the strongest coefficients of each block out; of two that are as strong, the one that
        comes first."""
        tensors = self._section.layout.tensors
        found = [
            _strongest(momentum, tensor.top_k, turn)
            for momentum, tensor in zip(self._runs, tensors, strict=True)
        ]
        return DecodedUpdate([positions for positions, _ in found], [signs for _, signs in found])


def summed(
    section: Section, one_of: int, turn: int, sheets: Iterable[tuple[Sequence[Signs], int]]
) -> list[npt.NDArray[np.int32]]:
    """The sums of what these sheets of a turn tell of each run of a section, int32 (blocks, heard). Each
    sheet comes with how often it counts."""
    tensors = section.layout.tensors
    sums = [np.zeros((each.blocks, heard_of(each, one_of, turn)), np.int32) for each in tensors]
    for told, often in sheets:
        for total, signs in zip(sums, told, strict=True):
            total += signs if often == 1 else signs.astype(np.int32) * np.int32(often)
    return sums


def encode_tally(section: Section, tally: Tally) -> bytes:
    """The bytes of a tally of this section."""
    numbers = (tally.section, tally.sections, len(tally.counted))
    header = bytes([FORMAT]) + b"".join(number.to_bytes(2, "big") for number in numbers)
    mask = np.packbits(np.array(tally.counted, np.uint8)).tobytes()
    said = encode_update(section.layout, tally.said.positions, tally.said.signs)
    return header + mask + said


def decode_tally(layout: UpdateLayout, body: bytes) -> Tally:
    """Decode a tally of any section of a layout; memory and time are bounded by the layout.

    Raises `ProtocolError`: `malformed`, or what `decode_update` raises.
    """
    number, count, counted, section, said = _opened(layout, body)
    return Tally(number, count, counted, decode_update(section.layout, said))


def _opened(layout: UpdateLayout, body: bytes) -> tuple[int, int, tuple[bool, ...], Section, bytes]:
    """Return what stands before a tally's update, and the update's body, which is not checked yet."""
    if len(body) < _HEADER_BYTES or body[0] != FORMAT:
        raise ProtocolError("malformed", "these bytes are no tally")
    numbers = (int.from_bytes(body[start : start + 2], "big") for start in (1, 3, 5))
    number, count, sheets = numbers
    most = min(most_sections(layout), MAX_MEMBERS)
    if not number < count <= most or sheets > MAX_MEMBERS:
        raise ProtocolError("malformed", f"section {number} of {count}, with {sheets} sheets")
    mask = np.frombuffer(body, np.uint8, offset=_HEADER_BYTES)[: -(-sheets // 8)]
    bits = np.unpackbits(mask)
    if len(bits) < sheets or bits[sheets:].any():
        raise ProtocolError("malformed", "a mask that is no mask of these sheets")
    section = sections(layout, count)[number]
    counted = tuple(bits[:sheets].astype(bool).tolist())
    return number, count, counted, section, body[_HEADER_BYTES + len(mask) :]


def check_said(layout: UpdateLayout, body: bytes) -> None:
    """Check what a speaker said: a tally of any section, or nothing. Raises as `decode_tally` does."""
    if body != SILENCE:
        *_, section, said = _opened(layout, body)
        check_update(section.layout, said)


def joined(layout: UpdateLayout, tallies: Sequence[Tally]) -> DecodedUpdate:
    """What tallies of different sections say together, as one update. Blocks of which none speaks have
    signs of 0."""
    tensors = layout.tensors
    positions = [np.tile(np.arange(t.top_k, dtype=np.int32), (t.blocks, 1)) for t in tensors]
    signs = [np.zeros((tensor.blocks, tensor.top_k), np.int8) for tensor in tensors]
    for tally in tallies:
        section = sections(layout, tally.sections)[tally.section]
        for index, run in enumerate(section.runs):
            own = slice(run.first, run.first + run.blocks)
            positions[run.tensor][own] = tally.said.positions[index]
            signs[run.tensor][own] = tally.said.signs[index]
    return DecodedUpdate(positions, signs)


def tally_bytes(section: Section, sheets: int) -> int:
    """How many bytes a tally of a section has, of so many sheets."""
    return _HEADER_BYTES + -(-sheets // 8) + section.layout.body_bytes


def longest_tally(layout: UpdateLayout) -> int:
    """How many bytes a tally of any section has at most."""
    return _HEADER_BYTES + -(-MAX_MEMBERS // 8) + layout.body_bytes


def place_of(body: bytes) -> tuple[int, int]:
    """For which section a tally, which decodes, is, and how many there are."""
    return int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")


def _strongest(
    momentum: npt.NDArray[np.int32], top_k: int, turn: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Positions and signs, (blocks, top_k), of what is taken out."""
    # Some blocks at a time: to find them takes four times the memory of the momentum.
    found = [
        _strongest_of(momentum[first : first + _BLOCKS_AT_ONCE], top_k, turn)
        for first in range(0, len(momentum), _BLOCKS_AT_ONCE)
    ]
    positions, signs = zip(*found, strict=True)
    return np.concatenate(positions), np.concatenate(signs)


def _strongest_of(
    momentum: npt.NDArray[np.int32], top_k: int, turn: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    elements = momentum.shape[1]
    # One number for strength and place, no two of which are the same: so no order decides.
    order = np.abs(momentum).astype(np.int64) * elements
    order += np.arange(elements - 1, -1, -1)
    positions = np.argpartition(order, elements - top_k, axis=1)[:, elements - top_k :]
    positions = np.sort(positions, axis=1).astype(np.int32)
    values = np.take_along_axis(momentum, positions, axis=1)
    np.put_along_axis(momentum, positions, 0, axis=1)
    # A block of which nothing was heard speaks as well: what it does is undone in the next step.
    at_zero = 1 if turn % 2 == 0 else -1
    signs = np.where(values == 0, at_zero, np.sign(values)).astype(np.int8)
    return positions, signs
