"""The update: which coefficients a member sends, and its bytes.

A body decodes to one update and an update has one body: whatever is spelled differently is refused.
Decoding costs what the layout says, whatever the bytes.

Format 2, explained with its reasons and equations in docs/codec.md. Words have 16 bits and, like all
that is longer than a byte, come with the most significant part first.

    byte 0          2, the format
    byte 1          the mode: 1 if frequencies are counted, 0 if all stay equally likely
    states          three words a lane, lane 0 first (`lanes`)
    stack           words to the end of the body, the top of the stack first

Decoding goes through the waves (`waves`). In a wave come all blocks' first coefficients, then the
second ones and so on, the blocks in the plan's order. As many coefficients as there are lanes, or what
is left of the wave, make a step: coefficient i of a step belongs to lane i, and first all lanes decode
their rows, then all their columns. Row and column are symbols in the strips of the block, with
intervals that follow from the counts before the wave (`popularity`). Lanes that need a word pop it in
the order of lanes.

The order in which the coefficients of a block came spells bits (`orders`). Those of a wave, in the
plan's order of blocks, are cut into words, and these are pushed so that the first one lies on top;
bits that fill no whole word must be zero.

After the last wave each state must be 2^32 + 2^16 · a + b; a and b of lane 0, then of lane 1 and so on
are pushed likewise. The stack then holds the signs, one bit each, 1 for minus, in layout order (tensors
in order, blocks in raster order, positions ascending), padded with zero bits to a whole word. Below may
lie zero words only, as many as an encoder had to take from under an empty stack: where there are any,
the stack must have been empty before some push.

Mode 1 is used if its body is no longer than `UpdateLayout.max_bytes`, otherwise mode 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ..wire.errors import ProtocolError
from .coding_plan import Lines, Plan, Wave
from .frequency_model import Popularity
from .layout import HEADER_BYTES, TensorLayout, UpdateLayout, update_layout
from .permutation_code import Bits, order_bits, read_orders, write_orders
from .rans import WORD_BITS, Decoder, Encoder, Units, Words, lane_count

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
    decoder = Decoder(words, lane_count(layout.coefficients), layout.order_words)
    popularity = Popularity(layout.plan, adaptive=mode == _ADAPTIVE)
    found = {
        top_k: np.empty((sum(layout.tensors[i].blocks for i in members), top_k), dtype=np.int32)
        for top_k, members in layout.classes.items()
    }
    for wave in layout.plan.waves:
        _decode_wave(decoder, popularity, layout.plan, wave, found)
    minus = _bits(decoder.finish(layout.sign_words))
    if minus[layout.coefficients :].any():
        raise _malformed("padding is not zero")
    update = _update(layout, found, minus[: layout.coefficients])
    if mode == _EVEN and _adaptive_fits(layout, update):
        raise _malformed("frequencies are not counted, although that would be no longer")
    return update


def _encode(
    layout: UpdateLayout,
    positions: Sequence[npt.NDArray[np.int32]],
    signs: Sequence[npt.NDArray[np.int8]],
    mode: int,
) -> bytes:
    """The body in one of the modes, be it the right one or not."""
    plan = layout.plan
    minus = np.zeros(layout.sign_words * WORD_BITS, dtype=np.uint8)
    minus[: layout.coefficients] = np.concatenate([sign.ravel() < 0 for sign in signs])
    lanes, symbols = lane_count(layout.coefficients), 2 * layout.coefficients
    encoder = Encoder(_words(minus), lanes, layout.order_words, symbols)
    popularity = Popularity(plan, adaptive=mode == _ADAPTIVE)
    given = {
        top_k: np.concatenate([positions[index] for index in members])
        for top_k, members in layout.classes.items()
    }
    for wave in plan.waves:
        for lines in _lines(plan, wave, given):
            popularity.learn(lines)
    for wave in reversed(plan.waves):
        for lines in _lines(plan, wave, given):
            popularity.unlearn(lines)
        _encode_wave(encoder, popularity, plan, wave, given)
    return bytes([FORMAT, mode]) + encoder.finish().astype(">u2").tobytes()


def _adaptive_fits(layout: UpdateLayout, update: DecodedUpdate) -> bool:
    body = _encode(layout, update.positions, update.signs, _ADAPTIVE)
    return len(body) <= layout.max_bytes


def _update(
    layout: UpdateLayout, found: dict[int, npt.NDArray[np.int32]], minus: Bits
) -> DecodedUpdate:
    positions: dict[int, npt.NDArray[np.int32]] = {}
    for top_k, members in layout.classes.items():
        ends = np.cumsum([layout.tensors[index].blocks for index in members])
        positions |= zip(members, np.split(found[top_k], ends[:-1]), strict=True)
    ordered = [positions[index] for index in range(len(positions))]
    ends = np.cumsum([places.size for places in ordered])
    signs = np.split(1 - 2 * minus.astype(np.int8), ends[:-1])
    return DecodedUpdate(ordered, [s.reshape(p.shape) for s, p in zip(signs, ordered, strict=True)])


@dataclass(frozen=True)
class _Side:
    """The strips in one direction of each coefficient of a wave, in the order of coding."""

    first: Lines
    base: Units
    rate: Units

    @staticmethod
    def of(popularity: Popularity, wave: Wave, lines: Lines, sides: npt.NDArray[np.uint8]) -> _Side:
        """From the first lines and the widths of the strips of all the plan's blocks."""
        first = lines[wave.blocks]
        base, rate = popularity.strips(first, sides[wave.blocks])
        # First all blocks' first coefficient, then the second of those that have one, and so on.
        spread = [np.concatenate([a[:n] for n in wave.ranks]) for a in (first, base, rate)]
        return _Side(*spread)


