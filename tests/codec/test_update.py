"""The update codec: decoding inverts encoding, other bytes are refused, and bodies are short."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from distro_node.protocol.codec.update import (
    FORMAT,
    DecodedUpdate,
    UpdateLayout,
    check_update,
    decode_update,
    encode_update,
    update_layout,
)
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import ParameterSpec
from hypothesis import given
from hypothesis import strategies as st

GOLDEN = Path(__file__).parents[1] / "golden" / "update_3.bin"

SHAPES = st.lists(
    st.one_of(
        st.just(()),
        st.tuples(st.integers(1, 150)),
        st.tuples(st.integers(1, 130), st.integers(1, 130)),
        st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 40)),
    ),
    min_size=1,
    max_size=5,
)


def layout_of(*shapes: tuple[int, ...], chunk: int = 64, top_k: int = 8) -> UpdateLayout:
    parameters = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
    return update_layout(parameters, chunk, top_k)


def random_update(
    layout: UpdateLayout, generator: np.random.Generator, skew: float = 0.0
) -> DecodedUpdate:
    """Draw positions uniformly, or with a larger skew towards low frequencies in both directions."""
    positions, signs = [], []
    for tensor in layout.tensors:
        rows, columns = np.divmod(np.arange(tensor.elements), tensor.block_columns)
        bias = -skew * (rows / tensor.block_rows + columns / tensor.block_columns)
        # The k largest of independent Gumbel variables with these means: a weighted sample.
        scores = bias + generator.gumbel(size=(tensor.blocks, tensor.elements))
        chosen = np.argpartition(-scores, tensor.top_k - 1, axis=1)[:, : tensor.top_k]
        positions.append(np.sort(chosen, axis=1).astype(np.int16))
        drawn = generator.integers(0, 2, (tensor.blocks, tensor.top_k))
        signs.append((1 - 2 * drawn).astype(np.int8))
    return DecodedUpdate(positions, signs)


def assert_same(left: DecodedUpdate, right: DecodedUpdate) -> None:
    for a, b in zip(left.positions + left.signs, right.positions + right.signs, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_blocks_shrink_to_the_largest_divisor() -> None:
    layout = layout_of((256, 128), (344, 128), (128,), (100,), (), (3, 5, 96), (67, 64))
    cuts = [(t.block_rows, t.block_columns, t.blocks, t.top_k) for t in layout.tensors]
    assert cuts == [
        (64, 64, 8, 8),
        (43, 64, 16, 8),
        (1, 64, 2, 8),
        (1, 50, 2, 6),
        (1, 1, 1, 1),
        (15, 48, 2, 8),
        (1, 64, 67, 8),
    ]
    assert [t.sides for t in layout.tensors] == [2, 2, 1, 1, 0, 2, 1]
    assert layout.coefficients == 64 + 128 + 16 + 12 + 1 + 16 + 536


def test_small_blocks_send_at_most_an_eighth_and_full_ones_top_k() -> None:
    assert [t.top_k for t in layout_of((8, 8), (4, 4), (2, 3), chunk=8, top_k=20).tensors] == [
        20,
        2,
        1,
    ]
    assert layout_of((4, 4), chunk=4, top_k=4096).tensors[0].top_k == 16


@given(SHAPES, st.integers(1, 64), st.integers(1, 40), st.integers(0, 2**32), st.floats(0, 60))
def test_round_trip(
    shapes: list[tuple[int, ...]], chunk: int, top_k: int, seed: int, skew: float
) -> None:
    layout = layout_of(*shapes, chunk=chunk, top_k=top_k)
    update = random_update(layout, np.random.default_rng(seed), skew)
    body = encode_update(layout, update.positions, update.signs)
    assert len(body) == layout.body_bytes
    assert_same(decode_update(layout, body), update)


@pytest.mark.parametrize("place", ["first", "last", "spread", "all"])
def test_extreme_positions(place: str) -> None:
    layout = layout_of((128, 128), (48,), (), top_k=4096 if place == "all" else 8)
    positions = []
    for tensor in layout.tensors:
        k, elements = tensor.top_k, tensor.elements
        chosen = {
            "first": np.arange(k),
            "last": np.arange(elements - k, elements),
            "spread": np.arange(1, k + 1) * elements // k - 1,
            "all": np.arange(k),
        }[place]
        positions.append(np.tile(chosen.astype(np.int16), (tensor.blocks, 1)))
    signs = [np.full_like(p, -1, dtype=np.int8) for p in positions]
    body = encode_update(layout, positions, signs)
    assert len(body) == layout.body_bytes
    assert_same(decode_update(layout, body), DecodedUpdate(positions, signs))


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5, 6, 7, 8, 10, 16, 32, 64])
def test_a_body_is_as_short_as_the_number_of_updates_allows(top_k: int) -> None:
    """log2 C(4096, k) bits and k signs a block, and a quarter of a per cent at most."""
    layout = layout_of((8192, 2048), top_k=top_k)
    bits = 128 * 32 * (math.log2(math.comb(4096, top_k)) + top_k)
    assert 0 <= layout.body_bytes * 8 / bits - 1 < 0.0025


def test_arrays_that_do_not_fit_are_our_own_mistake() -> None:
    layout = layout_of((16,), top_k=2)
    sign = np.ones((1, 2), dtype=np.int8)
    for bad in ([[1, 1]], [[2, 1]], [[-1, 3]], [[0, 16]], [[1, 2, 3]]):
        with pytest.raises(ValueError, match="p0"):
            encode_update(layout, [np.array(bad, dtype=np.int32)], [sign])
    with pytest.raises(ValueError, match="signs"):
        encode_update(layout, [np.array([[1, 2]], dtype=np.int32)], [0 * sign])


LAYOUT = layout_of((128, 64), (96,), (7, 5), ())


def example_body(seed: int = 0, skew: float = 3.0) -> bytes:
    update = random_update(LAYOUT, np.random.default_rng(seed), skew)
    return encode_update(LAYOUT, update.positions, update.signs)


def decode_or_refuse(layout: UpdateLayout, body: bytes) -> bool:
    """Check the decoder's contract: the unique encoding of a valid update, or `ProtocolError`."""
    try:
        update = decode_update(layout, body)
    except ProtocolError as error:
        assert error.reason in {"oversized", "malformed", "invalid"}  # noqa: PT017 (both outcomes are fine)
        return False
    assert encode_update(layout, update.positions, update.signs) == body
    return True


