"""The numbering of position sets, compared with a reference in Python's own integers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from distro_node.protocol.codec.subsets import Positions, subset_numbers, subsets
from distro_node.protocol.wire.errors import ProtocolError
from hypothesis import given
from hypothesis import strategies as st


def octets_for(elements: int, top_k: int) -> int:
    return -(-(math.comb(elements, top_k)).bit_length() // 8)


def of(sets: list[tuple[int, ...]]) -> Positions:
    return np.array(sets, dtype=np.int32).T


def number(positions: tuple[int, ...]) -> int:
    return sum(math.comb(p, i) for i, p in enumerate(positions, 1))


def numbers_of(sets: list[tuple[int, ...]], elements: int) -> list[int]:
    octets = octets_for(elements, len(sets[0]))
    return [
        int.from_bytes(row.tobytes(), "big") for row in subset_numbers(of(sets), elements, octets)
    ]


def sets_of(numbers: list[int], elements: int, top_k: int) -> list[tuple[int, ...]]:
    octets = octets_for(elements, top_k)
    rows = b"".join(n.to_bytes(octets, "big") for n in numbers)
    read = subsets(np.frombuffer(rows, np.uint8).reshape(-1, octets), elements, top_k)
    return [tuple(column) for column in read.T.tolist()]


def refuses(numbers: list[int], elements: int, top_k: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        sets_of(numbers, elements, top_k)
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize(("elements", "top_k"), [(1, 1), (9, 1), (9, 4), (9, 8), (9, 9), (64, 2)])
def test_the_sets_have_the_numbers_from_zero_on(elements: int, top_k: int) -> None:
    sets = sorted(itertools.combinations(range(elements), top_k), key=lambda s: s[::-1])
    everything = list(range(math.comb(elements, top_k)))
    assert numbers_of(sets, elements) == everything
    assert sets_of(everything, elements, top_k) == sets
    refuses([len(sets)], elements, top_k)


@given(st.integers(1, 4096), st.integers(1, 96), st.data())
def test_any_number_gives_its_set_and_back(elements: int, top_k: int, data: st.DataObject) -> None:
    top_k = min(top_k, elements)
    last = math.comb(elements, top_k) - 1
    near = st.integers(0, elements - 1).flatmap(
        lambda p: st.integers(-2, 2).map(lambda d: math.comb(p, top_k) + d)
    )
    chosen = data.draw(st.lists(st.one_of(st.integers(0, last), near), min_size=1, max_size=20))
    numbers = [min(max(n, 0), last) for n in chosen] + [0, last]
    sets = sets_of(numbers, elements, top_k)
    assert [number(positions) for positions in sets] == numbers
    assert numbers_of(sets, elements) == numbers
    assert all(list(s) == sorted(set(s)) and s[0] >= 0 and s[-1] < elements for s in sets)


@pytest.mark.parametrize("top_k", [2, 7, 8, 33, 200])
def test_numbers_that_float64_cannot_distinguish(top_k: int) -> None:
    """Around every C(p, k), where decoding changes from one largest position to the next; with k = 200
    the smallest of them are below the precision of a float64 beside the largest."""
    edges = [math.comb(p, top_k) for p in range(top_k, 4096, 13)]
    numbers = [n + d for n in edges for d in (-1, 0, 1)]
    sets = sets_of(numbers, 4096, top_k)
    assert [number(positions) for positions in sets] == numbers


def test_numbers_above_the_last_are_refused() -> None:
    last = math.comb(4096, 7) - 1
    assert sets_of([last], 4096, 7) == [tuple(range(4089, 4096))]
    for wrong in (last + 1, last + 2**40, 256 ** octets_for(4096, 7) - 1):
        refuses([0, wrong], 4096, 7)
