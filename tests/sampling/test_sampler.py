"""The sample order: each sample once an epoch, well mixed, and streams read neighbouring data."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from distro_node.protocol.sampling.sampler import SPAN_CHUNKS, StreamOrder, order_of
from distro_node.protocol.wire.blobs import CHUNK_BYTES
from distro_node.protocol.wire.manifest import Manifest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.toy import toy_manifest


def first_places(order: StreamOrder, count: int) -> list[int]:
    """Return the samples at the first `count` places of the endless sequence, epoch after epoch."""
    window, inside = np.divmod(np.arange(count), order.streams * order.span)
    streams, row = np.divmod(inside, order.span)
    return order.samples_at(streams, window * order.span + row)


def corpus(samples: int, streams: int, length: int = 100) -> Manifest:
    manifest = toy_manifest(samples=samples)
    shard = replace(manifest.data.shards[0], tokens=length * samples + 1)
    return replace(
        manifest,
        data=replace(manifest.data, sequence_length=length, token_bytes=2, shards=(shard,)),
        rounds=replace(manifest.rounds, sequences=streams),
    )


@settings(deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(1, 300),
    st.integers(1, 300),
)
def test_an_epoch_visits_every_sample_once(
    seed: int, samples: int, streams: int, span: int, mixed: int
) -> None:
    order = StreamOrder(seed, samples, streams, min(span, samples), mixed)
    visited = first_places(order, 3 * samples)
    for epoch in range(3):
        mine = visited[epoch * samples : (epoch + 1) * samples]
        assert sorted(mine) == list(range(samples))


@settings(deadline=None)
@given(st.integers(20, 80), st.integers(1, 10), st.integers(1, 20), st.integers(1, 12))
def test_rows_of_all_streams_are_places_of_the_sequence(
    samples: int, streams: int, rows: int, span: int
) -> None:
    """Whole windows of rows cover the first places of the sequence, each once."""
    order = StreamOrder(5, samples, streams, min(span, samples), span)
    rows = -(-rows // order.span) * order.span
    row, stream = np.divmod(np.arange(rows * streams), streams)
    assert sorted(order.samples_at(stream, row)) == sorted(first_places(order, rows * streams))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(first_places(StreamOrder(seed, 50, 5, 10, 10), 150)[epoch * 50 : epoch * 50 + 50])
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_a_small_corpus_is_read_from_everywhere_in_random_order() -> None:
    order = order_of(corpus(10_000, streams=16))
    assert (order.span, order.mixed) == (625, 625)
    rounds = [order.samples_at(np.arange(16), np.full(16, row)) for row in range(625)]
    # A round has a sample of every sixteenth of the corpus, and a stream's reads jump about in it.
    for samples in rounds:
        assert sorted(sample // 625 for sample in samples) == list(range(16))
    stream = [samples[3] % 625 for samples in rounds]
    assert sorted(stream) == list(range(625))
    # A random order gives 1 and 2 in expectation, with a Poisson spread.
    assert sum(place == index for place, index in enumerate(stream)) < 10
    assert sum(abs(a - b) == 1 for a, b in pairwise(stream)) < 15
    # Each half of the rows draws evenly from each half of the span: 156 ± 6.
    assert abs(sum(place < 312 for place in stream[:312]) - 156) < 40


def test_a_stream_of_a_large_corpus_reads_chunk_by_chunk() -> None:
    """Tens of gigabytes: a stream stays in one chunk and its neighbour for as many rounds as the chunk
    has samples, and in a span for eight times as long."""
    length = 2048
    chunk = CHUNK_BYTES // (length * 2)
    order = order_of(corpus(20_000_000, streams=64, length=length))
    assert (order.span, order.mixed) == (SPAN_CHUNKS * chunk, chunk)
    for stream in (0, 17, 63):
        rows = np.arange(2 * order.span)
        samples = np.array(order.samples_at(np.full(len(rows), stream), rows))
        for part in samples.reshape(-1, chunk):
            assert part.max() - part.min() == chunk - 1
            assert (np.diff(part) != 1).mean() > 0.98
        for part in samples.reshape(-1, order.span):
            assert sorted(part) == list(range(part.min(), part.min() + order.span))
    # All streams have moved, to arbitrary places.
    spans = np.array(order.samples_at(np.arange(64), np.zeros(64, int))) // order.span
    assert len(set(spans)) == 64
    assert 0.3 < spans.mean() / (order.samples / order.span) < 0.7


def test_fewer_samples_than_streams() -> None:
    order = order_of(corpus(5, streams=8))
    assert (order.span, order.mixed) == (1, 1)
    assert sorted(first_places(order, 15)) == sorted(list(range(5)) * 3)


def test_a_large_corpus_costs_nothing() -> None:
    order = StreamOrder(3, 2**56, 1000, 8192, 1024)
    found = order.samples_at(np.arange(1000), np.full(1000, 2**40))
    assert len(set(found)) == 1000
    # About a quarter each: the whole range is used.
    assert 180 < sum(sample < 2**54 for sample in found) < 320


def test_frozen_order() -> None:
    streams, rows = np.arange(8), np.full(8, 3)
    found = StreamOrder(7, 1000, 8, 125, 50).samples_at(streams, rows)
    assert found == [4, 168, 891, 375, 647, 284, 509, 770]
    found = StreamOrder(7, 1003, 8, 40, 16).samples_at(streams, rows * 1000 + streams)
    assert found == [600, 843, 367, 528, 447, 2, 684, 214]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [({"samples": 0}, "samples"), ({"seed": -1}, "seed"), ({"streams": 0}, "at least one"),
     ({"span": 101}, "at most the whole corpus"), ({"mixed": 0}, "at least one")],
)  # fmt: skip
def test_what_is_refused(wrong: dict[str, int], what: str) -> None:
    right = {"seed": 0, "samples": 100, "streams": 4, "span": 25, "mixed": 25}
    StreamOrder(**right)
    with pytest.raises(ValueError, match=what):
        StreamOrder(**(right | wrong))
