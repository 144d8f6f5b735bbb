"""The finality lease: only members that are away for a whole lease are passed over."""

from __future__ import annotations

from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.member.effects import Note, StoreFinality
from distro_node.protocol.member.inputs import EntryReceived, Rebased, Tick
from distro_node.protocol.member.lease import FinalityLease
from distro_node.protocol.wire.checkpoint import Checkpoint
from simulation.chain import Chain, answers, compared, identity
from simulation.known_chains import sides, split, true_chain

# Private here: `_marks`: how much is remembered shows nowhere else.

LEASE = 100.0
ABSTAIN = 6.0


class Seen:
    """A chain as observed by a member every second, with a round decided every five."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.now = 0.0
        self.lease = FinalityLease(LEASE, 0.0)
        self.moved: list[tuple[float, int]] = []

    def go_on(self, seconds: float, *, is_member: bool = True, grows: bool = True) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            if grows and self.now % 5 == 0:
                self.chain.grow()
            moved = self.lease.observe(
                self.chain.ledger, is_member=is_member, silence=ABSTAIN, now=self.now
            )
            if moved is not None:
                self.moved.append((self.now, moved))


def without(chain: Chain, *gone: int) -> None:
    """Have the others declare these members silent."""
    lost = [identity(who).peer for who in gone]
    rest = [peer for peer in chain.membership.peers if peer not in lost]
    chain.grow(signers=rest, silent=lost, departed=[chain.silence(peer) for peer in lost])


def settled(count: int) -> Chain:
    chain = Chain(count)
    for _ in range(6):
        chain.grow()
    return chain


def test_a_set_that_vanished_is_waited_for_a_lease_and_no_longer() -> None:
    chain = settled(4)
    without(chain, 2, 3)
    seen = Seen(chain)
    seen.go_on(LEASE)
    still = chain.ledger.final_round
    assert not seen.moved
    assert still < 8
    seen.go_on(LEASE / 8)
    (when, moved), *_ = seen.moved
    assert when > LEASE
    # What was on its chain when the lease began, and no more.
    assert still < moved <= 9
    assert chain.ledger.finality_set == {identity(0).peer, identity(1).peer}
    # From there on the remaining members finalize records as usual.
    seen.go_on(30)
    assert chain.ledger.final_round >= chain.round - 4
    assert len(seen.moved) == 1


def test_where_all_is_well_nothing_is_moved() -> None:
    seen = Seen(settled(4))
    seen.go_on(3 * LEASE)
    assert not seen.moved


def test_who_is_a_member_and_disagrees_is_not_passed_over() -> None:
    """Two of four do not sign what the others decide: they are present, so they count."""
    chain = settled(4)
    seen = Seen(chain)
    busy = [identity(0).peer, identity(1).peer]
    for _ in range(60):
        chain.grow(updates=[chain.update(peer) for peer in busy])
        seen.go_on(5, grows=False)
    assert not seen.moved


def test_who_was_a_member_for_a_while_counts() -> None:
    chain = settled(4)
    without(chain, 2, 3)
    seen = Seen(chain)
    seen.go_on(60)
    # They sign nothing, and leave again.
    chain.grow(admitted=[chain.admission(2), chain.admission(3)])
    seen.go_on(10, grows=False)
    without(chain, 2, 3)
    seen.go_on(90)
    assert not seen.moved
    seen.go_on(20)
    assert len(seen.moved) == 1


def test_the_time_of_who_is_alone_asleep_or_no_member_does_not_count() -> None:
    alone = settled(2)
    without(alone, 1)
    seen = Seen(alone)
    seen.go_on(5 * LEASE)
    assert not seen.moved

    outside = settled(4)
    without(outside, 2, 3)
    seen = Seen(outside)
    seen.go_on(5 * LEASE, is_member=False)
    assert not seen.moved

    asleep = settled(4)
    without(asleep, 2, 3)
    seen = Seen(asleep)
    seen.go_on(10)
    seen.now += 100 * LEASE
    seen.go_on(10)
    assert not seen.moved


def test_on_another_chain_the_time_restarts() -> None:
    chain = settled(4)
    without(chain, 2, 3)
    seen = Seen(chain)
    seen.go_on(LEASE)
    seen.lease.start_over()
    seen.go_on(LEASE / 2)
    assert not seen.moved


def test_what_others_moved_on_to_wins_no_comparison() -> None:
    """Two sides of a partition that lasted longer than the lease: neither convinces the other, and a
    node that did not live through a lease still judges by the records."""
    chain = settled(4)
    ours, theirs = chain.fork(), chain.fork()
    without(ours, 2, 3)
    without(theirs, 0, 1)
    for side in (ours, theirs):
        Seen(side).go_on(LEASE + 50)
    fork = 7
    assert min(ours.ledger.final_round, theirs.ledger.final_round) >= fork
    assert compared(ours.ledger, theirs.ledger) is None
    assert compared(theirs.ledger, ours.ledger, who=2) is None
    fresh = Ledger(chain.manifest)
    for round_ in range(ours.round):
        fresh.append(ours.ledger[round_])
    assert fresh.final_round < fork
    # For a prefix of it, too: a copy starts from what was finalized before it.
    assert ours.ledger.truncated(ours.round).final_round == ours.ledger.final_round
    assert answers(fresh) is not None


def test_a_checkpoint_is_believed_where_records_do_not_show_it() -> None:
    chain = settled(4)
    without(chain, 2, 3)
    for _ in range(10):
        chain.grow()
    seen = Seen(chain)
    seen.go_on(ABSTAIN)
    assert chain.ledger.final_round < 8
    chain.ledger.checkpoint = Checkpoint(12, chain.ledger.parent(13))
    seen.go_on(2)
    assert [moved for _, moved in seen.moved] == [12]
    assert chain.ledger.finality_set == {identity(0).peer, identity(1).peer}
    seen.go_on(30)
    assert chain.ledger.final_round >= chain.round - 4


def test_the_member_reports_it_and_keeps_it() -> None:
    chain = Chain(4, finality_lease_seconds=60.0, lease_min_seconds=1.0)
    for _ in range(6):
        chain.grow()
    without(chain, 2, 3)
    member = chain.member(0)
    said: list[Note] = []
    kept: list[int] = []
    for tick in range(1, 600):
        now = tick / 4
        effects = member.handle(Tick(), now)
        if tick % 8 == 0:
            effects += member.handle(EntryReceived(chain.grow()), now)
        said += [e for e in effects if isinstance(e, Note) and e.kind == "finalized"]
        kept += [e.checkpoint.round for e in effects if isinstance(e, StoreFinality)]
    assert len(said) == 1
    assert said[0].round in kept
    assert kept == sorted(set(kept))
    assert kept[-1] == member.view.ledger.final_round


def test_on_another_chain_it_still_goes_back_before_nothing() -> None:
    """The other chain branches off after what the lease made final, but before that was observed."""
    chain = Chain(4, finality_lease_seconds=60.0, lease_min_seconds=1.0)
    for _ in range(6):
        chain.grow()
    without(chain, 2, 3)
    member = chain.member(0)
    kept: list[Checkpoint] = []
    now = 0.0
    while not any(checkpoint.round >= 7 for checkpoint in kept):
        now += 2.0
        effects = [effect for tick in range(8) for effect in member.handle(Tick(), now + tick / 4)]
        effects += member.handle(EntryReceived(chain.grow()), now + 2.0)
        kept += [e.checkpoint for e in effects if isinstance(e, StoreFinality)]
    assert kept[-1].round + 2 < member.view.round
    other = chain.fork()
    other.ledger = member.view.ledger.truncated(kept[-1].round + 1)
    other.grow(updates=[])
    effects = member.handle(Rebased(other.ledger), now + 3)
    effects += member.handle(Tick(), now + 4)
    assert member.view.ledger.bound == kept[-1]
    assert member.view.ledger.floor == kept[-1].round + 1
    assert not [e for e in effects if isinstance(e, StoreFinality)]
    # The same holds when it compares chains.
    assert member.view.ledger.truncated(member.view.round).floor == member.view.ledger.floor


def test_before_the_checkpoint_nothing_is_moved() -> None:
    """The chain may be anyone's."""
    chain = sides(0, 1)
    chain.ledger.checkpoint = Checkpoint(10_000, chain.ledger.head)
    seen = Seen(chain)
    seen.go_on(200)
    assert not seen.moved