def _sides(popularity: Popularity, plan: Plan, wave: Wave) -> tuple[_Side, _Side]:
    return (
        _Side.of(popularity, wave, plan.row_lines, plan.block_rows),
        _Side.of(popularity, wave, plan.column_lines, plan.block_columns),
    )


def _steps(coefficients: int, lanes: int) -> list[slice]:
    return [
        slice(start, min(start + lanes, coefficients)) for start in range(0, coefficients, lanes)
    ]


def _decode_wave(
    decoder: Decoder,
    popularity: Popularity,
    plan: Plan,
    wave: Wave,
    found: dict[int, npt.NDArray[np.int32]],
) -> None:
    popularity.prepare(search=True)
    sides = _sides(popularity, plan, wave)
    places = [np.empty_like(side.first) for side in sides]
    for step in _steps(len(places[0]), decoder.lanes):
        for side, place in zip(sides, places, strict=True):
            base, rate = side.base[step], side.rate[step]
            slots = decoder.slots(len(base))
            lines = side.first[step] + popularity.find(slots, base, rate)
            decoder.advance(slots, *popularity.intervals(lines, base, rate))
            place[step] = lines
    for side, place in zip(sides, places, strict=True):
        if wave is not plan.waves[-1]:
            popularity.learn(place)
        place -= side.first
    spelled = []
    for top_k, blocks, ranks in _classes(wave):
        width = plan.block_columns[blocks]
        arranged = np.empty((top_k, len(width)), dtype=np.int16)
        for rank, piece in enumerate(ranks):
            arranged[rank] = places[0][piece] * width + places[1][piece]
        ascending = np.sort(arranged.T.astype(np.int32), axis=1)
        if (ascending[:, 1:] == ascending[:, :-1]).any():
            raise ProtocolError("invalid", "a position comes twice in a block")
        found[top_k][plan.places[blocks]] = ascending
        spelled.append(read_orders(arranged))
    bits, whole = np.concatenate(spelled), wave.order_words * WORD_BITS
    if bits[whole:].any():
        raise _malformed("an order of coefficients spells more than there is to say")
    decoder.push(_words(bits[:whole]))


def _encode_wave(
    encoder: Encoder,
    popularity: Popularity,
    plan: Plan,
    wave: Wave,
    given: dict[int, npt.NDArray[np.int32]],
) -> None:
    popularity.prepare(search=False)
    sides = _sides(popularity, plan, wave)
    places = [np.empty_like(side.first) for side in sides]
    spelled = _bits(encoder.pop(wave.order_words))
    spelled = np.concatenate([spelled, np.zeros(WORD_BITS - 1, dtype=np.uint8)])
    for top_k, blocks, ranks in _classes(wave):
        width = plan.block_columns[blocks]
        ascending = given[top_k][plan.places[blocks]].astype(np.int16).T
        size = order_bits(top_k) * len(width)
        arranged, spelled = write_orders(ascending, spelled[:size]), spelled[size:]
        for rank, piece in enumerate(ranks):
            places[0][piece], places[1][piece] = np.divmod(arranged[rank], width)
    intervals = [
        popularity.intervals(place + side.first, side.base, side.rate)
        for side, place in zip(sides, places, strict=True)
    ]
    for step in reversed(_steps(len(places[0]), encoder.lanes)):
        for starts, widths in reversed(intervals):
            encoder.push(starts[step], widths[step])


def _classes(wave: Wave) -> Iterator[tuple[int, slice, list[slice]]]:
    """Of each class: k, its blocks, and where their coefficients of each rank are coded."""
    offsets = [0, *accumulate(wave.ranks)]
    for top_k, blocks in wave.classes:
        first, last = blocks.start - wave.blocks.start, blocks.stop - wave.blocks.start
        yield top_k, blocks, [slice(o + first, o + last) for o in offsets[:top_k]]


def _lines(plan: Plan, wave: Wave, given: dict[int, npt.NDArray[np.int32]]) -> Iterator[Lines]:
    """The lines of all coefficients of a wave, in any order."""
    for top_k, blocks in wave.classes:
        width = plan.block_columns[blocks, None]
        places = given[top_k][plan.places[blocks]].astype(np.uint16)
        yield (plan.row_lines[blocks, None] + places // width).ravel()
        yield (plan.column_lines[blocks, None] + places % width).ravel()


def _words(bits: Bits) -> Words:
    """Whole words of bits, most significant first."""
    return np.packbits(bits).view(">u2").astype(np.uint16)


def _bits(words: Words) -> Bits:
    return np.unpackbits(words.astype(">u2").view(np.uint8))


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


def _malformed(problem: str) -> ProtocolError:
    return ProtocolError("malformed", problem)
