"""An independent judgement of chains: what a certificate proves, computed without the protocol's code.

If certificates were judged by the functions under test, a mistake in them would hide itself. Only
formats, signatures and the records of members and their votes are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.committees import CommitteeChain
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.committee.aggregate import ABSTENTION
from distro_node.protocol.sampling.stream_cursor import StreamCursors
from distro_node.protocol.util.draws import draw
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.membership import Membership, Votes
from distro_node.protocol.wire.messages import Certificate, Decided, Record, RecordId
from simulation.keys import Keys

_sober: Callable[[], AbstractContextManager[None]] = nullcontext


@contextmanager
def judging_under(sober: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let the oracle work within `sober()`, which keeps mutations out of it."""
    global _sober
    _sober = sober
    try:
        yield
    finally:
        _sober = nullcontext


@dataclass(frozen=True)
class Judgement:
    """What a certificate proves."""

    problem: str
    """Why it proves nothing; empty if it does."""
    discounted: frozenset[PeerId]
    """Members with votes that all signers call silent."""
    needed: int
    """A quorum of the votes of the others."""
    votes: Votes
    """The votes counted: one per head if all members with votes are silent."""
    slot: int
    """The slot in which it was decided."""


def least_quorum(model: str, votes: int) -> int:
    """Return the least number that is more than two thirds, or more than half."""
    share = (2, 3) if model == "byzantine" else (1, 2)
    return next(n for n in range(votes // 2, votes + 2) if n * share[1] > votes * share[0])


def may_be_quorum(
    model: str, membership: Membership, votes: Votes, cast: Mapping[PeerId, Collection[int]]
) -> bool:
    """Whether these members, each with its masks of members called silent, may have signed a certificate
    together; of all masks the one that leaves fewest is assumed."""
    members = sorted(membership.since)
    heads = Votes(dict.fromkeys(members, 1))
    heirs = [peer for peer in cast if not votes[peer]]
    for weights, signers in ((votes, [peer for peer in cast if votes[peer]]), (heads, heirs)):
        silent = max(
            (
                sum(weights[peer] for place, peer in enumerate(members) if mask >> place & 1)
                for peer in signers
                for mask in cast[peer]
            ),
            default=0,
        )
        total = max(0, sum(weights[peer] for peer in members) - silent)
        if signers and sum(weights[peer] for peer in signers) >= least_quorum(model, total):
            return True
    return False


def judge(
    certificate: Certificate,
    record: RecordId,
    membership: Membership,
    votes: Votes,
    manifest: Manifest,
    keys: Keys,
) -> Judgement:
    """Judge a certificate of finalizes for `record`, by the members of its round and their votes."""
    members = sorted(membership.since)
    signers = [ballot.peer for ballot in certificate.ballots]
    common = set(members)
    problem = ""
    for ballot in certificate.ballots:
        bits = int.from_bytes(ballot.silent, "little")
        common &= {peer for place, peer in enumerate(members) if bits >> place & 1}
        body = encode(certificate.ballot(ballot))
        if not keys.verify("finalize", manifest.swarm, ballot.peer, body, ballot.signature):
            problem = "a signature is not valid"
    present = [peer for peer in members if peer in signers or peer not in common]
    counted = votes
    if not any(votes[peer] for peer in present):
        counted = Votes(dict.fromkeys(members, 1))
    discounted = frozenset(peer for peer in members if votes[peer]) - set(present)
    needed = least_quorum(manifest.fault_model, sum(counted[peer] for peer in present))
    if certificate.kind != "finalize" or certificate.block != record:
        problem = "it is for another record, round or kind of ballot"
    elif not set(signers) <= set(members) or len(set(signers)) != len(signers):
        problem = "its signers are not distinct members"
    elif not all(counted[peer] for peer in signers):
        problem = "somebody without votes has signed it"
    elif (signed := sum(counted[peer] for peer in signers)) < needed:
        problem = f"{signed} votes where {needed} are needed"
    return Judgement(problem, discounted, needed, counted, certificate.slot)


@dataclass(frozen=True)
class _Set:
    """Members, and their votes after some record."""

    members: frozenset[PeerId]
    votes: Votes

    @property
    def weights(self) -> dict[PeerId, int]:
        """The weight of each: one per head if none of them has votes."""
        held = {peer: self.votes[peer] for peer in self.members if self.votes[peer]}
        return held or dict.fromkeys(self.members, 1)

    def without(self, gone: Collection[PeerId]) -> _Set:
        """Return the set without these members."""
        return _Set(self.members.difference(gone), self.votes)


@dataclass(frozen=True)
class Finality:
    """The state of finality on a chain."""

    final: int
    justified: int
    earlier: _Set
    """The finality set before the last one."""
    latest: _Set
    since: int
    """The first round that counts for the next final record."""
    said: frozenset[tuple[PeerId, int, int]] = frozenset()
    left: Mapping[PeerId, int] = field(default_factory=dict)
    reached: Mapping[int, int] = field(default_factory=dict)
    """The justified round after each record since."""

    @property
    def members(self) -> frozenset[PeerId]:
        """The finality set."""
        return self.latest.members


def _went_on(chain: Ledger, fork: int) -> dict[PeerId, int]:
    """Return the members that continued a chain, and when each was last admitted there."""
    found: dict[PeerId, int] = {}
    for number in range(fork, len(chain)):
        record = chain[number].record
        found |= {ballot.peer: -1 for ballot in chain[number].certificate.ballots}
        found |= {entry.peer: -1 for entry in record.updates if number > fork}
    for number in range(fork, len(chain)):
        admitted = {entry.peer for entry in chain[number].record.admitted}
        found |= {peer: number for peer in admitted if peer in found}
    return found


class Chains:
    """Every chain that any member followed, as a tree of records, each checked once by a fresh
    ledger."""

    def __init__(self, manifest: Manifest, keys: Keys) -> None:
        self._manifest = manifest
        self._keys = keys
        fresh = Ledger(manifest, verify=keys.verify)
        # A ledger that contains the record, and its length when the record was its last.
        self._home: dict[RecordId, tuple[Ledger, int]] = {fresh.head: (fresh, 0)}
        self._judged: dict[tuple[RecordId, Certificate], Judgement] = {}
        # By record: the number of consecutive skipped slots that each member led, and until when it is
        # passed over for that.
        self._skipped: dict[RecordId, dict[PeerId, tuple[int, int]]] = {fresh.head: {}}
        self._update_weights: dict[RecordId, tuple[int, ...]] = {}
        founder = _Set(frozenset({manifest.founder}), fresh.votes(0))
        self._finality = {fresh.head: Finality(-1, -1, founder, founder, 0)}
        self._votes = {fresh.head: fresh.votes(0)}
        self.records: dict[RecordId, Decided] = {}
        self.children: dict[RecordId, dict[RecordId, list[Judgement]]] = {}
        """By parent, the records decided after it, with their certificates."""

    def membership(self, parent: RecordId) -> Membership | None:
        """Return the members of the round after a record; None if it was never decided."""
        if parent not in self._home:
            return None
        ledger, length = self._home[parent]
        return ledger.membership(length)

    def votes(self, parent: RecordId) -> Votes:
        """Return the votes in the round after a decided record; `audit_invariants` checks where they
        come from."""
        return self._votes[parent]

    def ledger(self, parent: RecordId) -> Ledger:
        """Return a chain that ends with a decided record."""
        ledger, length = self._home[parent]
        return ledger if len(ledger) == length else ledger.truncated(length)

    def share(self, parent: RecordId, peer: PeerId) -> tuple[int, ...] | None:
        """Return the samples for which an update is due in the round after a decided record."""
        ledger, length = self._home[parent]
        return ledger.assignments.share(length, peer)

    def update_weights(self, record: Record) -> tuple[int, ...]:
        """Return the update weights of a decided record."""
        ledger, _ = self._home[record.parent]
        if ledger.find(AuditLedger) is not None:
            return ledger.update_weights(record)
        committee_chain = ledger.find(CommitteeChain)
        if committee_chain is not None:
            return self._aggregates_counted(record, committee_chain)
        if record.id not in self._update_weights:
            assigned = [len(self.share(record.parent, e.peer) or ()) for e in record.updates]
            unequal = self._manifest.optimizer.update_weight == "share" and len(set(assigned)) > 1
            mean = Fraction(sum(assigned), max(1, len(assigned)))
            self._update_weights[record.id] = tuple(
                2 if unequal and n >= mean else 1 for n in assigned
            )
        return self._update_weights[record.id]

    def _aggregates_counted(
        self, record: Record, committee_chain: CommitteeChain
    ) -> tuple[int, ...]:
        """Count one of each aggregate that two aggregators made and none of their committee denies; one,
        if it is alone."""
        weights = dict.fromkeys((entry.peer for entry in record.updates), 0)
        if record.round % 2 == 0 and weights:
            members = self._home[record.parent][0].membership(record.round)
            for committee in committee_chain.epoch(record.round).committees:
                said = {
                    entry.peer: entry.update
                    for entry in record.updates
                    if entry.peer in committee and entry.update != ABSTENTION
                }
                if len({*said.values()}) == 1 and (len(said) > 1 or len(members.since) == 1):
                    weights[min(said)] = 1
        return tuple(weights.values())

    def under_way(self, parent: RecordId) -> list[tuple[int, int]]:
        """Return streams and rows that were assigned and may still be trained, or are to be assigned
        again."""
        ledger, length = self._home[parent]
        streams, shares, last = (
            ledger.assignments.order.streams,
            ledger.assignments.shares(length),
            self.last_cursors(parent),
        )
        found: list[tuple[int, int]] = []
        # A step of two rounds assigns samples in the first of them.
        two = self._manifest.committees is not None
        for made in shares.assignments:
            number = 2 * made.round - 1 if two else made.round
            rows = ledger.assignments.cursors(number).rows(streams).tolist()
            found += [(n, rows[n]) for own in made.runs.values() for run in own for n in run]
        for work in shares.lent_streams:
            number = 2 * work.assigned_in - 1 if two else work.assigned_in
            rows = ledger.assignments.cursors(number).rows(streams)
            found.append((work.stream, int(rows[work.stream])))
        return [*found, *last.owed]

    def last_cursors(self, parent: RecordId) -> StreamCursors:
        """Return the last assignment that a decided record settles: with `overlap` a round ahead."""
        ledger, length = self._home[parent]
        return ledger.assignments.cursors(max(1, length) + ledger.manifest.rounds.overlap)

    def leader(self, parent: RecordId, slot: int) -> PeerId | None:
        """Return the leader of a slot of the round after a record."""
        membership = self.membership(parent)
        if membership is None:
            return None
        members, round_ = len(membership), self._home[parent][1]
        seed = self._manifest.swarm + round_.to_bytes(8, "big")
        order = sorted(membership.since, key=lambda peer: content_id(seed + peer))
        votes, out = self.votes(parent), self._passed_over(parent, round_, membership)
        first = [peer for peer in order if peer not in out]
        in_turn = [
            *first,
            *(order[turn % members] for turn in range(len(first), len(first) + slot)),
        ]
        if votes.equal:
            return in_turn[slot - 1]
        if slot % 2 == 0:
            return in_turn[slot // 2 - 1]
        line = {p: v for p, v in votes.by_peer.items() if p not in out or slot > 2 * len(first)}
        return draw(line or votes.by_peer, seed + slot.to_bytes(8, "big"))

    def _passed_over(self, parent: RecordId, round_: int, membership: Membership) -> set[PeerId]:
        """Return the members that lead none of the first slots of the round after a record: at most a
        third of all, those with most skipped slots, then those that came last."""
        since, members = membership.since, len(membership.since)
        skipped = {peer: n for peer, (n, until) in self._skipped[parent].items() if until > round_}
        out = [
            (-skipped.get(peer, 0), -since[peer] if since[peer] > round_ - members else 0, peer)
            for peer in since
            if peer in skipped or since[peer] > round_ - members
        ]
        return {peer for *_, peer in sorted(out)[: (members - 1) // 3]}

    def _skipped_after(self, record: Record, now: Membership) -> dict[PeerId, tuple[int, int]]:
        found = dict(self._skipped[record.parent])
        members = len(self._home[record.parent][0].membership(record.round).since)
        if record.round:
            wasted = {self.leader(record.parent, slot) for slot in range(1, record.slot)}
            for peer in filter(None, wasted):
                skipped = found.get(peer, (0, 0))[0] + 1
                rest = members * 2 ** min(skipped - 2, 3) if skipped > 1 else 0
                found[peer] = skipped, record.round + 1 + rest if rest else 0
            leader = self.leader(record.parent, record.slot)
            found = {peer: entry for peer, entry in found.items() if peer != leader}
        return {peer: entry for peer, entry in found.items() if peer in now.since}

    def add(self, decided: Decided) -> Judgement:
        """Add an entry of some chain, whose parent must be known.

        Raises `ProtocolError` if a ledger that knows the chain alone refuses it.
        """
        record = decided.record
        key = (record.id, decided.certificate)
        if key not in self._judged:
            with _sober():
                self._judged[key] = self._judge(decided)
        return self._judged[key]

    def prefers(
        self, peer: PeerId, ours: Ledger, theirs: Ledger, fork: int, *, alone: bool
    ) -> bool:
        """Whether a member that was on `ours` should change to `theirs`, which diverged before round
        `fork`. `alone`: no other member is left on its chain."""
        common = self.finality(ours.parent(fork))
        mine, other = (self.finality(chain.head) for chain in (ours, theirs))
        if mine.final >= fork or other.final >= fork:
            return mine.final < fork
        if mine.justified >= fork:
            return False
        lower = theirs[fork].record.id < ours[fork].record.id
        if alone and peer in self._members(theirs.head):
            return lower
        here, there = _went_on(ours, fork), _went_on(theirs, fork)
        members, votes = self._members(ours.parent(fork)), self.votes(ours.parent(fork))
        heads = dict.fromkeys(members, 1)
        for weights in (common.latest.weights, dict(votes.by_peer), heads):
            ayes = sum(weights.get(p, 0) for p in there if there[p] >= here.get(p, -1))
            noes = sum(weights.get(p, 0) for p in here if here[p] >= there.get(p, -1))
            if ayes != noes:
                return ayes > noes
        return lower

    def finality(self, parent: RecordId) -> Finality:
        """Return the state of finality after a decided record, computed from the definitions."""
        missing: list[RecordId] = []
        while parent not in self._finality:
            missing.append(parent)
            parent = self.records[parent].record.parent
        for block in reversed(missing):
            self._finality[block] = self._finality_after(self.records[block].record)
        return self._finality[missing[0] if missing else parent]

    def _members(self, parent: RecordId) -> tuple[PeerId, ...]:
        membership = self.membership(parent)
        return membership.peers if membership is not None else ()

    def _finality_after(self, record: Record) -> Finality:
        before, now = self._finality[record.parent], record.round
        gone = {entry.peer for entry in record.departed if entry.reason != "silent"}
        gone |= {proof.peer for proof in record.evidence}
        heirs = _Set(frozenset(self._members(record.id)), self.votes(record.id))
        sets = [
            left if (left := voters.without(gone)).members else heirs
            for voters in (before.earlier, before.latest)
        ]
        left = {**before.left, **dict.fromkeys(gone, now)}
        # Which members stated in which round that they were on this chain, and the record that contains
        # it.
        said = {*before.said, *((entry.peer, now, now) for entry in record.updates)}
        said |= {(entry.peer, now - 1, now) for entry in record.witnesses}
        said = {entry for entry in said if entry[1] >= before.since}

        def quorum(rounds: range, written: int) -> bool:
            heard = {peer for peer, round_, at in said if round_ in rounds and at <= written}
            model = self._manifest.fault_model
            return all(
                sum(weights.get(peer, 0) for peer in heard)
                >= least_quorum(model, sum(weights.values()))
                for weights in (voters.weights for voters in sets)
            )

        def justified(written: int) -> int:
            found = (
                r
                for r in range(written, before.final, -1)
                if quorum(range(r + 1, written + 1), written)
            )
            return next(found, before.final)

        reached = {before.since - 1: before.final, **before.reached, now: justified(now)}
        most = max(before.justified, reached[now])
        final = max(
            reached[known]
            for known in reached
            if known == before.since - 1 or quorum(range(known + 1, now + 1), now)
        )
        if final == before.final:
            return Finality(
                final, most, sets[0], sets[1], before.since, frozenset(said), left, reached
            )
        left = {peer: at for peer, at in left.items() if at > final}
        at_final = record
        while at_final.round > final:
            at_final = self.records[at_final.parent].record
        members = frozenset(self._members(at_final.id)) - left.keys()
        latest = _Set(members, self.votes(at_final.id)) if members else sets[1]
        return Finality(final, most, sets[1], latest, now + 1, frozenset(), left)

    def _judge(self, decided: Decided) -> Judgement:
        record = decided.record
        membership = self.membership(record.parent)
        if membership is None:
            return Judgement("its parent was never decided", frozenset(), 0, Votes({}), 0)
        votes = self.votes(record.parent)
        judgement = judge(
            decided.certificate, record.id, membership, votes, self._manifest, self._keys
        )
        if not judgement.problem:
            if record.id not in self._home:
                ledger, length = self._home[record.parent]
                if len(ledger) > length:
                    ledger = ledger.truncated(length)
                ledger.append(decided)
                self._home[record.id] = (ledger, len(ledger))
                self._votes[record.id] = ledger.votes(len(ledger))
                now = ledger.membership(len(ledger))
                self._skipped[record.id] = self._skipped_after(record, now)
                self.records[record.id] = decided
            siblings = self.children.setdefault(record.parent, {})
            siblings.setdefault(record.id, []).append(judgement)
        return judgement
