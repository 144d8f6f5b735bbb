"""Rules of fork choice: which of two chains is followed, and what binds a node to its own."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest.mock import patch

from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import fork_choice
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.member.inputs import Rebased
from simulation.chain import Chain, identity
from simulation.known_chains import (
    carried_on,
    checkpoint,
    forged_chain,
    lower,
    true_chain,
)


@cache
def _five() -> Chain:
    return Chain(5).grow_until(3)


FORK = 3
"""The round in which chains derived from `_five` diverge."""


def _changes(
    ours: Chain, theirs: Chain, *, me: PeerId | None = None, at: int = FORK, **options: Any
) -> bool:
    """Whether a node on `ours`, which has worked on it unless `binding` is false, changes."""
    ours.ledger.binding = options.pop("binding", True)
    options.setdefault("abandoned", False)
    return fork_choice.prefers(
        ours.ledger, theirs.ledger, at, me=me or ours.manifest.founder, **options
    )


def _known(chain: Chain, rounds: int) -> Chain:
    """Return a part of a chain, as a node with a checkpoint of the true chain accepts it."""
    part = chain.fork()
    part.ledger = Ledger(chain.manifest, checkpoint=checkpoint())
    for round_ in range(rounds):
        part.ledger.append(chain.ledger[round_])
    return part


def test_a_checkpoint_decides() -> None:
    """Before the checkpoint, the greater number of contributors would decide wrongly."""
    forged, true = _known(forged_chain(), 6), _known(true_chain(), 12)
    early = _known(true_chain(), 6)
    assert _changes(forged, true, at=0, binding=False)
    assert not _changes(forged, early, at=0, binding=False)


def test_a_newcomer_counts_who_went_on() -> None:
    """A member that continues alone has all earlier contributors as well, so the hash would decide."""
    right: list[bool] = []
    # Several swarms, because the hashes of one might happen to decide rightly.
    for seed in range(3):
        shared = Chain(5, seed=seed).grow_until(8)
        true = shared.fork().grow_until(12)
        assert true.ledger.final_round >= 8
        for lone in shared.membership.peers:
            solo = carried_on(shared, [lone], 5)
            here, there = (
                chain.ledger.contributors(chain.ledger.final_round + 1) for chain in (true, solo)
            )
            if here == there:
                right += [
                    _changes(solo, true, at=8, binding=False),
                    not _changes(true, solo, at=8, binding=False),
                ]
    assert len(right) > 4
    assert all(right)


@cache
def _large_and_small() -> tuple[Chain, Chain]:
    """Return chains of three and two of five members; that of the two has the lower hash."""
    peers = _five().membership.peers
    large = carried_on(_five(), peers[:3])
    small = lower(large, FORK, lambda n: carried_on(_five(), peers[3:], variant=n))
    return large, small


def test_then_all_members_count() -> None:
    """Equal numbers of the finality set follow each; the hash prefers the chain of the fewer members."""
    chain = true_chain().fork()
    chain.grow(admitted=[chain.admission(who) for who in range(20, 23)])
    peers, fork_ = true_chain().membership.peers, chain.round
    many = carried_on(chain, [*peers[2:], *(identity(who).peer for who in range(20, 23))])
    few = lower(many, fork_, lambda n: carried_on(chain, peers[:2], variant=n))
    assert _changes(few, many, at=fork_)
    assert not _changes(many, few, at=fork_)


def test_so_many_rounds_are_compared() -> None:
    """Members that come over after the compared rounds are not seen."""
    peers = _five().membership.peers
    late = [who for who in range(5) if identity(who).peer in peers[2:]]
    ours, other = carried_on(_five(), peers[2:]), carried_on(_five(), peers[:2], 3)
    other.grow(admitted=[other.admission(who) for who in late])
    other.grow()
    assert other.ledger.final_round < FORK
    with patch.object(fork_choice, "COMPARED_ROUNDS", 4):
        assert not _changes(ours, other)


def _early(ours: Chain, theirs: Chain, at: int, **options: Any) -> bool:
    binding, abandoned = options.get("binding", True), options.get("abandoned", False)
    ours.ledger.binding = binding
    me = theirs.membership.peers[0]
    return fork_choice.decided_early(ours.ledger, theirs.ledger, at, me=me, abandoned=abandoned)


def test_a_newcomer_receives_all_of_it() -> None:
    large, small = _large_and_small()
    early = _early(forged_chain(), true_chain(), 0, binding=False)
    assert not early
    assert _early(small, large, FORK)


def test_the_stranded_receive_all_of_it() -> None:
    """The other chain has more followers; the hash, which decides for the stranded, prefers ours."""
    large, small = _large_and_small()
    assert not _early(small, large, FORK, abandoned=True)


# Binding


def test_what_was_final_on_a_left_chain_binds() -> None:
    """A lease, for example, made it final: the records of the followed chain do not show it."""
    ours = true_chain().fork()
    ours.ledger.held = checkpoint()
    assert not _changes(ours, forged_chain(), at=0, binding=False)
    assert ours.ledger.floor == 9


def test_a_change_of_chain_keeps_what_is_final() -> None:
    """The other chain has the final record, but does not show it to be final."""
    member = true_chain().member(0)
    before = member.view.ledger.bound
    assert before is not None
    other = true_chain().fork()
    other.ledger = true_chain().ledger.truncated(before.round + 1)
    other.grow(updates=[])
    assert other.ledger.final_round < before.round
    member.handle(Rebased(other.ledger), 1.0)
    assert member.view.ledger.bound == before


def test_a_part_keeps_what_binds() -> None:
    ours = true_chain().fork().ledger
    ours.held = checkpoint()
    assert ours.truncated(10).floor == 9


def test_a_part_without_the_record_is_not_bound_by_it() -> None:
    """Its floor would be beyond its end."""
    ours = true_chain().fork().ledger
    ours.held = checkpoint()
    assert ours.truncated(5).floor == 0


def test_a_newcomer_is_not_bound() -> None:
    """It may learn that it has followed the wrong chain."""
    ours = true_chain().fork().ledger
    ours.binding = False
    free = ours.floor
    ours.binding = True
    assert free == 0 < ours.floor


def test_a_checkpoint_binds_once_it_is_there() -> None:
    floors = [_known(true_chain(), rounds).ledger.floor for rounds in (6, 9)]
    assert floors == [0, 9]
