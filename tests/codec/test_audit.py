"""The audit: lies are found, silence cannot be imposed, and everybody comes to one verdict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from distro_node.protocol.codec import audit
from distro_node.protocol.codec.audit import audit_seed, contradicted
from distro_node.protocol.codec.update import DecodedUpdate, UpdateLayout, update_layout
from distro_node.protocol.wire.manifest import ParameterSpec

# Whole blocks, blocks that shrink, vectors, a scalar, a prime.
SHAPES = [(256, 192), (100, 30), (96,), (), (43, 67), (2, 3, 40)]
LAYOUT = update_layout(
    [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(SHAPES)], 64, 8
)


def honest_updates(
    count: int, *, seed: int = 0, agreement: float = 0.9, layout: UpdateLayout = LAYOUT
) -> list[DecodedUpdate]:
    """Updates of members that mostly find the same sign where they look at the same coefficient.

    They look at low frequencies more often, so that a few coefficients are sent by several.
    """
    generator = np.random.default_rng(seed)
    updates = [DecodedUpdate([], []) for _ in range(count)]
    for tensor in layout.tensors:
        truth = generator.choice([-1, 1], (tensor.blocks, tensor.elements))
        for update in updates:
            room = tensor.elements - tensor.top_k + 1
            drawn = (room * generator.random((tensor.blocks, tensor.top_k)) ** 3).astype(np.int32)
            positions = np.sort(drawn, axis=1) + np.arange(tensor.top_k, dtype=np.int32)
            right = generator.random(positions.shape) < agreement
            signs = np.take_along_axis(truth, positions, axis=1) * np.where(right, 1, -1)
            update.positions.append(positions)
            update.signs.append(signs.astype(np.int8))
    return updates


def negated(update: DecodedUpdate) -> DecodedUpdate:
    return DecodedUpdate(update.positions, [-signs for signs in update.signs])


def plainly(updates: Sequence[DecodedUpdate]) -> set[int]:
    """The same verdict over all blocks, a coefficient at a time."""
    said: list[dict[tuple[int, int, int], int]] = []
    for update in updates:
        words: dict[tuple[int, int, int], int] = {}
        for index, (positions, signs) in enumerate(
            zip(update.positions, update.signs, strict=True)
        ):
            for (block, k), position in np.ndenumerate(positions):
                words[index, block, int(position)] = int(signs[block, k])
        said.append(words)
    against = [0] * len(updates)
    for i, mine in enumerate(said):
        for theirs in said:
            products = [sign * theirs[place] for place, sign in mine.items() if place in theirs]
            against[i] += sum(products) < 0 and sum(products) ** 2 > len(products)
    others = len(updates) - 1
    return {i for i, voices in enumerate(against) if others >= 2 and 2 * voices > others}


@pytest.mark.parametrize("members", [3, 4, 5, 8, 16, 32])
def test_whoever_sends_the_opposite_is_left_out(members: int) -> None:
    for liars in range((members + 1) // 2):
        updates = honest_updates(members, seed=liars)
        said = [negated(u) if index < liars else u for index, u in enumerate(updates)]
        assert contradicted(LAYOUT, said, 0) == set(range(liars))


def test_nobody_is_left_out_where_nobody_lies() -> None:
    """And seldom where members have nothing to do with each other, and agree by chance alone."""
    for seed in range(50):
        for members in (2, 3, 5, 9):
            assert contradicted(LAYOUT, honest_updates(members, seed=seed), 0) == set()
    left_out = sum(
        len(contradicted(LAYOUT, honest_updates(8, seed=seed, agreement=0.5), 0))
        for seed in range(100)
    )
    assert left_out <= 0.05 * 8 * 100


@pytest.mark.parametrize("members", [3, 4, 7, 8, 15])
def test_fewer_than_half_silence_nobody(members: int) -> None:
    """Though they see all other updates first and send the exact opposite of one of them."""
    updates = honest_updates(members)
    liars = (members - 1) // 2
    said = [negated(updates[-1])] * liars + updates[liars:]
    assert members - 1 not in contradicted(LAYOUT, said, 0)
    # With one more they would be half of all others and more.
    said = [negated(updates[-1])] * (liars + 1) + updates[liars + 1 :]
    assert (members - 1 in contradicted(LAYOUT, said, 0)) == (2 * (liars + 1) > members - 1)


@pytest.mark.parametrize("members", [2, 3, 5, 8])
@pytest.mark.parametrize("agreement", [0.5, 0.8])
def test_the_verdict_is_that_of_a_plain_count(members: int, agreement: float) -> None:
    for seed in range(4):
        updates = honest_updates(members, seed=seed, agreement=agreement)
        said = [negated(u) if index % 3 == 1 else u for index, u in enumerate(updates)]
        assert contradicted(LAYOUT, said, seed) == plainly(said)


def test_the_order_of_the_updates_does_not_matter() -> None:
    updates = honest_updates(9)
    said = [negated(u) if index in (2, 5) else u for index, u in enumerate(updates)]
    order = np.random.default_rng(1).permutation(9)
    found = contradicted(LAYOUT, [said[index] for index in order], 7)
    assert {int(order[index]) for index in found} == {2, 5}


def test_updates_that_share_nothing_contradict_nobody() -> None:
    layout = update_layout([ParameterSpec(name="p", shape=(64, 64))], 64, 8)
    updates = [
        DecodedUpdate([np.arange(8, dtype=np.int32)[None] + 8 * member], [np.ones((1, 8), np.int8)])
        for member in range(6)
    ]
    assert contradicted(layout, updates, 0) == set()


def test_a_large_model_is_judged_by_a_sample_that_nobody_knows_beforehand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every stride-th block from one that the seed picks, across tensors; over the seeds all of them."""
    layout = update_layout(
        [
            ParameterSpec(name=f"p{i}", shape=(64 * rows, 64))
            for i, rows in enumerate([5, 1, 1, 40, 3])
        ],
        64,
        8,
    )
    updates = honest_updates(6, layout=layout)
    monkeypatch.setattr(audit, "_TABLE_ENTRIES", 6 * 6 * 8 * 7 // 2)
    seen = []
    votes = audit._votes
    monkeypatch.setattr(
        audit, "_votes", lambda p, s, elements: seen.append(p.shape[1]) or votes(p, s, elements)
    )
    counts = []
    for seed in range(8):
        seen.clear()
        contradicted(layout, updates, seed)
        counts.append(sum(seen))
    # 50 blocks, at most 7 of them at a time: every eighth, from each of the first eight.
    assert sum(counts) == 50
    assert set(counts) == {6, 7}


def test_the_seed_depends_on_every_body_and_on_no_order() -> None:
    bodies = [b"one", b"two", b"three"]
    seed = audit_seed(bodies)
    assert seed == audit_seed(bodies[::-1])
    assert 0 <= seed < 1 << 64
    assert len({seed, audit_seed(bodies[:2]), audit_seed([*bodies[:2], b"four"])}) == 3
