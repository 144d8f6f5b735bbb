"""An opinion of its own on chains: what a certificate proves, worked out without the protocol's code.

Were certificates judged by the functions under test, a mistake in them would hide itself. Only formats,
signatures and the account of who is a member are shared.
"""

from __future__ import annotations

from dataclasses import dataclass

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.ledger import Ledger
from distro_node.protocol.manifest import Manifest
from distro_node.protocol.membership import Membership
from distro_node.protocol.messages import Certificate, Decided, RecordId
from distro_node.protocol.wire import encode

from .keys import Keys


@dataclass(frozen=True)
class Judgement:
    """What a certificate shows."""

    problem: str
    """Why it proves nothing; empty if it does."""
    discounted: frozenset[PeerId]
    """Members that all signers call silent."""
    needed: int
    """The quorum of the others."""


def least_quorum(model: str, members: int) -> int:
    """The least number that is more than two thirds, or more than half."""
    share = (2, 3) if model == "byzantine" else (1, 2)
    return next(n for n in range(members + 2) if n * share[1] > members * share[0])


def judge(
    certificate: Certificate,
    record: RecordId,
    membership: Membership,
    manifest: Manifest,
    keys: Keys,
) -> Judgement:
    """Judge a certificate of finalizes for `record`, by the members of its round."""
    members = sorted(membership.since)
    signers = [ballot.peer for ballot in certificate.ballots]
    common = set(members)
    problem = ""
    for ballot in certificate.ballots:
        bits = int.from_bytes(ballot.silent, "little")
        common &= {peer for place, peer in enumerate(members) if bits >> place & 1}
        body = encode(certificate.ballot(ballot))
        if not keys.verify("finalize", manifest.swarm, ballot.peer, body, ballot.signature):
            problem = "a signature does not hold"
    discounted = frozenset(common - set(signers))
    needed = least_quorum(manifest.fault_model, len(members) - len(discounted))
    if certificate.kind != "finalize" or certificate.block != record:
        problem = "it is about something else"
    elif not set(signers) <= set(members) or len(set(signers)) != len(signers):
        problem = "its signers are not distinct members"
    elif len(signers) < needed:
        problem = f"{len(signers)} signers where {needed} are needed"
    return Judgement(problem, discounted, needed)


class Chains:
    """Every chain that anybody followed, as a tree of records, each checked once."""

    def __init__(self, manifest: Manifest, keys: Keys) -> None:
        self._manifest = manifest
        self._keys = keys
        root = RecordId(manifest.swarm)
        self._memberships = {root: Ledger(manifest).membership(0)}
        self._rounds = {root: 0}
        self._judged: dict[tuple[RecordId, Certificate], Judgement] = {}
        self.records: dict[RecordId, Decided] = {}
        self.children: dict[RecordId, dict[RecordId, list[Judgement]]] = {}
        """By parent, the records that were decided after it, with their certificates."""
        self._leaders: dict[RecordId, list[PeerId]] = {}

    def membership(self, parent: RecordId) -> Membership | None:
        """The members of the round after a record; None if it was never decided."""
        return self._memberships.get(parent)

    def leader(self, parent: RecordId, slot: int) -> PeerId | None:
        """Who leads a slot of the round after a record."""
        if parent not in self._leaders:
            membership = self._memberships.get(parent)
            if membership is None:
                return None
            self._leaders[parent] = sorted(
                membership.since, key=lambda peer: content_id(parent + peer)
            )
        leaders = self._leaders[parent]
        return leaders[(slot - 1) % len(leaders)]

    def add(self, decided: Decided) -> Judgement:
        """Take in an entry of somebody's chain, whose parent must be known."""
        record = decided.record
        key = (record.id, decided.certificate)
        if key in self._judged:
            return self._judged[key]
        membership = self._memberships.get(record.parent)
        if membership is None or self._rounds[record.parent] != record.round:
            judgement = Judgement("its parent was never decided", frozenset(), 0)
        else:
            judgement = judge(
                decided.certificate, record.id, membership, self._manifest, self._keys
            )
            if record.id not in self._memberships:
                self._memberships[record.id] = membership.after(record)
                self._rounds[record.id] = record.round + 1
                self.records[record.id] = decided
            self.children.setdefault(record.parent, {}).setdefault(record.id, []).append(judgement)
        self._judged[key] = judgement
        return judgement