def test_the_next_lease_restarts() -> None:
    """Four of seven are left at first, and two from second 60 on: these get a whole lease as well."""
    chain, seen, when = Chain(7).grow_until(7), FinalityLease(100.0, 0.0), []
    split(chain, 0, 1, 2, 3)
    for now in range(1, 220):
        if now == 60:
            split(chain, 0, 1)
        elif now % 10 == 0:
            chain.grow()
        if seen.observe(chain.ledger, is_member=True, silence=6.0, now=float(now)) is not None:
            when.append(now)
    first, second, *_ = when
    assert 100 <= first < 115
    assert second >= first + 100


def test_on_another_chain_the_lease_restarts() -> None:
    """Three quarters of it have passed by then."""
    chain = Chain(4, finality_lease_seconds=40.0, lease_min_seconds=1.0).grow_until(7)
    split(chain, 0, 1)
    member, now, notes = chain.member(0), 0.0, []
    for step in range(26):
        now += 2.0
        if step == 15:
            other = chain.fork()
            other.ledger = member.view.ledger.truncated(member.view.round - 1)
            other.grow(updates=[])
            notes += member.handle(Rebased(other.ledger), now)
            chain = other
        notes += member.handle(Tick(), now)
        notes += member.handle(EntryReceived(chain.grow()), now)
    assert not any(isinstance(note, Note) and note.kind == "finalized" for note in notes)


def test_a_bounded_number_of_observations_is_kept() -> None:
    chain, seen = true_chain(), FinalityLease(100.0, 0.0)
    for number in range(2000):
        seen.observe(chain.ledger, is_member=True, silence=6.0, now=number / 10)
    assert len(seen._marks) <= 18


def test_a_finality_lease_is_some_ordinary_ones() -> None:
    """Where rounds are slow, the manifest's could end before any member is declared silent."""
    chain, seen, moved = sides(0, 1), FinalityLease(10.0, 0.0), []
    for now in range(1, 100):
        if now % 5 == 0:
            chain.grow()
        moved.append(seen.observe(chain.ledger, is_member=True, silence=30.0, now=float(now)))
    assert not any(moved)
