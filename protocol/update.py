"""The update: which coefficients a member sends, and its bytes.

A body decodes to one update and an update has one body: whatever is spelled differently is refused.
Decoding costs what the layout says, whatever the bytes.

Format 2. All numbers are big-endian, all words have 16 bits.

    byte 0          2, the format
    byte 1          the mode: 1 if frequencies are counted, 0 if all count as equally likely
    states          three words a lane (`lanes`), the highest first
    stack           the rest, in words, the top first

What is decoded, step by step: the waves in order (`waves`); in a wave the first coefficient of every
block, then the second ones; of each coefficient its row, then its column. As many neighbours in that
order as there are lanes make a step. The interval of a row or column follows from the counts before
the wave (`popularity`). The coefficients of a block come in an arrangement that spells bits
(`orders`). Those of a wave, class by class and block by block, make up words that go back onto the
stack, the first one on top; the bits that do not fill a word must be zero.

At the end each state must be 2^32 plus two words, which go back onto the stack, lane 0's on top. Then
the stack is: the signs, a bit each in layout order, 1 for minus, with zero bits up to a whole word;
and below them as many zero words as an encoder takes from under an empty stack, not one more.

An encoder does the opposite from the end to the beginning. Mode 1 is used wherever it keeps within
`UpdateLayout.max_bytes`, mode 0 nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import ProtocolError
from .lanes import Decoder, Encoder, lane_count
from .layout import HEADER_BYTES, TensorLayout, UpdateLayout, update_layout
from .orders import order_bits, read_orders, write_orders
from .popularity import Popularity
from .waves import Plan, Wave

__all__ = [
    "FORMAT",
    "DecodedUpdate",
    "TensorLayout",
    "UpdateLayout",
    "decode_update",
    "encode_update",
    "update_layout",
]

FORMAT = 2

_EVEN, _ADAPTIVE = 0, 1


@dataclass(frozen=True)
class DecodedUpdate:
    """What an update says, per tensor of its layout."""

    positions: list[npt.NDArray[np.int32]]
    """Each (blocks, k): positions in the block, ascending."""
    signs: list[npt.NDArray[np.int8]]
    """Each (blocks, k): +1 or -1."""


def encode_update(
    layout: UpdateLayout,
    positions: Sequence[npt.NDArray[np.int32]],
    signs: Sequence[npt.NDArray[np.int8]],
) -> bytes:
    """The body of an update, given as in `DecodedUpdate`.

    Raises `ValueError` if the arrays do not fit the layout.
    """
    _check_arrays(layout, positions, signs)
    body = _encode(layout, positions, signs, _ADAPTIVE)
    return body if len(body) <= layout.max_bytes else _encode(layout, positions, signs, _EVEN)


def decode_update(layout: UpdateLayout, body: bytes) -> DecodedUpdate:
    """Decode a body; memory and time are bounded by the layout, whatever the bytes.

    Raises `ProtocolError`: `oversized` above the layout's bound, `malformed` if this is no body of
    this layout or not the one spelling of its update, `invalid` for a position that comes twice.
    """
    if len(body) > layout.max_bytes:
        raise ProtocolError("oversized", f"{len(body)} bytes, at most {layout.max_bytes} possible")
    if len(body) < layout.min_bytes:
        raise _malformed(f"{len(body)} bytes, at least {layout.min_bytes} needed")
    if body[0] != FORMAT:
        raise _malformed(f"update format {body[0]}, this program knows {FORMAT}")
    mode = body[1]
    if mode not in (_EVEN, _ADAPTIVE) or len(body) % 2:
        raise _malformed("an unknown mode, or half a word")
    words = np.frombuffer(body, ">u2", offset=HEADER_BYTES).astype(np.uint16)
    plan = layout.plan
    decoder = Decoder(words, lane_count(layout.coefficients), layout.order_words)
    popularity = Popularity(plan, adaptive=mode == _ADAPTIVE)
    found = {
        k: np.empty((sum(layout.tensors[i].blocks for i in members), k), np.int32)
        for k, members in layout.classes.items()
    }
    for wave in plan.waves:
        _decode_wave(decoder, popularity, plan, wave, found)
    minus = np.unpackbits(decoder.finish(layout.sign_words).astype(">u2").view(np.uint8))
    if minus[layout.coefficients :].any():
        raise _malformed("padding is not zero")
    update = _split(layout, found, minus)
    if (
        mode == _EVEN
        and len(_encode(layout, update.positions, update.signs, _ADAPTIVE)) <= layout.max_bytes
    ):
        raise _malformed("not the shorter of two spellings")
    return update


def _split(
    layout: UpdateLayout, found: dict[int, npt.NDArray[np.int32]], minus: npt.NDArray[np.uint8]
) -> DecodedUpdate:
    positions: dict[int, npt.NDArray[np.int32]] = {}
    for top_k, members in layout.classes.items():
        ends = np.cumsum([layout.tensors[index].blocks for index in members])
        positions |= zip(members, np.split(found[top_k], ends[:-1]), strict=True)
    ordered = [positions[index] for index in range(len(positions))]
    ends = np.cumsum([places.size for places in ordered])
    signs = np.split(1 - 2 * minus[: layout.coefficients].astype(np.int8), ends[:-1])
    return DecodedUpdate(ordered, [s.reshape(p.shape) for s, p in zip(signs, ordered, strict=True)])


def _encode(
    layout: UpdateLayout,
    positions: Sequence[npt.NDArray[np.int32]],
    signs: Sequence[npt.NDArray[np.int8]],
    mode: int,
) -> bytes:
    plan = layout.plan
    minus = np.zeros(layout.sign_words * 16, dtype=np.uint8)
    minus[: layout.coefficients] = np.concatenate([sign.ravel() < 0 for sign in signs])
    bottom = np.packbits(minus).view(">u2").astype(np.uint16)
    encoder = Encoder(
        bottom, lane_count(layout.coefficients), layout.order_words, 2 * layout.coefficients
    )
    popularity = Popularity(plan, adaptive=mode == _ADAPTIVE)
    given = {
        k: np.concatenate([positions[i] for i in members]) for k, members in layout.classes.items()
    }
    for wave in plan.waves:
        popularity.learn(_lines(plan, wave, given))
    for wave in reversed(plan.waves):
        popularity.unlearn(_lines(plan, wave, given))
        _encode_wave(encoder, popularity, plan, wave, given)
    return bytes([FORMAT, mode]) + encoder.finish().astype(">u2").tobytes()


@dataclass(frozen=True)
class _Side:
    """For each coefficient of a wave, in the order of coding, its strip in one direction."""

    first: npt.NDArray[np.int64]
    base: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]


def _sides(popularity: Popularity, plan: Plan, wave: Wave) -> tuple[_Side, _Side]:
    which = np.concatenate([np.arange(count) for count in wave.ranks])
    sides = []
    for side, lines in enumerate((plan.row_lines, plan.column_lines)):
        first = lines[wave.blocks]
        base, total = popularity.strips(first, plan.sides[wave.blocks, side])
        sides.append(
            _Side(first.astype(np.int64)[which], base[which], total[which], np.empty_like(which))
        )
    return sides[0], sides[1]


def _decode_wave(
    decoder: Decoder,
    popularity: Popularity,
    plan: Plan,
    wave: Wave,
    found: dict[int, npt.NDArray[np.int32]],
) -> None:
    popularity.prepare(wave, search=True)
    sides = _sides(popularity, plan, wave)
    count = len(sides[0].lines)
    for start in range(0, count, decoder.lanes):
        part = slice(start, min(start + decoder.lanes, count))
        for side in sides:
            base, total = side.base[part], side.total[part]
            slots = decoder.slots(part.stop - part.start)
            lines = popularity.find(slots, base, total) + side.first[part]
            decoder.advance(slots, *popularity.intervals(lines, base, total))
            side.lines[part] = lines
    for side in sides:
        popularity.learn(side.lines)
    rows, columns = (side.lines - side.first for side in sides)
    spelled = []
    for top_k, blocks, places in _pieces(wave):
        shape = (blocks.stop - blocks.start, top_k)
        arranged = np.empty(shape, np.int32)
        width = plan.sides[blocks, 1]
        for rank, piece in enumerate(places):
            arranged[:, rank] = rows[piece] * width + columns[piece]
        ascending = np.sort(arranged, axis=1)
        if (ascending[:, 1:] == ascending[:, :-1]).any():
            raise ProtocolError("invalid", "a position comes twice")
        spelled.append(read_orders(arranged))
        found[top_k][plan.places[blocks]] = ascending
    decoder.push(_to_words(np.concatenate(spelled), wave.order_words))


def _encode_wave(
    encoder: Encoder,
    popularity: Popularity,
    plan: Plan,
    wave: Wave,
    given: dict[int, npt.NDArray[np.int32]],
) -> None:
    popularity.prepare(wave, search=False)
    sides = _sides(popularity, plan, wave)
    spelled = np.unpackbits(encoder.pop(wave.order_words).astype(">u2").view(np.uint8))
    spelled = np.concatenate([spelled, np.zeros(16, np.uint8)])
    rows, columns = sides[0].lines, sides[1].lines
    done = 0
    for top_k, blocks, places in _pieces(wave):
        bits = order_bits(top_k) * (blocks.stop - blocks.start)
        arranged = write_orders(given[top_k][plan.places[blocks]], spelled[done : done + bits])
        done += bits
        width = plan.sides[blocks, 1]
        for rank, piece in enumerate(places):
            rows[piece], columns[piece] = np.divmod(arranged[:, rank], width)
    intervals = []
    for side in sides:
        np.add(side.lines, side.first, out=side.lines)
        intervals.append(popularity.intervals(side.lines, side.base, side.total))
    count = len(rows)
    for start in reversed(range(0, count, encoder.lanes)):
        part = slice(start, min(start + encoder.lanes, count))
        for low, width in reversed(intervals):
            encoder.push(low[part], width[part])


def _pieces(wave: Wave):
    """Of each class: k, its blocks, and for each rank where they stand in the order of coding."""
    offsets = np.concatenate([[0], np.cumsum(wave.ranks)])
    first = wave.blocks.start
    for top_k, blocks in wave.classes:
        yield (
            top_k,
            blocks,
            [slice(o + blocks.start - first, o + blocks.stop - first) for o in offsets[:top_k]],
        )


def _lines(
    plan: Plan, wave: Wave, given: dict[int, npt.NDArray[np.int32]]
) -> npt.NDArray[np.int64]:
    lines = []
    for top_k, blocks in wave.classes:
        rows, columns = np.divmod(given[top_k][plan.places[blocks]], plan.sides[blocks, 1, None])
        lines += [
            (rows + plan.row_lines[blocks, None]).ravel(),
            (columns + plan.column_lines[blocks, None]).ravel(),
        ]
    return np.concatenate(lines)


def _to_words(bits: npt.NDArray[np.uint8], words: int) -> npt.NDArray[np.uint16]:
    if bits[16 * words :].any():
        raise _malformed("orders spell more than there is")
    return np.packbits(bits[: 16 * words]).view(">u2").astype(np.uint16)


def _malformed(problem: str) -> ProtocolError:
    return ProtocolError("malformed", problem)


def _check_arrays(
    layout: UpdateLayout,
    positions: Sequence[npt.NDArray[np.int32]],
    signs: Sequence[npt.NDArray[np.int8]],
) -> None:
    for tensor, places, sign in zip(layout.tensors, positions, signs, strict=True):
        shape = (tensor.blocks, tensor.top_k)
        if places.shape != shape or sign.shape != shape:
            raise ValueError(f"{tensor.name}: expected arrays of shape {shape}")
        ascending = (np.diff(places, axis=1) > 0).all()
        if not ascending or places[:, 0].min() < 0 or places[:, -1].max() >= tensor.elements:
            raise ValueError(f"{tensor.name}: positions must ascend within their block")
        if not (np.abs(sign) == 1).all():
            raise ValueError(f"{tensor.name}: signs must be +1 or -1")
