"""With `overlap` updates are computed a round ahead, and everything else works as without it."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import pytest
from distro_node.protocol.member.effects import Apply, Effect, Publish, Resync, Train
from distro_node.protocol.member.inputs import (
    Applied,
    EntryReceived,
    LeaveRequested,
    Loaded,
    MessageReceived,
    Rebased,
    Trained,
    UpdateHeld,
)
from distro_node.protocol.member.member import Member
from distro_node.protocol.wire.messages import Announcement, Leave, decode_message
from seeds import seeds
from simulation.chain import FINGERPRINT, Chain, update_of
from simulation.faults import Family
from simulation.network import HOME
from simulation.scenario import build, draw_scenario, run_seed
from simulation.swarm import identity

E = TypeVar("E")


def of(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def announced(effects: Iterable[Effect]) -> list[Announcement]:
    messages = [decode_message(effect.envelope) for effect in of(Publish, effects)]
    return [message for message in messages if isinstance(message, Announcement)]


def trained_for(effects: Iterable[Effect]) -> list[int]:
    return [train.round for train in of(Train, effects)]


class Seat:
    """Member of a swarm with overlap, which the others' records carry along."""

    def __init__(self, *, grown: int = 1, overlap: bool = True, **options: Any) -> None:
        self.chain = Chain(4, overlap=overlap, **options)
        for _ in range(grown):
            self.chain.grow()
        self.me, *self.others = self.chain.membership.peers
        self.member: Member = self.chain.member(self.me, load=False)

    def loads(self, round_: int | None = None) -> list[Effect]:
        last = self.chain.round - 1 if round_ is None else round_
        return self.member.handle(Loaded(last, FINGERPRINT, None), 0.0)

    def trains(self, round_: int) -> list[Effect]:
        made = Trained(round_, round_, update_of(self.me, round_), 1000, 500, 2.5)
        return self.member.handle(made, 0.0)

    def decides(self, **parts: Any) -> list[Effect]:
        """Deliver the others' record of the round, and what it needs."""
        decided = self.chain.grow(**parts)
        return self.member.handle(EntryReceived(decided), 0.0) + self.fetches()

    def misses(self) -> list[Effect]:
        """Deliver the others' record of a round without it."""
        return self.decides(updates=[self.chain.update(peer) for peer in self.others])

    def fetches(self) -> list[Effect]:
        """Deliver all updates that it requests."""
        round_ = self.member.view.applied_round + 1
        updates = self.chain.ledger[round_].record.updates
        return [e for entry in updates for e in self.member.handle(UpdateHeld(entry.update), 0.0)]

    def applies(self, round_: int | None = None, fingerprint: int = FINGERPRINT) -> list[Effect]:
        last = self.chain.round - 1 if round_ is None else round_
        return self.member.handle(Applied(last, fingerprint, None), 0.0)


def test_the_next_round_is_trained_while_this_one_is_in_flight() -> None:
    seat = Seat()
    first = seat.loads()
    assert trained_for(first) == [2]
    ahead = seat.trains(2)
    assert [said.round for said in announced(ahead)] == [2]
    # On the current parameters: those after round 1.
    assert trained_for(ahead) == [3]
    assert seat.member.view.applied_round == 1
    head = seat.chain.ledger.head
    assert of(Train, ahead)[0].parent == head

    # It waits for its round, and nothing else is begun meanwhile.
    assert seat.trains(3) == []
    effects = seat.decides()
    assert of(Apply, effects)[0].own_counted
    assert trained_for(effects) == announced(effects) == []
    effects = seat.applies()
    (said,) = announced(effects)
    assert said == seat.chain.announcement(seat.me)
    assert said.parent != head
    assert trained_for(effects) == [4]


def test_without_overlap_nothing_is_computed_ahead() -> None:
    seat = Seat(overlap=False)
    assert trained_for(seat.loads()) == [2]
    assert trained_for(seat.trains(2)) == []
    seat.decides()
    assert trained_for(seat.applies()) == [3]
    # Nor kept: it is useless in a round for which it was not requested.
    assert seat.trains(4) == []
    seat.decides()
    assert announced(seat.applies()) == []


def test_what_is_trained_late_is_announced_when_it_comes() -> None:
    """The record came first, and was applied before the trainer was done."""
    seat = Seat()
    seat.loads()
    seat.trains(2)
    seat.decides()
    assert trained_for(seat.applies()) == []
    effects = seat.trains(3)
    assert [said.round for said in announced(effects)] == [3]
    assert trained_for(effects) == [4]