def test_other_lengths_and_formats_are_refused() -> None:
    body = example_body()
    for data, reason in [
        (body + b"\0", "oversized"),
        (b"", "malformed"),
        (body[:-1], "malformed"),
        (b"\x02" + body[1:], "malformed"),
    ]:
        with pytest.raises(ProtocolError) as caught:
            decode_update(LAYOUT, data)
        assert caught.value.reason == reason


def spelled(tails: bytes, bits: str) -> bytes:
    octets = np.packbits(np.array([int(bit) for bit in bits], dtype=np.uint8)).tobytes()
    return bytes([FORMAT]) + tails + octets


def test_what_no_update_spells_is_refused() -> None:
    sets, layout = math.comb(64, 8), layout_of((64,))
    last, behind = [(n & 0xFFFFFF).to_bytes(3, "big") for n in (sets - 1, sets)]
    head = sets - 1 >> 24
    update = decode_update(layout, spelled(last, f"{head:09b}" + "00000000" + "0000000"))
    assert update.positions[0].tolist() == [list(range(56, 64))]
    for what, body in {
        "a number that encodes no set": spelled(behind, f"{head:09b}" + 15 * "0"),
        "a head that no number has": spelled(last, f"{head + 1:09b}" + 15 * "0"),
        "padding": spelled(last, f"{head:09b}" + 14 * "0" + "1"),
    }.items():
        with pytest.raises(ProtocolError) as caught:
            decode_update(layout, body)
        assert caught.value.reason == "malformed", what

    # Three blocks of 40 with one position each make a group below 40^3, in 16 bits.
    layout = layout_of((120,), chunk=40, top_k=1)
    update = decode_update(layout, spelled(b"", f"{40**3 - 1:016b}" + 8 * "0"))
    assert (update.positions[0] == 39).all()
    for number in (40**3, 2**16 - 1):
        with pytest.raises(ProtocolError) as caught:
            decode_update(layout, spelled(b"", f"{number:016b}" + 8 * "0"))
        assert caught.value.reason == "malformed"


