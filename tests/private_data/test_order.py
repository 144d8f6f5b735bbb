"""The order in which a member trains on its own sequences, and the random draws."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from distro_node.crypto.hashing import ContentId
from distro_node.node.private_data.order import SampleOrder, draw_samples
from distro_node.node.private_data.store import PrivateIndex
from distro_node.protocol.wire.manifest import ShardSpec


def own(name: str = "a" * 32) -> PrivateIndex:
    shard = ShardSpec(blob=ContentId(bytes(32)), tokens=1000)
    return PrivateIndex(name=name, shards=(shard,), documents=1, bad=0)


def test_each_sequence_comes_once_an_epoch(tmp_path: Path) -> None:
    walk = SampleOrder(tmp_path / "walk", own(), 50)
    first = [sample for _ in range(10) for sample in walk.next(5)]
    assert sorted(first) == list(range(50))
    second = [sample for _ in range(10) for sample in walk.next(5)]
    assert sorted(second) == list(range(50))
    assert second != first


def test_a_node_that_comes_back_continues_after(tmp_path: Path) -> None:
    first = SampleOrder(tmp_path / "walk", own(), 50).next(20)
    second = SampleOrder(tmp_path / "walk", own(), 50).next(30)
    assert sorted((*first, *second)) == list(range(50))


def test_nobody_else_walks_the_same_way(tmp_path: Path) -> None:
    assert SampleOrder(tmp_path / "a", own(), 1000).next(50) != SampleOrder(
        tmp_path / "b", own(), 1000
    ).next(50)


def test_other_data_begins_another_walk(tmp_path: Path) -> None:
    SampleOrder(tmp_path / "walk", own(), 50).next(20)
    again = SampleOrder(tmp_path / "walk", own("b" * 32), 30)
    assert sorted(again.next(30)) == list(range(30))


def test_a_place_that_is_damaged_begins_another_walk(tmp_path: Path) -> None:
    (tmp_path / "walk").write_bytes(b"\xff" * 40)
    assert len(SampleOrder(tmp_path / "walk", own(), 50).next(20)) == 20


def test_no_sequence_comes_twice_in_a_round_of_a_small_corpus(tmp_path: Path) -> None:
    assert sorted(SampleOrder(tmp_path / "walk", own(), 3).next(100)) == [0, 1, 2]


def test_each_is_drawn_with_the_rate_and_apart_from_the_others() -> None:
    counts, sizes = Counter[int](), []
    for _ in range(2000):
        found = draw_samples(20, 0.1)
        assert list(found) == sorted(set(found))
        counts.update(found)
        sizes.append(len(found))
    # 2,000 draws at 0.1: 200 with a deviation of 13.4, for twenty numbers; six deviations.
    assert all(120 < counts[number] < 280 for number in range(20))
    mean = sum(sizes) / len(sizes)
    variance = sum((size - mean) ** 2 for size in sizes) / len(sizes)
    # Binomial: 20 · 0.1 · 0.9; a fixed sample size would have none.
    assert 1.3 < variance < 2.3
    assert draw_samples(20, 0.0) == ()
    assert draw_samples(20, 1.0) == tuple(range(20))
