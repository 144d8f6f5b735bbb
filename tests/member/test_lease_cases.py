"""Rules of the finality lease: whose time counts, and which members are awaited."""

from __future__ import annotations

from distro_node.protocol.member.effects import Note
from distro_node.protocol.member.inputs import EntryReceived, Rebased, Tick
from distro_node.protocol.member.lease import FinalityLease
from distro_node.protocol.wire.checkpoint import Checkpoint
from simulation.chain import Chain, identity
from simulation.known_chains import sides, split, true_chain

# Private here: `_marks`: how much is remembered shows nowhere else.


def _look(chain: Chain, seconds: float, alive: bool = True) -> int:
    seen, moved = FinalityLease(100.0, 0.0), -1
    for now in range(1, int(seconds)):
        if now % 5 == 0:
            chain.grow()
        result = seen.look(chain.ledger, is_member=alive, silence=6.0, now=float(now))
        moved = moved if result is None else result
    return moved


def test_the_lease_is_waited_for() -> None:
    assert _look(sides(0, 1), 95) == -1
    assert _look(sides(0, 1), 115) >= 0


def test_who_is_alone_does_not_move_on() -> None:
    assert _look(sides(0), 300) == -1


def test_who_is_there_is_asked() -> None:
    chain = true_chain().fork()
    busy = [identity(0).peer, identity(1).peer]
    seen, moved = FinalityLease(100.0, 0.0), []
    for now in range(1, 300):
        if now % 5 == 0:
            chain.grow(updates=[chain.update(peer) for peer in busy])
        moved.append(seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)))
    # Only what all four had vouched for before, and nothing that two of them decided.
    assert max(filter(None, moved), default=0) < len(true_chain().ledger)


def test_time_asleep_does_not_count() -> None:
    chain, seen = sides(0, 1), FinalityLease(100.0, 0.0)
    for now in (*range(1, 10), *range(10_000, 10_010)):
        chain.grow()
        assert seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)) is None


def test_only_a_members_time_counts() -> None:
    assert _look(sides(0, 1), 200, alive=False) == -1


def test_before_the_checkpoint_nothing_is_moved() -> None:
    """The chain may be anyone's."""
    chain = sides(0, 1)
    chain.ledger.checkpoint = Checkpoint(10_000, chain.ledger.head)
    assert _look(chain, 200) == -1


def test_who_was_there_for_a_while_counts() -> None:
    """Two came back for some seconds in the middle of the lease, and signed nothing."""
    chain, seen, moved = sides(0, 1), FinalityLease(100.0, 0.0), []
    back = {identity(who).peer for who in (2, 3)}
    for now in range(1, 130):
        if now == 60:
            chain.grow(admitted=[chain.admission(who) for who in (2, 3)])
        elif now == 70:
            split(chain, 0, 1)
        elif now % 5 == 0:
            chain.grow(updates=[chain.update(p) for p in chain.membership.peers if p not in back])
        moved.append(seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)))
    # As above: only what all four had vouched for before.
    assert max(filter(None, moved), default=0) < len(true_chain().ledger)


def test_the_next_lease_begins_anew() -> None:
    """Four of seven are left at first, and two from second 60 on: these get a whole lease as well."""
    chain, seen, when = Chain(7).grow_until(7), FinalityLease(100.0, 0.0), []
    split(chain, 0, 1, 2, 3)
    for now in range(1, 220):
        if now == 60:
            split(chain, 0, 1)
        elif now % 10 == 0:
            chain.grow()
        if seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)) is not None:
            when.append(now)
    first, second, *_ = when
    assert 100 <= first < 115
    assert second >= first + 100


def test_on_another_chain_the_lease_begins_anew() -> None:
    """Three quarters of it have passed by then."""
    chain = Chain(4, finality_lease_seconds=40.0, lease_min_seconds=1.0).grow_until(7)
    split(chain, 0, 1)
    member, now, notes = chain.member(0), 0.0, []
    for step in range(26):
        now += 2.0
        if step == 15:
            other = chain.fork()
            other.ledger = member.ledger.truncated(member.round - 1)
            other.grow(updates=[])
            notes += member.handle(Rebased(other.ledger), now)
            chain = other
        notes += member.handle(Tick(), now)
        notes += member.handle(EntryReceived(chain.grow()), now)
    assert not any(isinstance(note, Note) and note.kind == "finalized" for note in notes)


def test_a_checkpoint_is_believed() -> None:
    """After an ordinary lease, where the records that follow it do not show it to be final."""
    chain, seen = sides(0, 1, rounds=8), FinalityLease(100.0, 0.0)
    chain.ledger.checkpoint = Checkpoint(14, chain.ledger.parent(15))
    moved = [
        seen.look(chain.ledger, is_member=True, silence=6.0, now=float(now)) for now in range(1, 9)
    ]
    assert moved == [None] * 5 + [14, None, None]


def test_few_looks_are_remembered() -> None:
    chain, seen = true_chain(), FinalityLease(100.0, 0.0)
    for number in range(2000):
        seen.look(chain.ledger, is_member=True, silence=6.0, now=number / 10)
    assert len(seen._marks) <= 18


def test_a_finality_lease_is_some_ordinary_ones() -> None:
    """Where rounds are slow, the manifest's could end before any member is declared silent."""
    chain, seen, moved = sides(0, 1), FinalityLease(10.0, 0.0), []
    for now in range(1, 100):
        if now % 5 == 0:
            chain.grow()
        moved.append(seen.look(chain.ledger, is_member=True, silence=30.0, now=float(now)))
    assert not any(moved)