def test_what_is_too_late_for_its_round_is_not_sent() -> None:
    seat = Seat()
    seat.loads()
    seat.trains(2)
    seat.decides()
    seat.misses()
    # Rounds 2 and 3 are decided, 2 is not applied, and now the trainer is done with 3.
    assert seat.trains(3) == []
    effects = seat.applies(2) + seat.fetches()
    assert announced(effects) == []
    # It goes back into the momentum.
    assert not of(Apply, effects)[0].own_counted
    # At the tip again with nothing ahead, the tip comes first.
    assert trained_for(seat.applies()) == [4]
    effects = seat.trains(4)
    assert [said.round for said in announced(effects)] == [4]
    assert trained_for(effects) == [5]


def test_who_is_too_late_with_the_tip_itself_computes_the_next_round() -> None:
    """All others are done with a round when it comes, so it is shorter than a gradient takes."""
    seat = Seat()
    assert trained_for(seat.loads()) == [2]
    # Round 2 is decided without it, and applied before the trainer is done.
    seat.misses()
    assert trained_for(seat.applies()) == [3]
    assert trained_for(seat.trains(2)) == []
    seat.misses()
    seat.applies()
    # The trainer is done with round 3 in round 4, and begins with round 5.
    late = seat.trains(3)
    assert announced(late) == []
    seat.misses()
    effects = late + seat.applies()
    assert trained_for(effects) == [5]
    effects = seat.trains(5)
    assert [said.round for said in announced(effects)] == [5]
    assert trained_for(effects) == [6]


def test_what_was_computed_on_lost_parameters_is_forgotten() -> None:
    seat = Seat()
    seat.loads()
    seat.trains(2)
    seat.trains(3)
    seat.decides()
    # The result of this step differs from the others'.
    seat.applies(fingerprint=FINGERPRINT + 1)
    seat.trains(4)
    assert of(Resync, seat.decides())
    effects = seat.loads()
    assert announced(effects) == []
    assert trained_for(effects) == [4]


def test_a_change_of_chain_forgets_it_too() -> None:
    seat = Seat(grown=2)
    other = seat.chain.fork()
    other.grow(updates=[other.update(seat.others[0])])
    seat.loads()
    seat.trains(3)
    seat.trains(4)
    seat.decides(updates=[])
    seat.applies()
    assert of(Resync, seat.member.handle(Rebased(other.ledger), 0.0))
    # A trainer at work finishes what it began.
    assert seat.trains(5) == []
    effects = seat.member.handle(Loaded(3, FINGERPRINT, None), 0.0)
    assert announced(effects) == []
    assert trained_for(effects) == [4]


def test_a_restart_in_mid_flight_resumes() -> None:
    """What was announced stays and is not made again; what was ahead is lost and recomputed."""
    seat = Seat()
    seat.loads()
    envelopes = [effect.envelope for effect in of(Publish, seat.trains(2))]
    seat.trains(3)
    seat.member = seat.chain.member(seat.me, said=envelopes, start_number=2, load=False)
    effects = seat.loads()
    assert trained_for(effects) == [3]
    seat.member = seat.chain.member(seat.me, start_number=3, load=False)
    assert trained_for(seat.loads()) == [2]


def test_a_leaver_computes_nothing_ahead() -> None:
    seat = Seat()
    seat.loads()
    effects = seat.member.handle(LeaveRequested(), 0.0)
    assert Leave(2) in [decode_message(effect.envelope) for effect in of(Publish, effects)]
    assert trained_for(seat.trains(2)) == []


# Samples


def test_the_share_is_settled_when_it_is_trained() -> None:
    """Whatever the record in between says: members fail in it, join and leave."""
    seat = Seat()
    seat.loads()
    (train,) = of(Train, seat.trains(2))
    absent, gone, *_ = seat.others
    counted = [seat.chain.update(peer) for peer in seat.chain.membership.peers if peer != absent]
    seat.decides(
        updates=counted,
        admitted=[seat.chain.admission(9)],
        departed=[seat.chain.leave(gone)],
    )
    ledger = seat.chain.ledger
    assert ledger.assignments.share(3, seat.me) == train.samples
    assert len(train.samples) == 16
    # A new member has none, one that left had one, and no share is assigned twice.
    assert ledger.assignments.share(3, identity(9).peer) is None
    assert ledger.assignments.share(3, gone)
    shares = [ledger.assignments.share(3, peer) or () for peer in (seat.me, *seat.others)]
    assert len({sample for share in shares for sample in share}) == 64


