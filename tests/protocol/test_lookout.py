"""When a member asks what it missed: also when news never ends, which may be old."""

from __future__ import annotations

import pytest
from distro_node.crypto.envelope import Envelope
from distro_node.protocol.effects import AskSync
from distro_node.protocol.ledger import Ledger
from distro_node.protocol.lookout import Lookout
from simulation.node import Node
from simulation.swarm import Swarm, toy_manifest

GOSSIP_A_SECOND = 4


@pytest.mark.parametrize(("follows", "within"), [(True, 2), (False, 10)])
def test_news_without_end_does_not_keep_a_member_from_asking(follows: bool, within: int) -> None:
    lookout, ledger = Lookout(0.0), Ledger(toy_manifest())
    asked = [
        second / 4
        for second in range(4 * 60)
        for effect in lookout.questions(
            ledger, last=second / 4 - 0.1, patience=0.0, follows=follows, now=second / 4
        )
        if isinstance(effect, AskSync)
    ]
    assert len(asked) == 59 // within


def test_a_member_that_waits_for_slow_updates_asks_seldom() -> None:
    lookout, ledger = Lookout(0.0), Ledger(toy_manifest())
    asked = [
        second
        for second in range(1000)
        if lookout.questions(ledger, last=0.0, patience=200.0, follows=False, now=float(second))
    ]
    assert len(asked) == 4


class Remote(Node):
    """A node whose peers pass on less gossip than there is: it hears everything, later and later."""

    free = 0.0
    quiet_until = 0.0

    def publish(self, envelope: Envelope) -> None:
        if self.swarm.now >= self.quiet_until:
            super().publish(envelope)

    def deliver(self, envelope: Envelope) -> None:
        clock = self.swarm.clock
        self.free = max(clock.now, self.free) + 1 / GOSSIP_A_SECOND
        clock.at(self.free, super().deliver, envelope)


def test_a_newcomer_that_hears_ever_older_news_catches_up() -> None:
    """A lone member decides two or three rounds a second. What the newcomer hears of them is a chain
    of decisions as well, slower: it must not take that for the present, or it is never admitted."""
    swarm = Swarm(toy_manifest(min_seconds=0.3), update_bytes=20_000)
    founder = swarm.add(0)
    founder.training_seconds = 0.001
    swarm.run_until(lambda: founder.member.round >= 10, 60)
    newcomer = swarm.add(1, kind=Remote)
    assert isinstance(newcomer, Remote)
    newcomer.training_seconds = 0.001
    # It is not let in at once.
    newcomer.quiet_until = swarm.now + 20.0
    swarm.run_until(lambda: swarm.now >= newcomer.quiet_until, 30)
    swarm.run_until(lambda: newcomer.member.is_member, 60)
