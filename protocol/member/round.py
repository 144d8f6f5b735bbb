"""The round at the tip of the ledger: from the first update to the decided record.

It combines the rules of consensus with what this member holds, receives and can check, and with the
clock: when to propose, what to vote for, when to give up on a leader. The member that owns it signs and
sends the resulting messages.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.beacon import check_commitment
from ..chain.certificates import check_certificate, silenced
from ..chain.consensus import Consensus
from ..chain.departures import allows_leave
from ..chain.ledger import Ledger
from ..chain.record_checks import check_record
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.membership import quorum
from ..wire.messages import (
    NO_BLOCK,
    Announcement,
    Ballot,
    BallotKind,
    Certificate,
    Decided,
    Leave,
    Message,
    Proposal,
    Record,
    RecordId,
    UpdateEntry,
)
from .beacon_secrets import BeaconSecrets
from .capacity import Capacity
from .completeness import ProposalReview
from .effects import Note
from .liveness import Liveness
from .member_part import MemberPart
from .proposal import Accusations, JoinRequests, compose_record
from .round_io import NOTHING, RoundInput, RoundRequests, sending
from .round_peers import RoundPeers
from .solo_quorum_guard import SoloQuorumGuard
from .timeouts import RoundTimeouts
from .update_collection import RoundUpdates

# Part of the slot's time that a leader waits for the decision before it proposes a certified block
# again: usually the finalizes are already under way.
_REPEAT_PATIENCE = 0.25
# Part of the slot's time that is granted to a leader whose connection broke.
_MISSING_PATIENCE = 0.25
# How long a decision is doubted while other members that are a quorum without its signers seem to be at
# work: in leases (the time for which a member may go unheard), or in collect deadlines (the time for
# which a leader waits for updates) if those are longer. (A member that was just started has observed
# neither, and uses the manifest's limits.) The time is long, because with members coming and going the
# others take minutes to decide, and a member that followed a liar in the meantime does not help them.
_DOUBTED_LEASES = 16
# Number of leases for which a member listens, at the beginning of a round and before it decides alone:
# in this time it hears all members at work on the round.
_LISTENED_LEASES = 1
# Number of leases after which a round without any member at work counts as abandoned: a member that was
# cut off only for a moment is heard again sooner.
_ABANDONED_LEASES = 2
# Time to wait for an own announced update: after a restart it is on this node's disk, or is lost.
_OWN_SECONDS = 1.0


@dataclass(kw_only=True)
class RoundContext:
    """What a member's rounds have in common. It outlasts each of them."""

    manifest: Manifest
    me: PeerId
    ledger: Ledger
    """The chain that the member follows. It is replaced if the member switches to another chain."""
    liveness: Liveness
    timeouts: RoundTimeouts
    joins: JoinRequests
    accusations: Accusations
    secrets: BeaconSecrets
    features: tuple[MemberPart, ...]
    solo_guard: SoloQuorumGuard
    began: float
    """When the member started."""
    last_undoubted: float = float("-inf")
    """When a round was last decided in the member's presence without any reason for doubt; -inf if none
    was."""


