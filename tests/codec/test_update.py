"""The update codec: what goes in comes out, all else is refused, and bodies are short."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distro_node.protocol.codec.update import (
    DecodedUpdate,
    UpdateLayout,
    _encode,
    decode_update,
    encode_update,
    update_layout,
)
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import ParameterSpec
from hypothesis import given, settings
from hypothesis import strategies as st

GOLDEN = Path(__file__).parents[1] / "golden" / "update_2.bin"

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
    """Positions drawn evenly, or towards low frequencies in both directions with a larger skew."""
    positions, signs = [], []
    for tensor in layout.tensors:
        rows, columns = np.divmod(np.arange(tensor.elements), tensor.block_columns)
        bias = -skew * (rows / tensor.block_rows + columns / tensor.block_columns)
        # The k largest of independent Gumbel variables with these means: a weighted sample.
        scores = bias + generator.gumbel(size=(tensor.blocks, tensor.elements))
        chosen = np.argpartition(-scores, tensor.top_k - 1, axis=1)[:, : tensor.top_k]
        positions.append(np.sort(chosen, axis=1).astype(np.int32))
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
@settings(max_examples=150, deadline=None)
def test_round_trip(
    shapes: list[tuple[int, ...]], chunk: int, top_k: int, seed: int, skew: float
) -> None:
    layout = layout_of(*shapes, chunk=chunk, top_k=top_k)
    update = random_update(layout, np.random.default_rng(seed), skew)
    body = encode_update(layout, update.positions, update.signs)
    assert layout.min_bytes <= len(body) <= layout.max_bytes
    assert_same(decode_update(layout, body), update)
    # The bound is one for updates that are coded without counting, however they look.
    assert len(_encode(layout, update.positions, update.signs, 0)) <= layout.max_bytes


@pytest.mark.parametrize("place", ["first", "last", "spread", "all"])
def test_extreme_positions_stay_in_the_bounds(place: str) -> None:
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
        positions.append(np.tile(chosen.astype(np.int32), (tensor.blocks, 1)))
    signs = [np.full_like(p, -1, dtype=np.int8) for p in positions]
    body = encode_update(layout, positions, signs)
    assert layout.min_bytes <= len(body) <= layout.max_bytes
    assert_same(decode_update(layout, body), DecodedUpdate(positions, signs))
    assert len(_encode(layout, positions, signs, 0)) <= layout.max_bytes


def test_the_upper_bound_is_close() -> None:
    """The bound is what a receiver reserves: it may not be far above what honest members send."""
    layout = layout_of((1024, 1024))
    assert layout.max_bytes * 8 / layout.coefficients < 12


def outer_update(layout: UpdateLayout, generator: np.random.Generator) -> DecodedUpdate:
    """The strongest coefficients of noisy outer products, as gradients are."""
    positions, signs = [], []
    for tensor in layout.tensors:
        left = generator.normal(size=tensor.rows) ** 3
        right = generator.normal(size=tensor.columns) ** 3
        values = np.outer(left, right) + generator.normal(size=(tensor.rows, tensor.columns))
        blocks = values.reshape(tensor.down, tensor.block_rows, tensor.across, tensor.block_columns)
        flat = blocks.transpose(0, 2, 1, 3).reshape(tensor.blocks, tensor.elements)
        chosen = np.sort(np.argsort(-np.abs(flat), axis=1)[:, : tensor.top_k], axis=1)
        positions.append(chosen.astype(np.int32))
        signs.append(np.where(np.take_along_axis(flat, chosen, axis=1) < 0, -1, 1).astype(np.int8))
    return DecodedUpdate(positions, signs)


def test_what_neighbours_share_is_not_sent_again() -> None:
    layout = layout_of((1024, 512))
    update = outer_update(layout, np.random.default_rng(5))
    body = encode_update(layout, update.positions, update.signs)
    assert len(body) * 8 / layout.coefficients < 8.5
    assert_same(decode_update(layout, body), update)


def test_even_positions_cost_what_they_must() -> None:
    """The set of 8 of 4096 carries 10.09 bits a position; counting would only add to that."""
    layout = layout_of((1024, 512))
    update = random_update(layout, np.random.default_rng(5))
    body = encode_update(layout, update.positions, update.signs)
    assert body[1] == 0
    assert len(body) * 8 / layout.coefficients < 11.09 + 0.3
    assert_same(decode_update(layout, body), update)


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
    """The decoder's whole promise: the one spelling of a valid update, or `ProtocolError`."""
    try:
        update = decode_update(layout, body)
    except ProtocolError as error:
        assert error.reason in {"oversized", "malformed", "invalid"}  # noqa: PT017 (both outcomes are fine)
        return False
    assert encode_update(layout, update.positions, update.signs) == body
    return True


def test_lengths_outside_the_bounds_are_refused() -> None:
    body = example_body()
    for data, reason in [
        (bytes(LAYOUT.max_bytes + 1), "oversized"),
        (b"", "malformed"),
        (body[: LAYOUT.min_bytes - 1], "malformed"),
        (body + b"\0", "malformed"),
        (body + b"\0\0", "malformed"),
        (body[:-2], "malformed"),
        (body[:-1], "malformed"),
        (b"\x01" + body[1:], "malformed"),
        (body[:1] + b"\x02" + body[2:], "malformed"),
    ]:
        with pytest.raises(ProtocolError) as caught:
            decode_update(LAYOUT, data)
        assert caught.value.reason == reason


def test_the_longer_of_two_spellings_is_refused() -> None:
    layout = layout_of((256, 256))
    for update, right in [
        (outer_update(layout, np.random.default_rng(7)), 1),
        (random_update(layout, np.random.default_rng(7)), 0),
    ]:
        both = [_encode(layout, update.positions, update.signs, mode) for mode in (0, 1)]
        assert encode_update(layout, update.positions, update.signs) == both[right]
        assert_same(decode_update(layout, both[right]), update)
        with pytest.raises(ProtocolError):
            decode_update(layout, both[1 - right])


def test_every_flipped_bit_is_seen_or_gives_another_update() -> None:
    body = example_body()
    for bit in range(len(body) * 8):
        changed = bytearray(body)
        changed[bit // 8] ^= 0x80 >> bit % 8
        decode_or_refuse(LAYOUT, bytes(changed))


@given(st.binary(max_size=LAYOUT.max_bytes + 8))
@settings(max_examples=300, deadline=None)
def test_random_bytes(data: bytes) -> None:
    decode_or_refuse(LAYOUT, data)
    decode_or_refuse(LAYOUT, b"\x02\x01" + data)


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
    assert 0 < accepted < 750


def test_mutated_bodies_of_several_lanes_and_waves() -> None:
    layout = layout_of((512, 512), (512,))
    update = outer_update(layout, np.random.default_rng(9))
    body = encode_update(layout, update.positions, update.signs)
    generator = np.random.default_rng(10)
    for _ in range(150):
        decode_or_refuse(layout, mutate(body, generator))


def run_random(count: int) -> None:
    generator = np.random.default_rng(1)
    for _ in range(count):
        body = generator.bytes(2 * int(generator.integers(0, 100)))
        decode_or_refuse(LAYOUT, b"\x02\x01" + body)


@pytest.mark.slow
def test_thousands_of_mutated_and_random_bodies() -> None:
    run_mutations(6_000)
    run_random(4_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_thousand_mutated_and_random_bodies() -> None:
    run_mutations(150_000)
    run_random(50_000)


def test_golden_body() -> None:
    """The bytes are frozen: changing them is a new format number."""
    body = example_body(seed=2026)
    assert body == GOLDEN.read_bytes()
