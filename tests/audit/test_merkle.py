"""The tree over a list: its hash, and its inclusion proofs."""

from __future__ import annotations

import pytest
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.protocol.audit.merkle import (
    MOST_STEPS,
    inclusion_path,
    tree_hash,
    verify_inclusion,
)


def leaves(count: int) -> list[bytes]:
    return [b"leaf %d" % number for number in range(count)]


def written_out(items: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, written out literally, with another hash function."""
    if not items:
        return content_id(b"")
    if len(items) == 1:
        return content_id(b"\0" + items[0])
    half = 1
    while 2 * half < len(items):
        half *= 2
    return content_id(b"\1" + written_out(items[:half]) + written_out(items[half:]))


@pytest.mark.parametrize("count", [*range(18), 31, 32, 33, 100])
def test_it_is_the_tree_of_the_rfc(count: int) -> None:
    top = written_out(leaves(count))
    assert tree_hash(leaves(count)) == content_id(b"\2" + count.to_bytes(8, "big") + top)


@pytest.mark.parametrize("count", [*range(1, 18), 64, 65, 127])
def test_each_item_has_a_proof_and_no_other_place(count: int) -> None:
    items, tree = leaves(count), tree_hash(leaves(count))
    for index, leaf in enumerate(items):
        steps = inclusion_path(items, index)
        assert verify_inclusion(leaf, index, count, steps, tree)
        assert not verify_inclusion(leaf + b"!", index, count, steps, tree)
        for other in range(count):
            assert verify_inclusion(leaf, other, count, steps, tree) == (other == index)
        for other in (count - 1, count + 1, 2 * count, 1 << 62):
            assert not verify_inclusion(leaf, index, other, steps, tree)


def test_a_proof_has_one_length_and_every_step_counts() -> None:
    items = leaves(11)
    tree, steps = tree_hash(items), inclusion_path(items, 4)
    assert len(steps) == 4
    assert not verify_inclusion(items[4], 4, 11, steps[:-1], tree)
    assert not verify_inclusion(items[4], 4, 11, (*steps, steps[0]), tree)
    for number in range(4):
        turned = [*steps]
        turned[number] = content_id(turned[number])
        assert not verify_inclusion(items[4], 4, 11, turned, tree)


@pytest.mark.parametrize(
    ("index", "size"), [(-1, 3), (3, 3), (0, 0), (0, 1 << 63), (1 << 70, 1 << 71)]
)
def test_places_that_cannot_be(index: int, size: int) -> None:
    assert not verify_inclusion(b"", index, size, [], tree_hash([b""]))


def test_a_claim_costs_no_more_than_the_longest_proof() -> None:
    tree = ContentId(bytes(32))
    assert not verify_inclusion(b"", 1, (1 << 63) - 1, [tree] * MOST_STEPS, tree)
    assert not verify_inclusion(b"", 1, 2, [tree] * 100_000, tree)
