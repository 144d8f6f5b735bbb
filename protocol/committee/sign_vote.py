"""Sign votes: the signs that a member sends to the aggregators, and their bytes.

For each block a member sends the signs of a few coefficients of its gradient. The step determines which
coefficients, not the member: every step selects others, until each was selected once
(`selected_positions`), and all members send the same ones. So a sign vote contains no positions, and the
aggregators' sums cover all coefficients and all members.

A sign vote is cut into *parts*, one for each section of the layout; only the aggregators of a section
need its part. A section consists of *runs*: consecutive blocks of one tensor. A part is a separate blob:

    byte 0          1, the format
    bits            run after run of the section, block after block: one bit per selected coefficient, 1
                    for minus, positions ascending
                    zero bits up to a whole byte

The encoding of a part is unique, and its length follows from the section and the step. The id of a sign
vote follows from all of its parts (`sign_vote_tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ..codec.layout import TensorLayout
from ..codec.permutation import permutation_keys, permute
from ..wire.errors import ProtocolError
from .sections import BlockRun, Section

PART_FORMAT = 1

Signs = npt.NDArray[np.int8]
"""(blocks, selected): +1 or -1 for each coefficient selected in the step, positions ascending."""

_DOMAIN = b"distro-node turns of coefficients"


def step_of(round: int) -> int:
    """Return the number of the step, counted from 0, that a round belongs to; this is the `step` of its
    sign votes. A step has two rounds, and the first step begins with round 1."""
    return (round - 1) // 2


def selected_positions(elements: int, rotation_steps: int, step: int) -> npt.NDArray[np.int32]:
    """Return the positions selected in a step, ascending, in a block with this many elements. In any
    `rotation_steps` consecutive steps each position is selected once. The array is read-only."""
    return _selected_positions(elements, rotation_steps, step % rotation_steps)


def selected_count(tensor: TensorLayout, rotation_steps: int, step: int) -> int:
    """Return the number of coefficients selected in each block of a tensor."""
    return len(selected_positions(tensor.elements, rotation_steps, step))


def zero_sign(rotation_steps: int, step: int) -> int:
    """Return the sign that is sent for a coefficient of 0. It changes after every `rotation_steps`
    steps."""
    return 1 if step // rotation_steps % 2 == 0 else -1


def part_bytes(section: Section, rotation_steps: int, step: int) -> int:
    """Return the length in bytes of a section's part."""
    tensors = section.layout.tensors
    return 1 + -(
        -sum(each.blocks * selected_count(each, rotation_steps, step) for each in tensors) // 8
    )


def encode_part(section: Section, signs: Sequence[Signs]) -> bytes:
    """Return a section's part of a sign vote, from the signs of each of its runs."""
    return _packed([(each.ravel() < 0).view(np.uint8) for each in signs])


def decode_part(section: Section, rotation_steps: int, step: int, part: bytes) -> list[Signs]:
    """Return the signs that a part contains for each run of its section. Memory and time are bounded by
    the section.

    Raises `ProtocolError`: `malformed` if these bytes are not a part of this section in this step.
    """
    size = part_bytes(section, rotation_steps, step)
    if len(part) != size:
        raise ProtocolError("malformed", f"{len(part)} bytes instead of {size}")
    if part[0] != PART_FORMAT:
        raise ProtocolError(
            "malformed", f"a sign vote of format {part[0]}; this program knows {PART_FORMAT}"
        )
    bits = np.unpackbits(np.frombuffer(part, np.uint8, offset=1))
    signs = []
    for tensor in section.layout.tensors:
        selected = selected_count(tensor, rotation_steps, step)
        own, bits = np.split(bits, [tensor.blocks * selected])
        signs.append((1 - 2 * own.astype(np.int8)).reshape(tensor.blocks, selected))
    if bits.any():
        raise ProtocolError("malformed", "padding is not zero")
    return signs


def cut_sign_vote(
    whole: Section, cut: Sequence[Section], rotation_steps: int, step: int, part: bytes
) -> list[bytes]:
    """Cut a sign vote for the whole layout into the parts of the sections `cut`. `part` is the sign
    vote's only part, with the layout as one section, `whole`. Its padding is not checked.

    Raises `ProtocolError`: `malformed` if the length of `part` is wrong.
    """
    size = part_bytes(whole, rotation_steps, step)
    if len(part) != size:
        raise ProtocolError("malformed", f"{len(part)} bytes instead of {size}")
    tensors = whole.layout.tensors
    selected = [selected_count(tensor, rotation_steps, step) for tensor in tensors]
    begins = [0, *accumulate(t.blocks * each for t, each in zip(tensors, selected, strict=True))]
    data = np.frombuffer(part, np.uint8, offset=1)

    def selected_bits(run: BlockRun) -> npt.NDArray[np.uint8]:
        first = begins[run.tensor] + run.first * selected[run.tensor]
        end = first + run.blocks * selected[run.tensor]
        # Unpack only the bytes with these bits: the whole sign vote would take eight times its size.
        bits = np.unpackbits(data[first // 8 : -(-end // 8)])
        return bits[first % 8 :][: end - first]

    return [_packed([selected_bits(run) for run in section.runs]) for section in cut]


def _packed(bits: Sequence[npt.NDArray[np.uint8]]) -> bytes:
    return bytes([PART_FORMAT]) + np.packbits(np.concatenate(bits)).tobytes()


@cache
def _selected_positions(elements: int, rotation_steps: int, step: int) -> npt.NDArray[np.int32]:
    ranks = np.arange(
        step * elements // rotation_steps, (step + 1) * elements // rotation_steps, dtype=np.uint64
    )
    # Neighbouring coefficients are correlated, so a pseudo-random permutation spreads those selected
    # together.
    keys = permutation_keys(_DOMAIN + elements.to_bytes(4, "little"))[:, np.newaxis]
    positions = np.sort(permute(ranks, elements, keys)).astype(np.int32)
    positions.flags.writeable = False
    return positions