class Round:
    """One member's view of one round. All times are seconds of any steady clock."""

    def __init__(self, context: RoundContext, now: float) -> None:
        """Begin the round at the tip of the context's ledger."""
        manifest, ledger, me = context.manifest, context.ledger, context.me
        self.number = len(ledger)
        self.parent = ledger.head
        self.membership = ledger.membership(self.number)
        self.votes = ledger.votes(self.number)
        self._trains = manifest.schedule.trains(self.number)
        # Whether a member votes only for a record whose updates it holds. With committees, a step takes
        # two rounds: in the first, members send sign votes, which only aggregators need; in the second,
        # aggregators send aggregates, which all members need.
        self._needs_updates = manifest.rounds_per_step == 1 or manifest.aggregates_in(self.number)
        # `_due`: whose update is due by the assignment; `_contributors`: those that are still members,
        # whose updates are awaited. With `overlap`, a new member has no share yet; a member that needs
        # several rounds for one share has nothing to announce in most rounds.
        self._due = ledger.assignments.due(self.number) if self._trains else frozenset()
        self._contributors = {peer for peer in self.membership.peers if peer in self._due}
        others = self.votes.held_by({*self.membership.peers} - {me})
        self.collection = RoundUpdates(others, shared=manifest.aggregates_in(self.number))
        self.consensus = Consensus(
            swarm=manifest.swarm,
            round=self.number,
            parent=self.parent,
            membership=self.membership,
            votes=self.votes,
            model=manifest.fault_model,
            me=me,
            leaders=ledger.leaders(self.number),
        )
        self.created = now
        """Time when the round before was decided."""
        self.start = now
        """Time when the member could begin to work on this round."""
        self.ready_since: float | None = None
        """Time since which the round need not wait for more updates; None until then."""
        self.snapshot_ahead = False
        """Whether a later record was seen that names a snapshot with this round in it: then its updates
        may be gone, and are not needed."""
        self.kept: Decided | None = None
        """A decision of others that this member may follow once it has listened for long enough, or
        holds its updates."""
        self._context = context
        self._manifest = manifest
        self._ledger = ledger
        self._me = me
        self._liveness = context.liveness
        self._timeouts = context.timeouts
        self._slot_entered = now
        # The silence mask without any member, and the one in the ballots sent last.
        self._nobody = self._mask = self.membership.mask(())
        self._checked: dict[RecordId, bool] = {}
        # The signed proposals of known records, and the records whose proposal was stored on disk.
        self._signed_proposals: dict[RecordId, Envelope] = {}
        self._remembered: set[RecordId] = set()
        # The updates that were requested because a proposal needs them.
        self._requested: set[ContentId] = set()
        self._review = ProposalReview(
            manifest.fault_model, me, self.membership, self._contributors, self.collection
        )
        self._round_peers = RoundPeers(self.number, self.parent, now)
        self._solo_guard = context.solo_guard
        # Whether this member could decide without the others, and must beware of it: while it was away,
        # they may have declared all members with votes silent and gone on with one vote each
        # (`solo_quorum_guard`). There is no such risk in a swarm of one or with equal votes.
        no_risk = len(self.membership) == 1 or self.votes.equal
        self._can_decide_alone = not no_risk and self.votes.decides_alone(me, manifest.fault_model)

    def step(self, round_input: RoundInput, now: float) -> RoundRequests:
        """Return the next actions that the rules and the clock require, if any."""
        consensus = self.consensus
        if consensus.advance():
            self._slot_entered = now
        # The others do not count a member that has taken leave, so it must not send ballots as well.
        if self._me not in self.membership or self._me in self._liveness.leaving():
            return NOTHING
        if self._ledger.finished or self.listens(now):
            return NOTHING
        certificates = consensus.finalizable()
        if certificates:
            return self._finalize(certificates, now)
        if round_input.fingerprint is None:
            return NOTHING
        if self.ready_since is None and self._is_ready(now):
            self.ready_since = now
        return (
            self._resend(now)
            or self._propose(round_input, now)
            or self._vote(round_input, now)
            or self._skip(now)
        )

    def take(self, envelope: Envelope, message: Message, held: Set[ContentId], now: float) -> None:
        """Handle a message of this round, or a leave sent in the one before. `held` are the updates that
        this member holds.

        Raises `ProtocolError` for a message that its sender may not send.
        """
        sender = envelope.sender
        if self._ledger.finished:
            raise ProtocolError("other_round", "the run has ended")
        if isinstance(message, Announcement) and not self._trains:
            raise ProtocolError("other_round", f"no updates are due in round {self.number}")
        if isinstance(message, Announcement):
            if sender not in self.membership:
                raise ProtocolError("not_member", "an update by a non-member")
            if sender not in self._due:
                raise ProtocolError("not_due", "an update by a member without an assignment")
            # With an invalid commitment the leader would propose a record that no member may vote for.
            check_commitment(message.commitment, self._ledger.manifest)
            if not self.collection.announce(sender, message, envelope.signature, now):
                raise ProtocolError("equivocation", "a second update for one round")
            if message.update in held:
                self.collection.held(message.update, now)
        elif isinstance(message, Leave):
            if not allows_leave(self._ledger, message.round, sender):
                raise ProtocolError(
                    "not_member", "a leave by a peer that has no membership to leave"
                )
            self._liveness.note_leave(sender, message, envelope.signature)
        elif isinstance(message, Proposal):
            self.consensus.add_proposal(sender, message.slot, message.record)
            self._review.note_proposal(message.slot, now)
            if sender != self._me and message.record.id in self.consensus.records:
                self._signed_proposals.setdefault(message.record.id, envelope)
        elif isinstance(message, Ballot):
            kind: BallotKind = envelope.kind  # type: ignore[assignment]  # ballots have these kinds
            self.consensus.add_ballot(kind, sender, message, envelope.signature)

    def awaits(self, peer: PeerId) -> bool:
        """Whether `peer` is a member whose update is due in the round."""
        return peer in self._contributors

    def missing(self, record: Record, held: Set[ContentId]) -> list[UpdateEntry]:
        """Return the updates that are needed to apply a record of this round and that are not `held`."""
        needed = record.updates if self._needs_updates else ()
        return [entry for entry in needed if entry.update not in held]

    def note_activity(self, sender: PeerId, message: Message, now: float) -> None:
        """Note whether the sender of a message works on this round or a later one."""
        self._round_peers.note_activity(sender, message, now)

    def binds(
        self, certificate: Certificate, *, leaving: bool, lacks: bool = False, now: float
    ) -> bool:
        """Whether this member follows a decision. A member that has taken leave (`leaving`) always does.
        `lacks`: whether this member, at the tip, lacks updates of the record.

        A decision is doubted if byzantine members alone could have signed it (`Consensus.doubts`). The
        member does not follow a doubted decision while other members, which can decide without its
        signers, are at work on this very round or went on from another record. They will decide unless
        some are faulty, so the member waits for them for a bounded time only; a peer that is no member
        in this round, and so has no ballot to cast, waits as long as they are at work. Before following
        any doubted decision it listens: for a lease at the beginning of the round, in which it has not
        heard anyone yet, and as long as `listens` says.

        A doubted decision whose updates it `lacks` is not followed at once either. Any other certificate
        shows that honest members hold the updates; here nobody else may ever get them, and a member that
        had followed could never apply the record. A member that could decide alone follows at once,
        because it would decide against the others.

        It follows a decision that declares it silent only if its last undoubted round, if any, is more
        than a lease ago.
        """
        if certificate.round != self.number or leaving:
            return True
        lease = self._timeouts.lease
        doubted = self.consensus.doubts(certificate)
        if doubted and now - max(self._context.began, self.created) <= _LISTENED_LEASES * lease:
            return False
        if doubted and self.listens(now):
            return False
        waited = now - max(self._context.began, self._context.last_undoubted)
        if doubted and self._can_do_without(certificate, now):
            patience = _DOUBTED_LEASES * max(lease, self._timeouts.collect)
            if self._me not in self.membership or waited <= patience:
                return False
        if doubted and lacks and not self._can_decide_alone and waited <= _DOUBTED_LEASES * lease:
            return False
        return now - self._context.last_undoubted > lease or not self.consensus.accused_by(
            certificate
        )

    def listen(self, now: float) -> None:
        """Note whether any other member was heard within a lease, if this member could decide alone."""
        if self._can_decide_alone:
            silent = self._liveness.silent(self._timeouts.lease, now)
            self._solo_guard.note_others(len(silent) < len(self.membership) - 1, now)

    def listens(self, now: float) -> bool:
        """Whether this member could decide alone, and is still finding out whether the others went on
        without it (`solo_quorum_guard`)."""
        return self._can_decide_alone and self._solo_guard.continues(
            _LISTENED_LEASES * self._timeouts.lease, now
        )

    def keep(self, decided: Decided, *, lacks: bool, now: float) -> None:
        """Keep a decision that does not bind this member while it `listens`, or only because it `lacks`
        updates; of several decisions, the one with the most signers. The peers that have it may be out
        of reach once it binds.

        Raises `ProtocolError` if its certificate is invalid.
        """
        signers = len(decided.certificate.ballots)
        known = len(self.kept.certificate.ballots) if self.kept else 0
        if signers <= known or not (lacks or self.listens(now)):
            return
        # The updates of each are fetched: twice as many signers, so that these are few.
        if lacks and signers < 2 * known:
            return
        check_certificate(
            decided.certificate,
            kind="finalize",
            swarm=self._manifest.swarm,
            round=self.number,
            parent=self.parent,
            block=decided.record.id,
            membership=self.membership,
            votes=self.votes,
            model=self._manifest.fault_model,
            verify=self._ledger.verify,
        )
        if self.allows(decided):
            self.kept = decided

    def is_abandoned(self, now: float) -> bool:
        """Whether no other member was heard working on this round for two leases."""
        heard = self._round_peers.last(self.membership)
        return now - heard > _ABANDONED_LEASES * self._timeouts.lease

    def observe(self, certificate: Certificate, capacity: Capacity, now: float) -> None:
        """Report the times of this round to timeouts and `capacity`. Call it only if this member was at
        the tip when the round was decided."""
        if self._manifest.aggregates_in(self.number):
            # No member trains in this round: deadlines derived from it would be too short for rounds of
            # training.
            return
        last = self.collection.last_announced
        if last is not None and not self._manifest.rounds.overlap:
            # From the last announcement to the decision no member computes anything.
            capacity.exchanged(now - last)
        # A member counts as silenced only if the masks of all signers name it: a single one may be a
        # liar's.
        undisturbed = not silenced(certificate, self.membership)
        # Round 0 lasts until enough members are there; a round without training waits for no updates.
        if self.ready_since is not None and undisturbed and self._trains:
            self._timeouts.record_round(
                arrivals=self.collection.arrivals(self.start),
                members=len(self._contributors),
                decision=now - self.ready_since,
                total=now - self.created,
            )

    def allows(self, decided: Decided) -> bool:
        """Whether the chain allows an entry for this round, apart from its certificate's signatures."""
        return decided.record.slot <= decided.certificate.slot and self.is_valid(decided.record)

    def is_valid(self, record: Record) -> bool:
        """Whether the chain allows `record` for this round."""
        if record.id not in self._checked:
            self._checked[record.id] = self._check(record)
        return self._checked[record.id]

    def _can_do_without(self, certificate: Certificate, now: float) -> bool:
        """Whether the members at work on this very round, and those that went on from another record
        than the certified one, are a quorum without the certificate's signers.

        It is a quorum of the members present, signers included, not of all members: absent members take
        neither side, and neither does this member if it could decide alone and was away.
        """
        signers = {signed.peer for signed in certificate.ballots}
        working = self._working(now, replacing=certificate.block)
        others = working - signers
        if self._can_decide_alone and not self._solo_guard.in_touch and others <= {self._me}:
            return False
        votes = self.votes.held_by(working | signers)
        return votes.among(others) >= quorum(self._manifest.fault_model, votes.total)

    def _among_peers(self, now: float) -> bool:
        """Whether a quorum of all members, this one included, is at work on this very round."""
        working = self.votes.among(self._working(now))
        return working >= quorum(self._manifest.fault_model, self.votes.total)

    def _working(self, now: float, *, replacing: RecordId | None = None) -> set[PeerId]:
        """Return the members, this one included, that worked on this very round within a lease and have
        not taken leave; with `replacing`, also those that went on from another record than this one."""
        working = self._round_peers.within(self._timeouts.lease, now, replacing=replacing) | {
            self._me
        }
        return working.intersection(self.membership.peers) - self._liveness.leaving()

    # What a member may send

    def _resend(self, now: float) -> RoundRequests:
        """Repeat ballots with the current silence mask if it changed: quorums shrink as silence is
        noticed."""
        mask = self._silence_mask(now)
        if mask == self._mask:
            return NOTHING
        self._mask = mask
        return sending(
            *(
                self._ballot(kind, slot, block, now)
                for kind, slot, block in self.consensus.pending_ballots()
            )
        )

    def _finalize(self, certificates: list[Certificate], now: float) -> RoundRequests:
        """Finalize the certified blocks, and store the votes for them first. Otherwise the certificates
        would be lost if all members were restarted, and a liar whose vote completed one could withhold
        it from then on."""
        step = sending(
            *(self._ballot("finalize", each.slot, each.block, now) for each in certificates)
        )
        swarm = self._manifest.swarm
        step.remember += [
            Envelope(
                kind=each.kind,
                swarm=swarm,
                sender=signed.peer,
                body=encode(each.ballot(signed)),
                signature=signed.signature,
            )
            for each in certificates
            for signed in each.ballots
            if signed.peer != self._me
        ]
        return step

    def _propose(self, round_input: RoundInput, now: float) -> RoundRequests:
        if not self.consensus.may_propose():
            return NOTHING
        record: Record | None = None
        repeat, slot = self.consensus.repeatable(), self.consensus.slot
        if repeat is not None:
            patience = self._timeouts.slot(slot) * _REPEAT_PATIENCE
            if now >= self._slot_entered + patience:
                record = self.consensus.records.get(repeat)
        elif self.ready_since is None or round_input.fingerprint is None:
            return NOTHING
        elif self._review.may_propose(slot, self._slot_entered, self._timeouts, now):
            record = compose_record(
                manifest=self._manifest,
                ledger=self._ledger,
                fingerprint=round_input.fingerprint,
                slot=slot,
                updates=self.collection.entries(round_input.fingerprint),
                joins=self._context.joins,
                accusations=self._context.accusations,
                secrets=self._context.secrets,
                features=self._context.features,
                liveness=self._liveness,
                lease=self._timeouts.lease,
                snapshot=round_input.snapshot,
                now=now,
            )
        if record is None:
            return NOTHING
        return sending(("proposal", Proposal(slot, record)))

    def _vote(self, round_input: RoundInput, now: float) -> RoundRequests:
        record, slot = self.consensus.votable(), self.consensus.slot
        if record is None or slot in self._review.refused:
            return NOTHING
        new = record.id not in self._checked
        if not self.is_valid(record) or record.snapshot != round_input.snapshot:
            return NOTHING
        if record.fingerprint != round_input.fingerprint:
            notes = [
                Note("mismatch", self.number, None, "the proposal is for different parameters")
            ]
            return RoundRequests([], notes if new else [], [])
        accused = {entry.peer for entry in record.departed if entry.reason == "silent"}
        # A certified block must be repeated until it is decided. A quorum has judged it and agreed on
        # who is silent; if accused members that are heard again blocked it, the round would never end.
        certified = self.consensus.certified(record.id)
        if not certified and not accused <= self._liveness.silent(self._timeouts.lease, now):
            return NOTHING
        # `is_complete` may refuse the slot.
        ready, times = self.ready_since is not None, (self.start, self._timeouts, now)
        complete = certified or self._review.is_complete(record, slot, *times, ready=ready)
        if slot in self._review.refused:
            return RoundRequests(
                [], [Note("incomplete", self.number, self.consensus.leader(slot))], []
            )
        missing = self.missing(record, round_input.held)
        if not missing and complete:
            step = sending(self._ballot("vote", slot, record.id, now))
            # Store the proposal: if every member that received it were restarted and its leader's disk
            # were lost, the certified record could not be repeated, and the round would never end.
            proposal = self._signed_proposals.get(record.id)
            if proposal is not None and record.id not in self._remembered:
                self._remembered.add(record.id)
                step.remember.append(proposal)
            return step
        unasked = [entry for entry in missing if entry.update not in self._requested]
        self._requested |= {entry.update for entry in unasked}
        return RoundRequests([], [], unasked)

    def _skip(self, now: float) -> RoundRequests:
        slot = self.consensus.slot
        deadline = self._slot_deadline(now)
        refused = slot in self._review.refused and self.ready_since is not None
        late = now >= deadline or refused or self.consensus.hopeless()
        # A slot before this one may lack a certificate of skips (`gap`): skip that slot first.
        gap = self.consensus.gap() if late else None
        if gap is not None:
            return sending(self._ballot("skip", gap, NO_BLOCK, now))
        if not late or not self.consensus.may_skip():
            # Long after our own skip, the others are probably in another slot, so accept even a doubted
            # certificate as a reason to leave this one (`concede`). But if a quorum seems to work on
            # this round, first wait until every member's timer must have run out (timers differ, because
            # a restarted member does not know the swarm's pace): the quorum may need this member in this
            # slot.
            lease, longest = self._timeouts.lease, self._manifest.rounds.slot_max_seconds
            waited = now - deadline
            if waited >= min(lease, longest) and waited >= (
                longest if self._among_peers(now) else lease
            ):
                self.consensus.concede()
            return NOTHING
        step = sending(self._ballot("skip", slot, NO_BLOCK, now))
        if not refused:
            step.notes.append(Note("skipped", self.number, self.consensus.leader(slot)))
        return step

    def _ballot(
        self, kind: BallotKind, slot: int, block: RecordId, now: float
    ) -> tuple[str, Message]:
        return kind, Ballot(self.number, self.parent, slot, block, self._silence_mask(now))

    # What the round is waiting for

    def _silence_mask(self, now: float) -> bytes:
        # Called for every message, so the usual case (no member is gone) must be fast.
        gone = self._liveness.silent(self._timeouts.lease, now) | self._liveness.leaving()
        return self.membership.mask(gone - {self._me}) if gone else self._nobody

    def _is_ready(self, now: float) -> bool:
        """Whether the round need not wait for more updates: all expected ones are held, or the deadline
        has passed and one has arrived. Round 0 waits for members instead."""
        if self.number == 0:
            waiting = len(self._context.joins.admissible(self._manifest, self._ledger, now))
            return waiting + 1 >= self._manifest.rounds.start_members
        liveness = self._liveness
        silent = liveness.silent(self._timeouts.lease, now)
        gone = silent | liveness.leaving() | liveness.missing(now)
        # This is called for every message, and the code after the next test takes time linear in the
        # number of members. The 1 is this member's own update, which possibly is not awaited (below).
        overdue = now >= self.start + self._timeouts.collect
        if not overdue and self.collection.settled + len(gone) + 1 < len(self._contributors):
            return False
        # Others may hold an announced update even if its author is gone.
        gone = {peer for peer in gone if peer in silent or not self.collection.announced(peer)}
        expected = self._contributors - gone
        if self.collection.announced(self._me) and now >= self.start + _OWN_SECONDS:
            expected.discard(self._me)
        outstanding = self.collection.outstanding(expected)
        earliest = self.start + self._manifest.rounds.min_seconds
        if now < earliest or (self.collection.last_arrival is None and outstanding):
            return False
        return not outstanding or overdue

    def _slot_deadline(self, now: float) -> float:
        """Return when to give up on the current slot."""
        if self.number == 0 or self.ready_since is None:
            return float("inf")
        leader = self.consensus.leader(self.consensus.slot)
        begin = max(self._slot_entered, self.ready_since)
        if leader in self._liveness.silent(self._timeouts.lease, now) | self._liveness.leaving():
            return begin
        patience = self._timeouts.slot(self.consensus.slot)
        if leader in self._liveness.missing(now):
            patience *= _MISSING_PATIENCE
        return begin + patience

    def _check(self, record: Record) -> bool:
        try:
            check_record(record, self._ledger, self._ledger.verify)
        except ProtocolError:
            return False
        return record.round == self.number and record.parent == self.parent
