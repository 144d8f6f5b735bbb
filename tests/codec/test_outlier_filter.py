"""The outlier filter: false updates are found, honest ones cannot be excluded, and all get one
result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from distro_node.protocol.codec import outlier_filter
from distro_node.protocol.codec.outlier_filter import audit_seed, contradicted, outvoted
from distro_node.protocol.codec.update import (
    DecodedUpdate,
    UpdateLayout,
    encode_update,
    update_layout,
)
from distro_node.protocol.wire.manifest import ParameterSpec
from hypothesis import given
from hypothesis import strategies as st

# Whole blocks, blocks that shrink, vectors, a scalar, a prime.
SHAPES = [(256, 192), (100, 30), (96,), (), (43, 67), (2, 3, 40)]
LAYOUT = update_layout(
    [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(SHAPES)], 64, 8
)


def honest_updates(
    count: int, *, seed: int = 0, agreement: float = 0.9, layout: UpdateLayout = LAYOUT
) -> list[DecodedUpdate]:
    """Return updates of members that mostly agree on the sign where they send the same coefficient.

    They choose low frequencies more often, so that several send some coefficients.
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
    """Return the same result over all blocks, computed one coefficient at a time."""
    said: list[dict[tuple[int, int, int], int]] = []
    for update in updates:
        words: dict[tuple[int, int, int], int] = {}
        for index, (positions, signs) in enumerate(
            zip(update.positions, update.signs, strict=True)
        ):
            for (block, k), position in np.ndenumerate(positions):
                words[index, block, int(position)] = int(signs[block, k])
        said.append(words)
    against: set[tuple[int, int]] = set()
    for i, mine in enumerate(said):
        for j, theirs in enumerate(said):
            products = [sign * theirs[place] for place, sign in mine.items() if place in theirs]
            net, shared = sum(products), len(products)
            if net < 0 and net**2 > shared and -16 * net > shared:
                against.add((i, j))
    left_out: set[int] = set()
    while len(updates) > 2:
        rest = set(range(len(updates))) - left_out
        opposed = {i: sum((i, j) in against for j in rest) for i in rest}
        most = max(opposed.values())
        if 2 * most <= len(updates) - 1:
            break
        left_out |= {i for i in rest if opposed[i] == most}
    return left_out