def test_a_newcomer_computes_the_round_after_its_first_and_is_not_waited_for() -> None:
    seat = Seat()
    newcomer = identity(9).peer
    seat.chain.grow(admitted=[seat.chain.admission(9)])
    assert newcomer in seat.chain.membership
    member = seat.chain.member(newcomer, load=False)
    effects = member.handle(Loaded(2, FINGERPRINT, None), 0.0)
    assert trained_for(effects) == [4]
    assert of(Train, effects)[0].samples
    # A member that holds all the others' updates need not wait.
    seat.member = seat.chain.member(seat.me, load=False)
    seat.loads()
    for peer in seat.others:
        envelope = seat.chain.envelope(peer, "announcement", seat.chain.announcement(peer))
        seat.member.handle(MessageReceived(envelope), 0.0)
        seat.member.handle(UpdateHeld(update_of(peer, 3)), 0.0)
    assert seat.member.parts.round.ready_since is None
    seat.trains(3)
    assert seat.member.parts.round.ready_since is not None
    # From then on its samples count like all others.
    seat.chain.grow(updates=[seat.chain.update(peer) for peer in (seat.me, *seat.others)])
    assert seat.chain.ledger.assignments.share(4, newcomer) == of(Train, effects)[0].samples


@pytest.mark.parametrize("seed", seeds(8))
def test_every_sample_is_trained_once_with_churn(seed: int) -> None:
    """Members join, leave and fail at random, and then no longer: on the chain, each sample of an epoch
    counts once, and one not trained two rounds later is assigned again."""
    chance = random.Random(seed)
    chain = Chain(5, overlap=True, samples=70, sequences=chance.choice([3, 16, 23]))
    trained: Counter[int] = Counter()
    sequences = chain.manifest.rounds.sequences
    for round_ in range(1, 40):
        calm = round_ > 25
        peers = list(chain.membership.peers)
        shares = {peer: chain.ledger.assignments.share(round_, peer) for peer in peers}
        counted = [peer for peer in peers if shares[peer] is not None]
        if not calm:
            counted = [peer for peer in counted if chance.random() < 0.6]
        absent = [i for i in range(8) if identity(i).peer not in chain.membership]
        gone = [peer for peer in peers if len(peers) > 2 and chance.random() < 0.1]
        # A leave must be newer than the admission.
        old = {peer for peer in gone if chain.membership.since[peer] < round_}
        back = [i for i in absent if chance.random() < 0.3]
        chain.grow(
            updates=[chain.update(peer) for peer in counted],
            departed=[] if calm else [chain.leave(peer) for peer in old],
            admitted=[] if calm else [chain.admission(i) for i in back],
        )
        for peer in counted:
            trained.update(shares[peer] or ())
        # Of what was assigned so far, the next two rounds are not decided.
        ledger, streams = chain.ledger, np.arange(sequences)
        ends = ledger.assignments.cursors(round_ + 2).fresh(sequences).tolist()
        assigned = [(stream, row) for stream, end in enumerate(ends) for row in range(end)]
        due = Counter(ledger.assignments.order.samples_at(*np.array(assigned).T))
        for ahead in (1, 2):
            rows = ledger.assignments.cursors(round_ + ahead).rows(sequences)
            due -= Counter(ledger.assignments.order.samples_at(streams, rows))
        assert trained == due
    assert trained.total() > 5 * sequences


# Many members


def test_a_swarm_trains_ahead() -> None:
    """If communication and training take equally long, a round takes hardly more than one of them."""
    heights = {}
    for overlap in (False, True):
        scenario = draw_scenario(0, "none", 4, overlap=overlap)
        swarm = build(dataclasses.replace(scenario, links=HOME))
        swarm.training_seconds = 0.5
        while swarm.clock.next < 30.0:
            swarm.clock.step()
        heights[overlap] = min(node.member.view.applied_round for node in swarm.alive)
    assert heights[True] > 1.3 * heights[False]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["all", "liars", "network", "crash"])
@pytest.mark.parametrize("seed", seeds(5))
def test_seeds_with_overlap(seed: int, family: Family) -> None:
    failure = run_seed(seed, family, overlap=True).failure
    assert failure is None, failure.command
