"""The invariants of a run, checked with each event that could violate them.

- *one chain*: two different records are decided after the same one only if at most one of their
  certificates needs no silence, neither itself nor in what it rests on (a slot in which the other was
  decided, and which has to be skipped); so full quorums never contradict each other. Where nothing in
  the scenario explains silence (`forks_explained`), honest members never follow two different records,
  whatever liars sign; but a member that has just come may believe the first peer it asks.
- *certificate*: what an honest member follows is proven by a quorum, by the oracle's own count.
- *record*: each record on an honest chain passes a fresh ledger, checked from the entries alone.
- *available*: a member that votes holds every update listed; when a record is decided, its updates are
  held by a quorum of the members that its voters did not call silent, without the liars. Sign votes
  are for committees only.
- *complete*: in the first slots a member votes only for a record that lists, as announced, all updates
  of others that it held in good time, unless they announced two things.
- *ballots*: no honest member contradicts itself: two votes, finalizes or proposals for a slot, a
  finalize and a skip, two updates for a round. It votes for what the slot's leader proposed, on its own
  chain.
- *fork choice*: no member changes to a chain that the rules rank below its own, as the oracle reads
  them.
- *final*: of two final records, on any chains, one builds on the other, and no member reverts one, or
  takes another for final than the definitions say.
- *parameters*: honest members that applied the same record have the same parameters, and a record names
  the parameters before it.
- *refund*: an update counts for its author exactly if a record lists it, and nothing is lost.
- *samples*: on every chain each sample is trained once an epoch, or is still to be assigned (`samples`).
- *accounts*: with audits, all votes and reputation are what they should be (`audit_invariants`).
- *expelled*: in the end, members that contradicted themselves before all others are expelled.
- *memory*: what a member keeps of others stays within its bounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.chain.consensus import SLOT_WINDOW
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.member.effects import Apply
from distro_node.protocol.member.message_store import FUTURE_ROUNDS, MEMBER_BYTES
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.membership import Votes
from distro_node.protocol.wire.messages import (
    NO_BLOCK,
    Announcement,
    Ballot,
    Decided,
    Message,
    Proposal,
    Record,
    RecordId,
    UpdateEntry,
    round_of,
)
from simulation.audit_invariants import AuditInvariants
from simulation.message_cache import read
from simulation.oracle import Chains, Judgement, least_quorum, may_be_quorum
from simulation.samples import Samples
from simulation.toy import INITIAL

# Private here: `_arrivals`: only the member knows what it held in good time. Private here: `_bytes`,
# `_rounds`, `_slots`, `_waiting`: what others can make a member keep is bounded inside it, by table.

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.swarm import Swarm

# Counting a member's memory takes longer than most events do.
_MEMORY_EVERY = 97
# And so does recomputing the accounts of earlier rounds.
_AGAIN_EVERY = 8


class Violation(AssertionError):
    """An invariant was violated. `concerned` are records, peers and numbers of nodes."""

    def __init__(self, invariant: str, text: str, *concerned: object) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.concerned = concerned


class Watch:
    """Checks the invariants. Raises `Violation`."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self.chains = Chains(swarm.manifest, swarm.keys)
        self.samples = Samples(swarm.manifest)
        self.audit_invariants = AuditInvariants(swarm.manifest, swarm.scores, self.expected)
        self.liars: set[int] = set()
        """Nodes from which nothing good is expected."""
        self.forgetful: set[int] = set()
        """Honest nodes whose disk was lost: they may contradict what they signed before."""
        self.cut = False
        """Whether liars meet a cut network. Then guarantees depend on how many honest members are
        left."""
        self.down = False
        """Whether many members are dead: no member believes liars alone while enough others are
        there."""
        self.believed = False
        """Whether a member did, when liars were a third of those present."""
        self.forks_explained = True
        """Whether members may have been silent to each other for a lease without being dead."""
        self.decided_at: dict[RecordId, float] = {}
        """The time at which each record was first decided."""
        self.decisions: dict[RecordId, list[float]] = {}
        """The times at which each member learned of it."""
        self.holders: dict[RecordId, dict[PeerId, float]] = {}
        """By parent record: when each honest member last received an update of the round."""
        self._followed: dict[RecordId, set[RecordId]] = {}
        # By parent record: what honest members followed that had been there for long.
        self._held: dict[ContentId, set[int]] = {}
        # By parent record and member: its announcements, by signature.
        self._announced: dict[tuple[RecordId, PeerId], dict[bytes, Announcement]] = {}
        self._voted: set[tuple[PeerId, RecordId, int]] = set()
        # The proposers: a liar may propose before any honest member has decided the parent.
        self._proposed: dict[tuple[RecordId, int, RecordId], set[PeerId]] = {}
        self._known: dict[RecordId, Record] = {}
        self._said: dict[tuple[object, ...], object] = {}
        self._parameters: dict[RecordId, int] = {RecordId(swarm.manifest.swarm): INITIAL}
        self._contradicted: dict[PeerId, dict[RecordId, float]] = {}
        # Members that sent all others two contradicting messages, such as a finalize and a skip; the
        # parent records, and the times.
        self._final: dict[tuple[object, ...], set[RecordId]] = {}
        # Ballots, with all masks of each signer.
        self._cast: dict[tuple[RecordId, int, str], dict[RecordId, dict[PeerId, set[int]]]] = {}
        self._update_of: dict[ContentId, RecordId] = {}
        self._last_final: RecordId | None = None
        self._premise = True
        # Whether any two quorums of each finality set so far share an honest member.
        self.heard_by_all_since = 0.0
        """When the last fault ended that may keep messages from members that need them."""
        self._stirs = 0

    def facts(self, envelope: Envelope) -> tuple[object, ...]:
        """Return the content of a message in a few words."""
        try:
            message = read(envelope)
        except ProtocolError:
            return ("nonsense",)
        if isinstance(message, Proposal):
            return (message.record.round, message.slot, message.record.id)
        if isinstance(message, Ballot):
            gone = message.silent.hex() if any(message.silent) else "-"
            return (message.round, message.slot, message.block, gone)
        if isinstance(message, Announcement):
            return (message.round, message.update)
        return (round_of(message),)

    def ready(self, decided: Decided) -> float | None:
        """Return when the leader of a decided record, and a quorum, held all of the round's updates."""
        parent = decided.record.parent
        held = self.holders.get(parent, {})
        leader = self.chains.leader(parent, decided.certificate.slot)
        members = self.chains.membership(parent)
        if members is None or leader is None or leader not in held:
            return None
        votes = self.chains.votes(parent)
        missing = least_quorum(self._swarm.manifest.fault_model, votes.total)
        for when, peer in sorted((when, peer) for peer, when in held.items()):
            missing -= votes[peer]
            if missing <= 0:
                return max(held[leader], when)
        return None

    # Messages

    def signed(self, node: Node, envelope: Envelope) -> None:
        """Check a message that a node signed, which need not be sent."""
        if envelope.kind == "proposal":
            message = read(envelope)
            assert isinstance(message, Proposal)
            record = message.record
            self._known[record.id] = record
            place = (record.parent, message.slot, record.id)
            self._proposed.setdefault(place, set()).add(envelope.sender)
        elif envelope.kind in ("vote", "skip"):
            message = read(envelope)
            assert isinstance(message, Ballot)
            place = (message.parent, message.slot, envelope.kind)
            cast = self._cast.setdefault(place, {}).setdefault(message.block, {})
            members = self.chains.membership(message.parent)
            mask = int.from_bytes(message.silent, "little")
            # A liar's mask may mark more members than there are; such a ballot is not counted.
            if members is None or not mask >> len(members):
                cast.setdefault(envelope.sender, set()).add(mask)
            # Repeated with another mask; by then a damaged disk may have lost the data.
            again = (envelope.sender, message.parent, message.slot)
            if (
                envelope.kind == "vote"
                and node.index not in self.liars
                and again not in self._voted
            ):
                self._voted.add(again)
                self._check_vote(node, message)
        elif envelope.kind == "announcement":
            message = read(envelope)
            assert isinstance(message, Announcement)
            self._update_of[message.update] = message.parent
            place = (message.parent, envelope.sender)
            self._announced.setdefault(place, {})[envelope.signature] = message

    def told(self, envelope: Envelope) -> None:
        """Note a message that is on its way to all members."""
        if envelope.kind in ("skip", "finalize"):
            message = read(envelope)
            assert isinstance(message, Ballot)
            slot = (envelope.sender, message.parent, message.slot)
            blocks = self._final.setdefault(slot, set())
            blocks.add(message.block)
            if len(blocks) > 1:
                rounds = self._contradicted.setdefault(envelope.sender, {})
                rounds.setdefault(message.parent, self._swarm.now)

    def outnumbered(self) -> bool:
        """Whether the guarantees no longer hold: somewhere liars can stop a chain that an honest member
        follows, or could when the record was decided whose updates are lacking there, or two quorums of
        a finality set need not share an honest member."""
        nodes = [node for node in self._swarm.alive if node.index not in self.liars]
        for node in nodes:
            ledger = node.member.view.ledger
            for round_ in (node.member.view.applied_round + 1, len(ledger)):
                if self._can_stop(ledger.votes(round_)):
                    return True
        return not self._premise

    def _can_stop(self, votes: Votes) -> bool:
        """Whether the honest votes among these are not a quorum."""
        needed = least_quorum(self._swarm.manifest.fault_model, votes.total)
        return votes.total - self._lying(votes) < needed

    def _lying(self, votes: Votes) -> int:
        """Return how many of these votes belong to liars, or to nodes that lost their disk."""
        untrue = self.liars | self.forgetful
        return votes.among(p for p in votes.by_peer if self._swarm.number(p) in untrue)

    def _share_an_honest_one(self, votes: Votes) -> bool:
        """Whether any two quorums of these votes share an honest member."""
        needed = least_quorum(self._swarm.manifest.fault_model, votes.total)
        return 2 * needed - votes.total > self._lying(votes)

    def unpunished(self, members: set[PeerId], height: int, ledger: Ledger) -> list[int | None]:
        """Return members that contradicted themselves before `height` and must have been detected.

        Messages at the end of a round are ignored, but not every time. On another chain, and while not
        all members are connected, they need not be detected either.
        """
        guilty: list[int | None] = []
        for peer in members.intersection(self._contradicted):
            ends = [
                (self._round_over(parent), said)
                for parent, said in self._contradicted[peer].items()
                if not self.cut or (said >= self.heard_by_all_since and self._is_on(ledger, parent))
            ]
            over = [(at, said) for (round_, at), said in ends if round_ < height - 1]
            if len(over) > 4 or sum(at > said + 0.3 for at, said in over) > 1:
                guilty.append(self._swarm.number(peer))
        return guilty

    def _is_on(self, ledger: Ledger, parent: RecordId) -> bool:
        known = self.chains.records.get(parent)
        return known is not None and ledger.parent(known.record.round + 1) == parent

    def _round_over(self, parent: RecordId) -> tuple[float, float]:
        """Return the round after a record and when it was decided; infinity if it was not."""
        children = self.chains.children.get(parent, {}).keys() & self.decided_at.keys()
        return min(
            ((self.chains.records[b].record.round, self.decided_at[b]) for b in children),
            default=(float("inf"), float("inf")),
        )

    def published(self, node: Node, envelope: Envelope) -> None:
        """Check a message that a node publishes."""
        message = read(envelope)
        if node.index not in self.liars:
            self._check_once(node, envelope, message)

    def _check_once(self, node: Node, envelope: Envelope, message: Message) -> None:
        if node.index in self.forgetful:
            return
        if isinstance(message, Ballot):
            place = (envelope.sender, message.round, message.parent, message.slot)
            said: object = message.block
        elif isinstance(message, Proposal):
            record = message.record
            place, said = (envelope.sender, record.round, record.parent, message.slot), record.id
        elif isinstance(message, Announcement):
            place = (envelope.sender, message.round, message.parent)
            # Two are evidence, whatever the difference between them.
            said = envelope.body
        else:
            return
        before = self._said.setdefault((envelope.kind, *place), said)
        if before != said:
            raise Violation(
                "ballots", f"node {node.index} says two things as {envelope.kind}", before, said
            )
        opposite = {"skip": "finalize", "finalize": "skip"}.get(envelope.kind)
        if (opposite, *place) in self._said:
            raise Violation(
                "ballots", f"node {node.index} finalizes and skips a slot", said, node.index
            )

    def _check_vote(self, node: Node, ballot: Ballot) -> None:
        block, parent = ballot.block, ballot.parent
        if parent != node.member.view.ledger.parent(ballot.round):
            raise Violation("ballots", f"node {node.index} votes on another chain", block)
        if not self._well_founded(ballot):
            raise Violation(
                "ballots", f"node {node.index} votes for what is not well founded", block
            )
        proposers = self._proposed.get((parent, ballot.slot, block), ())
        if self.chains.leader(parent, ballot.slot) not in proposers:
            raise Violation(
                "ballots", f"node {node.index} votes for what the leader did not propose", block
            )
        record = self._known[block]
        updates = [entry.update for entry in self._all_need(record)]
        missing = [update for update in updates if update not in node.disk.blobs]
        if missing or any(map(self._swarm.is_garbage, updates)):
            raise Violation("available", f"node {node.index} votes without the data", block)
        if record.parent != parent:
            raise Violation("ballots", f"node {node.index} votes for another chain's record", block)
        self._check_complete(node, ballot, record)

    def _check_complete(self, node: Node, ballot: Ballot, record: Record) -> None:
        parent, current = ballot.parent, node.member.parts.round
        if record.slot != ballot.slot:
            earlier = range(1, ballot.slot)
            if not any(self._may_be_quorum(parent, s, "vote", ballot.block) for s in earlier):
                text = f"node {node.index} votes for a record that names another slot"
                raise Violation("complete", text, ballot.block)
            return
        model, members = self._swarm.manifest.fault_model, len(current.membership)
        liars = (members - 1) // 3 if model == "byzantine" else 0
        if ballot.slot > 3 + liars or self._swarm.manifest.committees is not None:
            return
        until = current.start + 0.75 * node.member.parts.timeouts.collect
        said = {entry.peer: record.announcement(entry) for entry in record.updates}
        named = {entry.update for entry in record.updates}
        gone = {entry.peer for entry in record.departed if entry.reason == "silent"}
        # It is expelled, also for two announcements in an earlier round.
        gone |= {proof.peer for proof in record.evidence if proof.announcements}
        for peer, at in current.collection._arrivals.items():
            announced = self._announced.get((parent, peer), {})
            if at > until or peer in gone or peer == node.peer or len(announced) != 1:
                continue
            (own,) = announced.values()
            left_out = own.update not in named and own.fingerprint == record.fingerprint
            if left_out or (peer in said and said[peer] != own):
                text = (
                    f"node {node.index} votes for a record without what {peer.hex()[:8]} announced"
                )
                raise Violation("complete", text, ballot.block)

    def _well_founded(self, ballot: Ballot) -> bool:
        """Whether enough was ever signed for the slots before this one to end as the vote implies."""
        for slot in range(ballot.slot - 1, 0, -1):
            if self._may_be_quorum(ballot.parent, slot, "vote", ballot.block):
                return True
            if not self._may_be_quorum(ballot.parent, slot, "skip", NO_BLOCK):
                return False
        return True

    def _may_be_quorum(self, parent: RecordId, slot: int, kind: str, block: RecordId) -> bool:
        cast = self._cast.get((parent, slot, kind), {}).get(block, {})
        membership = self.chains.membership(parent)
        if not cast or membership is None:
            return False
        votes, model = self.chains.votes(parent), self._swarm.manifest.fault_model
        return may_be_quorum(model, membership, votes, cast)

    # Decisions

    def kept(self, node: Node, decided: Decided) -> None:
        """Check an entry that a node adds to its chain."""
        record = decided.record
        # A newcomer adopts no chain before it has seen its checkpoint there.
        if node.index in self.liars or not node.member.view.ledger.anchored:
            return
        where = f"record {record.round} at node {node.index}"
        judgement = self._check_entry(decided, where)
        now = self._swarm.now
        self.decisions.setdefault(record.id, []).append(now)
        if record.id not in self.decided_at:
            self.decided_at[record.id] = now
            self._check_available(decided, judgement)
        self._check_one_chain(node, record, where)
        if self.down:
            self._check_company(node, decided, where)
        ledger = node.member.view.ledger
        # Except for a member that took more for final by a lease, or because of a link.
        moved = any(note.kind == "finalized" for note in node.notes)
        known = self.chains.finality(record.id).final
        if ledger.head == record.id and not moved and ledger.final_round != known:
            raise Violation("final", f"{where}: it takes {ledger.final_round} for final", record.id)
        if ledger.head == record.id:
            self._check_audits(self.audit_invariants.compare, ledger, where)
            if record.round % _AGAIN_EVERY == node.index % _AGAIN_EVERY:
                self._check_audits(self.audit_invariants.compare_again, ledger, where)

    def _check_company(self, node: Node, decided: Decided, where: str) -> None:
        """Check that liars alone are believed only where they are a third of the members present."""
        swarm, record = self._swarm, decided.record
        membership = self.chains.membership(record.parent)
        assert membership is not None  # the chain was judged first
        signers = {swarm.number(signed.peer) for signed in decided.certificate.ballots}
        liars = sum(swarm.number(peer) in self.liars for peer in membership.peers)
        if not signers <= self.liars or node.peer not in membership or len(membership) == liars:
            return
        if node.member.parts.leave_requested:
            # It will not build on it.
            return
        since = swarm.now - swarm.manifest.rounds.lease_min_seconds
        here = {
            each.peer
            for each in swarm.alive
            if each.peer in membership
            and each.index not in self.liars
            # A process that has just been started is not a member yet.
            and each.member is not None
            and each.member.view.round >= record.round
            and each.started_at < since
            # A member that has followed the liars does not count against them.
            and not _has(each.member.view.ledger, record)
        }
        needed = least_quorum(swarm.manifest.fault_model, len(here) + liars)
        if len(here) >= needed:
            text = f"{where} is signed by liars alone, and {len(here)} others are there"
            raise Violation("liars alone", text, record.id)
        self.believed = True

    def fetched(self, node: Node, decided: Decided) -> None:
        """Check an entry that a starting node adds to its ledger, before it works on it."""
        if node.index not in self.liars:
            self._check_entry(
                decided, f"record {decided.record.round} fetched by node {node.index}"
            )

    def rebased(self, node: Node, ledger: Ledger, alone: Collection[bool] = (False, True)) -> None:
        """Check that a node may change to another chain. `alone`: whether no other member was left on
        its own chain when the comparison began, which may have changed; both values where it is
        unknown."""
        if node.index in self.liars:
            return
        ours, fork = node.member.view.ledger, 0
        while ours[fork].record.id == ledger[fork].record.id:
            fork += 1
        concerned = ours[fork].record.id, ledger[fork].record.id
        if ours.binding and fork <= self.chains.finality(ours.head).final:
            raise Violation(
                "final", f"node {node.index} goes back behind what is final", *concerned
            )
        for number in range(len(ledger)):
            self._check_entry(ledger[number], f"record {number} at node {node.index}")
        preferred = any(
            self.chains.prefers(node.peer, ours, ledger, fork, alone=each) for each in alone
        )
        newcomer = not ours.binding
        if not newcomer and not preferred:
            raise Violation(
                "fork choice", f"node {node.index} gives up the better chain", *concerned
            )

    def _check_entry(self, decided: Decided, where: str) -> Judgement:
        record = decided.record
        try:
            judgement = self.chains.add(decided)
        except ProtocolError as error:
            raise Violation("record", f"{where}: {error}", record.id) from None
        if judgement.problem:
            raise Violation("certificate", f"{where}: {judgement.problem}", record.id)
        known = self._parameters.get(record.parent)
        # Members that a cut, or so many deaths, isolate from all others believe in the end what liars
        # alone have signed; they find out when they apply it.
        honest = any(
            self._swarm.number(signed.peer) not in self.liars
            for signed in decided.certificate.ballots
        )
        believed = honest or not (self.cut or self.down)
        if known is not None and known != record.fingerprint and believed:
            raise Violation("parameters", f"{where} names others than there are", record.id)
        self._check_final(record, where)
        wrong = self.samples.check(record, self.chains)
        if wrong:
            raise Violation("samples", f"{where}: {wrong}", record.id)
        self._check_audits(self.audit_invariants.add, self.chains.ledger(record.id), where)
        return judgement

    def _check_audits(self, check: Callable[[Ledger], str], ledger: Ledger, where: str) -> None:
        wrong = check(ledger) if ledger.find(AuditLedger) is not None else ""
        if wrong:
            raise Violation("accounts", f"{where}: {wrong}", ledger.head)

    def _check_final(self, record: Record, where: str) -> None:
        """Check that each final record, on any chain, builds on the one before."""
        finality = self.chains.finality(record.id)
        final = finality.final
        if self.cut and not self._share_an_honest_one(Votes(finality.latest.weights)):
            self._premise = False
        if final < 0 or not self._premise:
            return
        block, known = self._back_to(record.id, final), self._last_final
        if known is None:
            self._last_final = block
            return
        before = self.chains.records[known].record.round
        if self._back_to(block, before) != known and self._back_to(known, final) != block:
            raise Violation("final", f"{where} shows that another record is final", block, known)
        if final > before:
            self._last_final = block

    def _back_to(self, block: RecordId, round_: int) -> RecordId:
        """Return the record of a round, or of one before it, on the chain that ends with `block`."""
        while self.chains.records[block].record.round > round_:
            block = self.chains.records[block].record.parent
        return block

    def _check_one_chain(self, node: Node, record: Record, where: str) -> None:
        siblings = self.chains.children[record.parent]
        if not self.forks_explained and self._listens(node, record):
            followed = self._followed.setdefault(record.parent, set())
            followed.add(record.id)
            if len(followed) > 1:
                raise Violation("one chain", f"{where} is another than others follow", *followed)
        if len(siblings) < 2:
            return
        votes = self.chains.votes(record.parent)
        if self.cut and not self._share_an_honest_one(votes):
            return
        full = [
            {judgement.slot for judgement in judged if not judgement.discounted}
            for judged in siblings.values()
        ]
        for one, other in itertools.combinations(full, 2):
            for slots in itertools.product(one, other):
                if self._exclude_each_other(record.parent, *slots, votes=votes):
                    text = f"{where} is not the only one decided there"
                    raise Violation("one chain", text, *siblings)

    def _exclude_each_other(self, parent: RecordId, one: int, other: int, *, votes: Votes) -> bool:
        """Whether no full quorums decide two records in these slots, one in each.

        The later one needs the earlier slot skipped. If members that were cut off did so on their own by
        calling the others silent, some of those may have joined them when they met again. Then both
        decisions have a full quorum, though the later one rests on silence.
        """
        skipped = self._cast.get((parent, min(one, other), "skip"), {}).get(NO_BLOCK, {})
        needed = least_quorum(self._swarm.manifest.fault_model, votes.total)
        return one == other or votes.among(skipped) >= needed

    def _listens(self, node: Node, record: Record) -> bool:
        """Whether a node was a member when a record was decided, and had been there for long."""
        membership = self.chains.membership(record.parent)
        assert membership is not None  # the chain was judged first
        lease = self._swarm.manifest.rounds.lease_min_seconds
        return node.peer in membership and self._swarm.now - node.started_at >= lease

    def _check_available(self, decided: Decided, judgement: Judgement) -> None:
        record, votes, needed = decided.record, judgement.votes, judgement.needed
        membership = self.chains.membership(record.parent)
        assert membership is not None  # the chain was judged first
        model = self._swarm.manifest.fault_model
        # Members that the voters called silent may have returned before the finalizes.
        for slot in range(1, decided.certificate.slot + 1):
            cast = self._cast.get((record.parent, slot, "vote"), {}).get(record.id, {})
            honest = [
                masks for peer, masks in cast.items() if self._swarm.number(peer) not in self.liars
            ]
            # Where a cut has left so many of them, liars may decide among themselves, and then no other
            # member needs to hold anything.
            if not honest and self._can_stop(votes):
                honest = [*cast.values()]
            silent = (votes.among(membership.marked(m)) for masks in honest for m in masks)
            needed = min(needed, least_quorum(model, votes.total - max(silent, default=0)))
        for entry in self._all_need(decided.record):
            holders = self._held.get(entry.update, set()) - self.liars
            held = votes.among(p for p in membership.peers if self._swarm.number(p) in holders)
            if held < needed - self._lying(votes):
                raise Violation(
                    "available",
                    f"record {decided.record.round}: an update is held by {held} votes, "
                    f"not by {needed}",
                    decided.record.id,
                    entry.update,
                )

    def _all_need(self, record: Record) -> tuple[UpdateEntry, ...]:
        """Return the updates of a record that all members need: sign votes are not among them."""
        manifest = self._swarm.manifest
        sign_votes = manifest.committees is not None and not manifest.aggregates_in(record.round)
        return () if sign_votes else record.updates

    def undecided(self, record: Record) -> None:
        """Undo a decision whose only decider died before any other member could learn of it."""
        self.chains.children[record.parent].pop(record.id, None)
        self._followed.get(record.parent, set()).discard(record.id)
        self.decided_at.pop(record.id, None)
        self.decisions.pop(record.id, None)
        if self._last_final == record.id:
            self._last_final = record.parent

    def forgets(self, node: Node) -> None:
        """Note that a node's disk is lost."""
        self.forgetful.add(node.index)
        for holders in self._held.values():
            holders.discard(node.index)

    def holds(self, node: Node, update: ContentId) -> None:
        """Note that a node has an update on its disk."""
        self._held.setdefault(update, set()).add(node.index)
        parent = self._update_of.get(update)
        if parent is not None and node.index not in self.liars:
            self.holders.setdefault(parent, {})[node.peer] = self._swarm.now

    # Applied records

    def applying(self, node: Node, effect: Apply) -> None:
        """Check a record that a node is about to apply."""
        if node.index in self.liars:
            return
        needed = [each.entry for each in effect.needed]
        weights = {each.entry.peer: each.update_weight for each in effect.needed}
        # An update that counts is in the parameters, even if a member that copied it announced it first.
        listed = any(
            weights[entry.peer] > 0 and (entry.peer == node.peer or entry.update in node.disk.made)
            for entry in needed
        )
        # A node forgets its own updates of rounds before a restart; none of them are under way.
        told = effect.own_counted or effect.record.round in node.trainer.sent
        if told and listed != effect.own_counted:
            raise Violation(
                "refund", f"node {node.index} mistakes whether its update counts", effect.record.id
            )
        listed_weights = tuple(weights.get(entry.peer, 0) for entry in effect.record.updates)
        if listed_weights != self.chains.update_weights(effect.record):
            raise Violation(
                "counts", f"node {node.index} hears somebody as it should not", effect.record.id
            )
        missing = [entry for entry in needed if entry.update not in node.disk.blobs]
        if missing:
            raise Violation(
                "available", f"node {node.index} applies what it lacks", effect.record.id
            )

    def applied(self, node: Node, record: Record, fingerprint: int) -> None:
        """Check the parameters of a node that has applied a record."""
        if node.index in self.liars:
            return
        known = self._parameters.setdefault(record.id, fingerprint)
        if known != fingerprint:
            raise Violation(
                "parameters",
                f"node {node.index} has other parameters after round {record.round}",
                record.id,
            )
        if not node.trainer.balanced:
            raise Violation("refund", f"node {node.index} lost a gradient", record.id)

    # Memory

    def stirred(self, node: Node) -> None:
        """Note that a node has received something."""
        self._stirs += 1
        if self._stirs % _MEMORY_EVERY == 0 and node.index not in self.liars:
            self.check_memory(node)

    def check_memory(self, node: Node) -> None:
        """Check the amount of data that a member keeps of others."""
        member = node.member
        members = len(member.view.members)
        mailbox = member.parts.messages
        agreement = member.parts.round.consensus
        counts = {
            # Own messages about a chain that was left may concern later rounds.
            "rounds in the mailbox": (
                sum(any(e.sender != node.peer for e in box) for box in mailbox._rounds.values()),
                FUTURE_ROUNDS + 2,
            ),
            "bytes of one sender": (max(mailbox._bytes.values(), default=0), MEMBER_BYTES),
            "slots": (len(agreement._slots), agreement.slot + SLOT_WINDOW),
            "requests for admission": (len(member.parts.joins._waiting), 1024),
            "announcements": (len(member.parts.round.collection.announcements()), members),
            "updates held": (
                len(member.parts.held_updates.held),
                # A member that changed to a shorter chain has applied more rounds than there are.
                (members + 2) * (2 + max(0, member.view.round - max(0, member.view.applied_round))),
            ),
        }
        for what, (count, bound) in counts.items():
            if count > bound:
                raise Violation("memory", f"node {node.index} keeps {count} {what}", node.index)

    # At the end

    def expected(self, peer: PeerId) -> bool:
        """Whether this is a peer that should be a member in the end."""
        number = self._swarm.number(peer)
        return number is not None and number not in self.liars


def _has(ledger: Ledger, record: Record) -> bool:
    return record.round < len(ledger) and ledger.parent(record.round + 1) == record.id