@pytest.mark.parametrize("members", [3, 4, 5, 8, 16, 32])
def test_who_sends_the_opposite_is_left_out(members: int) -> None:
    for liars in range((members + 1) // 2):
        updates = honest_updates(members, seed=liars)
        said = [negated(u) if index < liars else u for index, u in enumerate(updates)]
        assert contradicted(LAYOUT, said, 0) == set(range(liars))


def test_nobody_is_left_out_where_nobody_lies() -> None:
    """It seldom happens even where members are unrelated and agree by chance alone."""
    for seed in range(50):
        for members in (2, 3, 5, 9):
            assert contradicted(LAYOUT, honest_updates(members, seed=seed), 0) == set()
    left_out = sum(
        len(contradicted(LAYOUT, honest_updates(8, seed=seed, agreement=0.5), 0))
        for seed in range(100)
    )
    assert left_out <= 0.05 * 8 * 100


@pytest.mark.parametrize("members", [3, 4, 7, 8, 15])
def test_fewer_than_half_have_nobody_left_out(members: int) -> None:
    """They see all other updates first and send the exact opposite of one of them."""
    updates = honest_updates(members)
    liars = (members - 1) // 2
    said = [negated(updates[-1])] * liars + updates[liars:]
    assert members - 1 not in contradicted(LAYOUT, said, 0)
    # With one more they would be more than half of all others.
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


LARGE = update_layout(
    [ParameterSpec(name=f"p{i}", shape=(64 * rows, 64)) for i, rows in enumerate([5, 1, 1, 40, 3])],
    64,
    8,
)


def sampled(layout: UpdateLayout, members: int, seed: int) -> list[int]:
    """Return the sample's blocks, counted through all tensors."""
    first, blocks = 0, []
    for index, drawn in outlier_filter.sample(layout, members, seed):
        assert all(0 <= block < layout.tensors[index].blocks for block in drawn)
        blocks += (drawn + first).tolist()
        first += layout.tensors[index].blocks
    return blocks


def test_a_large_model_is_judged_by_blocks_that_are_drawn_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One block of each stretch, across tensors; any two may occur together or not."""
    monkeypatch.setattr(outlier_filter, "_POSITIONS", 6 * 8 * 7)
    assert sampled(LARGE, 6, 1) != sampled(LARGE, 6, 2)
    seen = set()
    for seed in range(200):
        blocks = sampled(LARGE, 6, seed)
        # 50 blocks, at most 7 of them at a time: seven stretches of eight, the last one cut short.
        assert [block // 8 for block in blocks] in ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5])
        seen |= {(blocks[0], blocks[1] - 8), (blocks[3] - 24, blocks[4] - 32)}
    assert len(seen) == 64
    # And exactly these are compared.
    updates = honest_updates(6, layout=LARGE)
    lie = negated(updates[0])
    for tensor, (index, drawn) in zip(
        LARGE.tensors, outlier_filter.sample(LARGE, 6, 3), strict=True
    ):
        others = np.setdiff1d(np.arange(tensor.blocks), drawn)
        lie.signs[index][others] *= -1
    assert contradicted(LARGE, [lie, *updates[1:]], 3) == {0}


@pytest.mark.parametrize("members", [3, 16, 40, 128, 1024])
def test_what_an_audit_costs_is_bounded(members: int) -> None:
    layout = update_layout([ParameterSpec(name="p", shape=(1 << 15, 36_864))], 64, 8)
    blocks = len(sampled(layout, members, 5))
    assert blocks * members * 8 <= 1 << 18
    assert blocks * members**2 * min(members * 8 // 2, 4096) <= 1 << 33
    assert blocks >= (1024 if members <= 32 else 256 if members <= 128 else 1)


def test_slabs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = honest_updates(9)
    said = [negated(u) if index in (2, 5) else u for index, u in enumerate(updates)]
    whole = outlier_filter.contradictions(LAYOUT, said, 0)
    monkeypatch.setattr(outlier_filter, "_TABLE_ENTRIES", 9 * 9 * 8)
    assert (outlier_filter.contradictions(LAYOUT, said, 0) == whole).all()


def test_who_announces_last_gains_nothing_by_trying_seeds() -> None:
    """Regression: 14 tries until the sample held only the truthful blocks of a false update."""
    layout = update_layout([ParameterSpec(name="w", shape=(1024, 1024))], 8, 8)
    updates = honest_updates(16, layout=layout)
    bodies = [encode_update(layout, update.positions, update.signs) for update in updates[1:]]
    lie = negated(updates[0])
    # One block in eight is truthful, and the last byte varies with each try.
    lie.signs[0][::8] *= -1
    seed = 0
    for _ in range(64):
        lie.signs[0][-1] = np.roll(lie.signs[0][-1], 1)
        lie.signs[0][-2] *= -1 if lie.signs[0][-1][0] > 0 else 1
        seed = audit_seed([encode_update(layout, lie.positions, lie.signs), *bodies])
        lies = np.array(sampled(layout, 16, seed)) % 8 != 0
        assert lies.mean() > 0.8
    assert contradicted(layout, [lie, *updates[1:]], seed) == {0}


def crowd_of_liars(updates: Sequence[DecodedUpdate], liars: int) -> list[DecodedUpdate]:
    """Return false updates that share the most used coefficients of each block and oppose the sum of
    signs there."""
    (first,) = LARGE_BLOCKS.tensors
    sums = np.zeros((first.blocks, first.elements), int)
    uses = np.zeros_like(sums)
    rows = np.arange(first.blocks)[:, None]
    for update in updates:
        sums[rows, update.positions[0]] += update.signs[0]
        uses[rows, update.positions[0]] += 1
    best = np.argsort(-(10 * np.abs(sums) + uses), axis=1)
    made = []
    for liar in range(liars):
        positions = np.sort(best[:, 8 * liar : 8 * liar + 8], axis=1)
        signs = np.where(np.take_along_axis(sums, positions, axis=1) > 0, -1, 1)
        made.append(DecodedUpdate([positions.astype(np.int32)], [signs.astype(np.int8)]))
    return made


LARGE_BLOCKS = update_layout([ParameterSpec(name="w", shape=(512, 512))], 64, 8)


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_liars_are_left_out_before_they_have_anybody_left_out(liars: int) -> None:
    """Regression: together with the few that oppose each other by chance, they had honest members left
    out."""
    at_once = 0
    for seed in range(6):
        updates = honest_updates(10 - liars, seed=seed, agreement=0.6, layout=LARGE_BLOCKS)
        said = [*updates, *crowd_of_liars(updates, liars)]
        against = outlier_filter.contradictions(LARGE_BLOCKS, said, 0)
        at_once += int((2 * against.sum(axis=1)[: 10 - liars] > 9).sum())
        assert contradicted(LARGE_BLOCKS, said, 0) == set(range(10 - liars, 10))
    assert at_once > 0 or liars < 3


@given(st.integers(3, 16), st.integers(0, 2**63))
def test_fewer_than_half_have_nobody_left_out_whom_no_other_contradicts(
    members: int, seed: int
) -> None:
    """This holds whatever they send, and whatever other members are contradicted as well."""
    generator = np.random.default_rng(seed)
    against = np.triu(generator.random((members, members)) < generator.random(), 1)
    against |= against.T
    liars = int(generator.integers(0, (members - 1) // 2 + 1))
    spared = int(generator.integers(liars, members))
    against[spared, liars:] = against[liars:, spared] = False
    found = outvoted(against)
    assert spared not in found
    # Only members outvoted by all at once are left out, in every order the same.
    assert found <= set(np.flatnonzero(2 * against.sum(axis=1) > members - 1).tolist())
    order = generator.permutation(members)
    shuffled = outvoted(against[np.ix_(order, order)])
    assert {int(order[index]) for index in shuffled} == found


def test_who_is_left_out_has_no_voice() -> None:
    """Three byzantine members contradict all seven others; two of these are opposed by four of the rest
    by chance."""
    against = np.zeros((10, 10), bool)
    against[:3, 3:] = True
    against[3, 5:7] = against[4, 7:9] = True
    against |= against.T
    assert (2 * against.sum(axis=1) > 9).sum() == 5
    assert outvoted(against) == {0, 1, 2}


def test_many_coefficients_make_no_contradiction_of_chance() -> None:
    """With thousands of shared coefficients chance is near one half, and a false update is far
    from it."""
    layout = update_layout([ParameterSpec(name="w", shape=(1024, 1024))], 8, 8)
    nothing_in_common = honest_updates(8, agreement=0.5, layout=layout)
    assert not outlier_filter.contradictions(layout, nothing_in_common, 0).any()


def test_the_seed_depends_on_every_body_and_on_no_order() -> None:
    bodies = [b"one", b"two", b"three"]
    seed = audit_seed(bodies)
    assert seed == audit_seed(bodies[::-1])
    assert 0 <= seed < 1 << 64
    assert len({seed, audit_seed(bodies[:2]), audit_seed([*bodies[:2], b"four"])}) == 3
