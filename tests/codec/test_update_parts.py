"""The parts of the update codec, each against its own promise: waves, counts, orders, lanes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from distro_node.protocol.codec.coding_plan import Plan
from distro_node.protocol.codec.frequency_model import Popularity
from distro_node.protocol.codec.layout import update_layout
from distro_node.protocol.codec.permutation_code import order_bits, read_orders, write_orders
from distro_node.protocol.codec.rans import LAST_SLOT, Decoder, Encoder, Units, symbol_bits
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import ParameterSpec
from hypothesis import given, settings
from hypothesis import strategies as st


def plan_of(*shapes: tuple[int, ...], top_k: int = 8) -> Plan:
    parameters = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
    return update_layout(parameters, 64, top_k).plan


# Waves


def test_every_block_is_in_one_wave() -> None:
    plan = plan_of((1024, 512), (344, 128), (100,), (), (64, 6400))
    assert [wave.blocks.start for wave in plan.waves[1:]] == [
        w.blocks.stop for w in plan.waves[:-1]
    ]
    strips = set(zip(plan.row_lines.tolist(), plan.column_lines.tolist(), strict=True))
    assert len(strips) == plan.waves[-1].blocks.stop == len(plan.places) == 128 + 16 + 2 + 1 + 100


@pytest.mark.parametrize("shape", [(2048, 2048), (8192, 2048), (2048, 8192)])
def test_strips_have_their_share_of_each_wave(shape: tuple[int, int]) -> None:
    plan = plan_of(shape)
    for lines in (plan.row_lines, plan.column_lines):
        strips, total = np.unique(lines, return_counts=True)
        done = np.zeros(len(strips))
        for wave in plan.waves:
            done += (strips[:, None] == lines[wave.blocks]).sum(axis=1)
            share = done / total
            assert share.max() - share.min() <= 1 / 32


def test_ranks_count_blocks_with_so_many_coefficients() -> None:
    (wave,) = plan_of((64, 64), (4, 4), (64,), top_k=9).waves
    assert [k for k, _ in wave.classes] == [9, 8, 2]
    assert wave.ranks == [3, 3, 2, 2, 2, 2, 2, 2, 1]


# Counts


@pytest.mark.parametrize("most", [0, 3, 100, 60_000])
def test_each_slot_but_the_last_belongs_to_one_frequency(most: int) -> None:
    plan = plan_of((64 * 8192, 43), (5,), top_k=8)
    popularity = Popularity(plan, adaptive=True)
    generator = np.random.default_rng(most)
    # The column strip of the tall tensor, 43 wide, is the one that can see most.
    first = np.uint32(64 * 8192)
    for _ in range(3):
        lines = first + generator.zipf(1.5, most).clip(1, 43) - 1
        popularity.learn(lines.astype(np.uint32))
    popularity.prepare(search=True)
    slots = np.arange(LAST_SLOT, dtype=np.uint32)
    base, rate = popularity.strips(np.array([first]), np.array([43], dtype=np.uint8))
    found = popularity.find(slots, base, rate)
    start, width = popularity.intervals(first + found.astype(np.uint32), base, rate)
    assert ((start <= slots) & (slots < start + width)).all()
    assert set(found) == set(range(43))
    with pytest.raises(ProtocolError):
        popularity.find(np.array([LAST_SLOT], dtype=np.uint32), base, rate)


def test_what_was_seen_more_often_is_wider_and_unlearning_undoes_it() -> None:
    plan = plan_of((64, 64))
    popularity = Popularity(plan, adaptive=True)
    strip = np.zeros(64, dtype=np.uint32), np.full(64, 64, dtype=np.uint8)
    widths = []
    for step in (lambda lines: None, popularity.learn, popularity.unlearn):
        step(np.array([7, 7, 9], dtype=np.uint32))
        popularity.prepare(search=False)
        lines = np.arange(64, dtype=np.uint32)
        widths.append(popularity.intervals(lines, *popularity.strips(*strip))[1])
    np.testing.assert_array_equal(widths[0], widths[2])
    # 64 ones and 4 for each of three.
    np.testing.assert_allclose(widths[1][[6, 7, 8, 9]] / 65536 * 76, [1, 9, 1, 5], rtol=0.01)


# Orders


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_arrangements_spell_each_number_of_bits_once(count: int) -> None:
    places = np.arange(count, dtype=np.int16) * 3
    spelled, silent = set(), 0
    for arrangement in itertools.permutations(places.tolist()):
        arranged = np.array(arrangement, dtype=np.int16)[:, None]
        try:
            bits = read_orders(arranged)
        except ProtocolError:
            silent += 1
            continue
        spelled.add(bits.tobytes())
        np.testing.assert_array_equal(write_orders(places[:, None], bits), arranged)
    assert len(spelled) == 2 ** order_bits(count)
    assert len(spelled) + silent == math.factorial(count)


@given(st.integers(1, 70), st.integers(1, 5), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_orders_give_back_their_bits(count: int, blocks: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    drawn = [np.sort(generator.choice(4096, count, replace=False)) for _ in range(blocks)]
    bits = generator.integers(0, 2, blocks * order_bits(count)).astype(np.uint8)
    arranged = write_orders(np.stack(drawn, axis=1).astype(np.int16), bits)
    np.testing.assert_array_equal(read_orders(arranged), bits)
    # No more than a bit is lost for each group of twenty.
    assert order_bits(count) > math.lgamma(count + 1) / math.log(2) - 1 - count // 12


# Lanes


def random_intervals(generator: np.random.Generator, count: int) -> tuple[Units, Units]:
    width = (2 ** generator.uniform(0, 15.99, count)).astype(np.uint32)
    start = (generator.random(count) * (LAST_SLOT - width)).astype(np.uint32)
    return start, width


@given(st.integers(1, 40), st.integers(0, 300), st.integers(0, 60), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_what_is_pushed_is_popped(lanes: int, symbols: int, bottom: int, seed: int) -> None:
    """Symbols, and words taken off the stack half-way, come back, and nothing is left over."""
    generator = np.random.default_rng(seed)
    below = generator.integers(0, 1 << 16, bottom).astype(np.uint16)
    starts, widths = random_intervals(generator, symbols)
    steps = [slice(i, min(i + lanes, symbols)) for i in range(0, symbols, lanes)]
    taken = 20
    encoder = Encoder(below, lanes, taken, symbols)
    words = np.zeros(0, dtype=np.uint16)
    for number, step in enumerate(reversed(steps)):
        if number == len(steps) // 2:
            words = encoder.pop(taken).copy()
        encoder.push(starts[step], widths[step])

    body = encoder.finish()
    decoder = Decoder(body, lanes, taken)
    for number, step in reversed(list(enumerate(reversed(steps)))):
        slots = decoder.slots(step.stop - step.start)
        assert ((starts[step] <= slots) & (slots < starts[step] + widths[step])).all()
        decoder.advance(slots, starts[step], widths[step])
        if number == len(steps) // 2:
            decoder.push(words)
    np.testing.assert_array_equal(decoder.finish(bottom), below)


def test_the_cost_of_a_symbol_is_that_of_its_interval() -> None:
    generator = np.random.default_rng(3)
    starts, widths = random_intervals(generator, 20_000)
    encoder = Encoder(np.zeros(0, dtype=np.uint16), 10, 0, 20_000)
    for step in range(0, 20_000, 10):
        encoder.push(starts[step : step + 10], widths[step : step + 10])
    bits = (16 - np.log2(widths)).sum()
    # States of 10 lanes: up to 48 bits each.
    assert bits < 16 * len(encoder.finish()) < bits + 480 + 10


@pytest.mark.parametrize("symbols", range(1, 65))
def test_the_bound_of_a_symbol_is_above_its_cost(symbols: int) -> None:
    assert 0 < symbol_bits(symbols) - math.log2(symbols) < 0.004