@pytest.mark.parametrize("shape", [(), (1,), (2,), (6,), (2, 4)])
def test_every_body_of_a_small_layout_is_refused_or_the_spelling_of_its_own(
    shape: tuple[int, ...],
) -> None:
    layout = layout_of(shape, chunk=5, top_k=3)
    (tensor,) = layout.tensors
    updates = math.comb(tensor.elements, tensor.top_k) * 2**tensor.top_k
    length = layout.body_bytes - 1
    bodies = (bytes([FORMAT]) + n.to_bytes(length, "big") for n in range(256**length))
    assert sum(decode_or_refuse(layout, body) for body in bodies) == updates**tensor.blocks


def test_every_flipped_bit_is_seen_or_gives_another_update() -> None:
    body = example_body()
    for bit in range(len(body) * 8):
        changed = bytearray(body)
        changed[bit // 8] ^= 0x80 >> bit % 8
        decode_or_refuse(LAYOUT, bytes(changed))


def mutate(body: bytes, generator: np.random.Generator) -> bytes:
    data = bytearray(body)
    for _ in range(generator.integers(1, 4)):
        place = int(generator.integers(0, len(data)))
        match generator.integers(0, 5):
            case 0:
                data[place] ^= 1 << int(generator.integers(0, 8))
            case 1:
                data[place] = int(generator.integers(0, 256))
            case 2:
                data.insert(place, int(generator.integers(0, 256)))
            case 3:
                del data[place : place + int(generator.integers(1, 4))]
            case _:
                data[place:] = generator.bytes(len(data) - place)
        if not data:
            break
    return bytes(data)


def run_mutations(count: int) -> int:
    generator = np.random.default_rng(count)
    bodies = [example_body(seed, skew) for seed, skew in enumerate([0.0, 3.0, 30.0])]
    return sum(
        decode_or_refuse(LAYOUT, mutate(bodies[index % 3], generator)) for index in range(count)
    )


def test_mutated_bodies() -> None:
    accepted = run_mutations(1500)
    # Some changes give another update; a fuzz run that accepts none tests little.
    assert 0 < accepted < 1500


def test_golden_body() -> None:
    """The bytes are frozen: changing them is a new format number."""
    body = example_body(seed=2026)
    assert body == GOLDEN.read_bytes()


def verdict(
    check: Callable[[UpdateLayout, bytes], object], layout: UpdateLayout, body: bytes
) -> str:
    """Return why a body is refused; empty if it is accepted."""
    try:
        check(layout, body)
    except ProtocolError as error:
        return f"{error.reason}: {error}"
    return ""


@given(SHAPES, st.integers(1, 9), st.randoms(use_true_random=False), st.integers(0, 2**32 - 1))
def test_a_body_is_refused_without_decoding_exactly_where_it_is_by_decoding(
    shapes: list[tuple[int, ...]], top_k: int, random: Random, seed: int
) -> None:
    layout = layout_of(*shapes, top_k=top_k)
    update = random_update(layout, np.random.default_rng(seed))
    honest = encode_update(layout, update.positions, update.signs)
    assert verdict(check_update, layout, honest) == ""
    for _ in range(6):
        body = bytearray(honest)
        for _ in range(random.choice((1, 2, len(body)))):
            body[random.randrange(len(body))] = random.choice((0, 255, random.randrange(256)))
        body[0] = FORMAT if random.random() < 0.9 else body[0]
        if random.random() < 0.1:
            body = body[: random.randrange(len(body))] or bytearray(1)
        told = verdict(decode_update, layout, bytes(body))
        assert verdict(check_update, layout, bytes(body)) == told


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_largest_number_of_a_set_is_the_last_that_is_taken(over: int) -> None:
    """C(4096, 8) - 1 belongs to a set, C(4096, 8) to none: both decoders agree on the exact bound."""
    layout = layout_of((64, 64))
    update = DecodedUpdate(
        [np.arange(4088, 4096, dtype=np.int32).reshape(1, 8)], [np.ones((1, 8), np.int8)]
    )
    body = bytearray(encode_update(layout, update.positions, update.signs))
    (kind,) = layout.kinds
    tail = int.from_bytes(body[1 : 1 + kind.tail_octets], "big") + over
    body[1 : 1 + kind.tail_octets] = tail.to_bytes(kind.tail_octets, "big")
    expected = "" if over <= 0 else "malformed"
    for check in (decode_update, check_update):
        assert verdict(check, layout, bytes(body)).startswith(expected)
        assert bool(verdict(check, layout, bytes(body))) == (over > 0)
