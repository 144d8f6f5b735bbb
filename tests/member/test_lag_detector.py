"""When a member asks for what it missed: also while it receives news, which may be old."""

from __future__ import annotations

import pytest
from distro_node.crypto.envelope import Envelope
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.member.effects import AskSync, CompareChains
from distro_node.protocol.member.lag_detector import LagDetector
from distro_node.protocol.wire.messages import Heartbeat
from simulation.chain import Chain
from simulation.keys import identity
from simulation.node import Node
from simulation.swarm import Swarm, toy_manifest

GOSSIP_A_SECOND = 4


@pytest.mark.parametrize(("follows", "within"), [(True, 2), (False, 10)])
def test_news_without_end_does_not_keep_a_member_from_asking(follows: bool, within: int) -> None:
    divergence, ledger = LagDetector(0.0), Ledger(toy_manifest())
    asked = [
        second / 4
        for second in range(4 * 60)
        for effect in divergence.requests(
            ledger, last=second / 4 - 0.1, patience=0.0, follows=follows, now=second / 4
        )
        if isinstance(effect, AskSync)
    ]
    assert len(asked) == 59 // within


def test_a_member_that_waits_for_slow_updates_asks_seldom() -> None:
    divergence, ledger = LagDetector(0.0), Ledger(toy_manifest())
    asked = [
        second
        for second in range(1000)
        if divergence.requests(ledger, last=0.0, patience=200.0, follows=False, now=float(second))
    ]
    assert len(asked) == 4


def test_a_heartbeat_of_a_removed_member_shows_another_chain() -> None:
    """Where no slot can end, the other side sends only heartbeats. Otherwise two sides may never meet
    again: the one that has gone on does not ask, and the one that should be followed cannot go on."""
    chain = Chain(4)
    _, stays, out, _ = chain.membership.peers
    chain.grow(departed=[chain.silence(out)])
    for _ in range(5):
        chain.grow()

    def compares(sender: PeerId, round_: int) -> bool:
        divergence = LagDetector(0.0)
        divergence.note_misfit(sender, Heartbeat(round_, 1), chain.ledger)
        effects = divergence.requests(
            chain.ledger, last=60.0, patience=0.0, follows=False, now=100.0
        )
        return any(isinstance(effect, CompareChains) for effect in effects)

    assert compares(out, 2)
    assert not compares(stays, 2)
    assert not compares(identity(60).peer, 2)


@pytest.mark.parametrize(("patience", "after"), [(0.0, 60.0), (5.0, 80.0)])
def test_where_nothing_is_decided_chains_are_compared_without_a_sign(
    patience: float, after: float
) -> None:
    """Members of the chain to follow may be behind, and send nothing that names a record: two sides of a
    partition once stayed apart for ever."""
    chain = Chain(4)
    divergence = LagDetector(0.0)

    def compares(now: float, last: float) -> bool:
        effects = divergence.requests(
            chain.ledger, last=last, patience=patience, follows=False, now=now
        )
        return any(isinstance(effect, CompareChains) for effect in effects)

    assert not compares(after - 0.1, float("-inf"))
    assert compares(after, float("-inf"))
    assert not compares(2 * after - 0.1, 0.0)
    # News postpones it.
    assert not compares(2 * after, 1.5 * after)
    assert compares(2.5 * after, 1.5 * after)


class Remote(Node):
    """Node whose peers forward less gossip than there is: it receives everything, later and later."""

    free = 0.0
    quiet_until = 0.0

    def publish(self, envelope: Envelope) -> None:
        if self.swarm.now >= self.quiet_until:
            super().publish(envelope)

    def deliver(self, envelope: Envelope) -> None:
        clock = self.swarm.clock
        self.free = max(clock.now, self.free) + 1 / GOSSIP_A_SECOND
        clock.at(self.free, super().deliver, envelope)


def test_a_newcomer_that_receives_ever_older_news_catches_up() -> None:
    """A lone member decides two or three rounds a second. What the newcomer receives is a slower chain
    of decisions: it must not take that for the present, or it would never be admitted."""
    swarm = Swarm(toy_manifest(min_seconds=0.3), update_bytes=20_000)
    founder = swarm.add(0)
    founder.training_seconds = 0.001
    swarm.run_until(lambda: founder.member.view.round >= 10, 60)
    newcomer = swarm.add(1, kind=Remote)
    assert isinstance(newcomer, Remote)
    newcomer.training_seconds = 0.001
    # It is not admitted at once.
    newcomer.quiet_until = swarm.now + 20.0
    swarm.run_until(lambda: swarm.now >= newcomer.quiet_until, 30)
    swarm.run_until(lambda: newcomer.member.view.is_member, 60)
