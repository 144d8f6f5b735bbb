"""How often a member checks signatures, in a swarm in which each has the daemon's cache."""

from __future__ import annotations

from typing import Any

from distro_node.crypto.envelope import Envelope, Verify
from distro_node.crypto.signature_cache import SignatureCache
from distro_node.protocol.chain.ledger import Ledger
from simulation.node import Node
from simulation.swarm import Swarm, toy_manifest

# Private here: `_read_ledger`: the one place where a simulated node makes its ledger.
MEMBERS = 7
# Gossip validates a message before it forwards it, and then hands it to the reader.
OPENED = 2
_FIRST, _ROUNDS = 3, 17


class CountingNode(Node):
    """A node that verifies what the daemon does, and counts the messages and the checks."""

    cached = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.messages = self.checks = 0
        self.verify: Verify = SignatureCache(self._check).verify if self.cached else self._check

    def _check(self, *fields: Any) -> bool:
        self.checks += 1
        return self.swarm.keys.verify(*fields)

    def _read_ledger(self) -> Ledger:
        ledger = super()._read_ledger()
        ledger.verify = self.verify
        return ledger

    def deliver(self, envelope: Envelope) -> None:
        self.messages += 1
        fields = envelope.kind, envelope.swarm, envelope.sender, envelope.body, envelope.signature
        assert all(self.verify(*fields) for _ in range(OPENED))
        super().deliver(envelope)


class UncachedNode(CountingNode):
    """A node that remembers no signature."""

    cached = False


def checks_per(kind: type[CountingNode]) -> tuple[float, float]:
    """Return the checks of a member: per received message, and per round and signing member."""
    swarm = Swarm(toy_manifest(start_members=MEMBERS), seed=1)
    nodes = [swarm.add(index, kind=kind) for index in range(MEMBERS)]
    swarm.run_until(lambda: min(node.member.view.round for node in nodes) > _FIRST, limit=300)
    counted = [node for node in nodes if isinstance(node, CountingNode)]
    for node in counted:
        node.messages = node.checks = 0
    swarm.run_until(
        lambda: min(node.member.view.round for node in nodes) > _FIRST + _ROUNDS, limit=600
    )
    checks = sum(node.checks for node in counted)
    return checks / sum(node.messages for node in counted), checks / (MEMBERS**2 * _ROUNDS)


def test_a_members_signature_is_checked_once_wherever_it_appears() -> None:
    """In gossip, in the proposal that reports it, in the ledger entry and in the certificate."""
    per_message, per_signer = checks_per(CountingNode)
    # Own messages do not arrive by gossip, and are checked in records and certificates.
    assert 1 <= per_message < 1.2
    # An announcement, a vote, a finalize, and heartbeats.
    assert per_signer < 5
    uncached_per_message, uncached_per_signer = checks_per(UncachedNode)
    assert uncached_per_message > 2.5
    assert uncached_per_signer > 2.5 * per_signer
