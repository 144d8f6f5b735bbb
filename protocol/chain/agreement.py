"""Simplex for one round: which record is the round's.

After Chan & Pass, "Simplex Consensus" (TCC 2023, eprint 2023/463), with one block to decide instead of
a chain of them. The rules:

1. A round has slots 1, 2, 3 …; in each another member leads, in an order that nobody chooses
   (`leaders`).
2. The leader of the current slot proposes. A proposal is *well founded* if it repeats the block that
   was certified in an earlier slot s, or is fresh (s = 0), and every slot between s and its own was
   skipped by a quorum.
3. A member votes at most once a slot, for a well founded proposal of the slot's leader that it finds
   acceptable, and only while it is in that slot.
4. When its timer runs out, or so many have skipped that the slot cannot decide any more, a member skips
   it. It may have voted before.
5. A quorum of votes certifies a block, a quorum of skips ends a slot; either takes a member into the
   next slot. It finalizes a certified block unless it skipped that slot, and never skips a slot that
   it has finalized.
6. A quorum of finalizes decides.

*Why two records cannot be decided.* Let B be finalized by a quorum in slot s. Any quorum of skips for s
shares an honest member with it, who would have both finalized and skipped s: rule 5 forbids it. So no
later slot is well founded without B, and no other block is certified in s, since two quorums of votes
share an honest member and rule 3 forbids that. (In the model `crash` nobody lies, and majorities share
a member.) Where members have different numbers of votes, quorums, and what liars have, are counted in
these, and the argument is the same.

*Why it goes on.* In a slot with an honest leader and timely messages nobody skips, so its proposal is
certified, finalized by all and decided. Leaders take turns, and slots grow longer.

*What a quorum is.* Each ballot carries a mask of the members that its sender has not heard for a lease.
A certificate is valid with a quorum of the members that its signers do not *all* call silent
(`certificates`), or volunteers could not close their laptops. Two quorums then still share an honest
member as long as each has an honest signer that hears all honest members: it keeps them in the count,
and only the dead and the lying are left out. Two sides that cannot hear each other for a lease break
that premise and decide two chains. That is wanted, and `fork` chooses one.

*Which certificates are doubted.* Liars need not hear anybody: by calling nearly all silent they are a
quorum by themselves. So a member doubts a certificate if its signers have no more votes than liars may
have, itself not among them: one of heirs, who have none, in any case. Somebody honest, or the member
itself, has signed all else that it takes for certified or skipped, and the arguments above hold. A
doubted certificate of votes or skips is set aside. This stops nobody: with the member's own ballot, or
one more, it is no longer doubted, and a member that has skipped a slot leaves it by a doubted one in the
end (`concede`). Whether a doubted decision binds depends on whom the member hears; the round judges that
(`Round.binds`).

*Why a restart changes nothing.* Rules 3 and 5 are about all that a member ever signed, so each ballot
is on its disk before it is sent, with the proposal that it votes for. A node that lost this memory asks
the others first (`vote_recovery`); if nobody within reach remembers, it may contradict itself, and then
counts among the liars of the premise. With its finalize go the votes on which it was cast: who has
finalized a block cannot skip the slot any more, and if a liar kept its vote back there would be no
certificate to go on from. A slot whose certificate of skips is lost is skipped anew (`gap`).

*What becomes of a member that contradicts itself.* Two ballots of one slot that rules 3 and 5 forbid
together (`RULED_OUT`) are a proof that anybody can check; it is kept here, gossiped, and expels its
signer by the next record (`evidence`). Meanwhile both ballots count where others cast the same, since
some may hold a certificate by either: the argument above allows for that, as it counts on honest
signers alone.

This class keeps the ballots and knows what the rules allow; when to use them (timers, what is
acceptable, what is held) is the member's business.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from ...crypto.identity import PeerId
from ..wire.errors import ProtocolError
from ..wire.membership import FaultModel, Membership, Votes, most_liars, quorum
from ..wire.messages import (
    NO_BLOCK,
    Ballot,
    BallotKind,
    Certificate,
    Evidence,
    Record,
    RecordId,
    SignedBallot,
    Testimony,
)
from .certificates import disinherits, find_quorum, silenced, weigh
from .evidence import RULED_OUT, accuse, contradict
from .leaders import Leaders

SLOT_WINDOW = 32
"""Ballots for slots further ahead than this are refused: they bound what a peer can make us keep."""

# A member casts the same ballot again when somebody falls silent or is heard again.
_MAX_MASKS = 16

# How `Agreement` prefers certificates: what is neither doubted nor calls this member silent.
_BEST = (False, False)

# A member's ballots of one kind for one block, by mask: it signed them all.
_Versions = dict[bytes, SignedBallot]


@dataclass
class _Tally:
    """The ballots of one kind for one block of a slot."""

    cast: dict[PeerId, _Versions] = field(default_factory=dict)
    silent: dict[PeerId, int] = field(default_factory=dict)
    """The most votes that each signer calls silent: it bounds how small a quorum can be. Of those who
    have none themselves, and could be heirs, the most heads."""
    tried: tuple[int, int] = (0, 0)
    """How large a certificate was looked for, of votes and of heirs; where no more can have signed one,
    none is."""
    settled: bool = False
    """Whether there is a certificate that is not doubted and does not call this member silent."""

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.cast


@dataclass
class _SlotState:
    proposal: RecordId | None = None
    # Ballots by kind, then by block: almost always a single block.
    ballots: dict[BallotKind, dict[RecordId, _Tally]] = field(
        default_factory=lambda: {"vote": {}, "skip": {}, "finalize": {}}
    )
    certificates: dict[BallotKind, Certificate] = field(default_factory=dict)
    decision_preference: tuple[bool, bool] = (True, True)
    """Of the certificate of finalizes, if there is one."""


class Agreement:
    """The state of one round's agreement, as one member (or an observer) sees it."""

    def __init__(
        self,
        *,
        swarm: bytes,
        round: int,
        parent: RecordId,
        membership: Membership,
        votes: Votes,
        model: FaultModel,
        me: PeerId,
        leaders: Leaders | None = None,
    ) -> None:
        """`leaders`: as the chain says; by default as one says by which nobody is passed over."""
        self.round = round
        self.parent = parent
        self.membership = membership
        self.votes = votes
        self.slot = 1
        """The slot that this member is in."""
        self.records: dict[RecordId, Record] = {}
        """Proposed records by id."""
        self.contradictions: dict[PeerId, Evidence] = {}
        """Members that contradicted themselves in this round, each with a proof of it."""
        self._model: FaultModel = model
        self._me = me
        self._leaders = leaders or Leaders(swarm, round, membership, votes)
        self._slots: dict[int, _SlotState] = {}
        # Where votes are certified, and the last slot that has ended: asked for with every message.
        self._certified: dict[int, Certificate] = {}
        self._ended = 0
        # Certificates of votes and skips that liars may have signed alone.
        self._doubted: dict[tuple[BallotKind, int], Certificate] = {}

    # What arrives

    def add_proposal(self, sender: PeerId, slot: int, record: Record) -> None:
        """Take in a proposal. Raises `ProtocolError` as `check_proposal` does.

        Keeps the first of several proposals for one slot. Members vote for a block, so a leader that
        tells different members different things only wastes its slot.
        """
        self.check_proposal(sender, slot, record)
        state = self._state(slot)
        if state.proposal is None:
            state.proposal = record.id
        self.records[record.id] = record

    def check_proposal(self, sender: PeerId, slot: int, record: Record) -> None:
        """Check that there is a use for a proposal. Raises `ProtocolError`.

        A second one for a slot is only wanted if somebody has voted for it: else a leader could make
        everybody pass on as many as it likes, of the greatest length.
        """
        self._check_slot(slot)
        if sender != self.leader(slot):
            raise ProtocolError(
                "not_leader", f"a proposal for slot {slot} from another than its leader"
            )
        known = self._slots[slot].proposal if slot in self._slots else None
        if known not in (None, record.id) and not self._wanted(record.id):
            raise ProtocolError("equivocation", f"a second proposal for slot {slot}")

    def add_ballot(
        self, kind: BallotKind, sender: PeerId, ballot: Ballot, signature: bytes
    ) -> None:
        """Take in a ballot whose signature was checked. Raises `ProtocolError` if it makes no sense."""
        self._check_slot(ballot.slot)
        if sender not in self.membership:
            raise ProtocolError("not_member", "a ballot from somebody who is no member")
        silent = self.membership.bits(ballot.silent)
        if silent & self.membership.bit(sender):
            raise ProtocolError("invalid", "a ballot that calls its own sender silent")
        if (kind == "skip") != (ballot.block == NO_BLOCK):
            raise ProtocolError("invalid", f"a {kind} with the wrong kind of block")
        state = self._state(ballot.slot)
        by_block = state.ballots[kind]
        contradiction = self._find_contradiction(
            sender, state, ballot.slot, Testimony(kind, ballot.block, ballot.silent, signature)
        )
        # A liar gives one ballot to some and another to others, who may have a certificate by it. They
        # must come to the same end; so its ballots count wherever somebody else cast the same.
        backed = ballot.block in by_block and by_block[ballot.block].cast.keys() - {sender}
        if contradiction and not backed:
            raise ProtocolError("equivocation", contradiction)
        # The same ballot with another mask (silence is noticed over time) stands beside the first:
        # members that heard them in another order, or not all, must come to the same end.
        tally = by_block.setdefault(ballot.block, _Tally())
        if sender == self._me or sender in tally.cast:
            # A certificate of the same size with the own ballot, or another mask, may do better.
            tally.tried = (0, 0)
        if self.votes[sender]:
            called = weigh(silent, self.membership, self.votes)
            tally.silent[sender] = max(tally.silent.get(sender, 0), called)
        elif disinherits(ballot.silent, self.membership, self.votes):
            tally.silent[sender] = max(tally.silent.get(sender, 0), silent.bit_count())
        versions = tally.cast.setdefault(sender, {})
        versions[ballot.silent] = SignedBallot(sender, ballot.silent, signature)
        if len(versions) > _MAX_MASKS:
            del versions[next(iter(versions))]
        self._certify(kind, ballot.slot, ballot.block, tally)

    def concede(self) -> None:
        """Leave the current slot, which this member has skipped, by a certificate that it doubted.

        For a member that hears no quorum at work: the signers may be honest, all that are left, and in
        a later slot where they need this member. If they lie, nothing is lost: if a quorum finalizes a
        block in this slot, the others, liars included, are no quorum and certify nothing else, whatever
        liars make them believe; and this member's skip counts here whatever slot it is in.
        """
        known = self._state(self.slot).certificates
        for kind in ("vote", "skip"):
            certificate = self._doubted.get((kind, self.slot))
            if certificate is not None and kind not in known and self._cast("skip", self.slot):
                self._end_slot(certificate)

    # What the rules allow

    def leader(self, slot: int) -> PeerId:
        """Who leads a slot."""
        return self._leaders[slot]

    def advance(self) -> bool:
        """Enter the slot after the last one that is certified or skipped. Returns whether it moved.

        A member that missed certificates in between may not vote until it has them (rule 2), but it
        need not go through those slots.
        """
        if self._ended < self.slot:
            return False
        self.slot = self._ended + 1
        return True

    def repeatable(self) -> RecordId | None:
        """The block that a proposal in the current slot must repeat; None if it may be fresh."""
        founded = self._founded()
        return founded[0] if founded and founded[0] is not None else None

    def certified(self, block: RecordId) -> bool:
        """Whether a quorum has voted for `block` in some slot."""
        return any(certificate.block == block for certificate in self._certified.values())

    def may_propose(self) -> bool:
        """Whether this member leads the current slot and has not proposed in it."""
        return (
            self._me in self.membership
            and self.leader(self.slot) == self._me
            and self._state(self.slot).proposal is None
            and bool(self._founded())
        )

    def votable(self) -> Record | None:
        """The current slot's proposal, if rules 2 and 3 let this member vote for it."""
        state = self._state(self.slot)
        if state.proposal is None or not self._may("vote", self.slot):
            return None
        founded = self._founded()
        if state.proposal in founded or None in founded:
            return self.records[state.proposal]
        return None

    def may_skip(self) -> bool:
        """Whether this member may skip the current slot."""
        return self._may("skip", self.slot)

    def gap(self) -> int | None:
        """The slot that keeps all later ones from being founded: it is not known to have ended, though
        others are known to have. None if there is none, or this member may not skip it.

        Certificates are in memory alone. If all who had one were restarted, and a liar whose ballot was
        in it keeps that back, it can't be made again, unless those skip the slot who were not there.
        """
        for slot in range(self.slot - 1, 0, -1):
            certificates = self._state(slot).certificates
            if "vote" in certificates:
                return None
            if "skip" not in certificates:
                return slot if self._may("skip", slot) else None
        return None

    def hopeless(self) -> bool:
        """Whether so many skipped the current slot that the others are no quorum without them.

        In the model `byzantine` one of them at least is honest, so liars alone cannot end a slot.
        """
        tally = self._state(self.slot).ballots["skip"].get(NO_BLOCK, _Tally())
        total = self.votes.total
        return total - self.votes.among(tally.cast) < quorum(self._model, total)

    def finalizable(self) -> list[Certificate]:
        """Certificates of votes that rule 5 asks this member to finalize."""
        return [
            certificate
            for slot, certificate in self._certified.items()
            if self._may("finalize", slot)
        ]

    @property
    def decision(self) -> Certificate | None:
        """The certificate of finalizes, once there is one.

        Those that are doubted, or call this member silent, come last: `Round.binds` judges them.
        """
        # Asked for with every message.
        found = [state for state in self._slots.values() if "finalize" in state.certificates]
        best = min(found, key=lambda state: state.decision_preference, default=None)
        return best.certificates["finalize"] if best is not None else None

    def doubts(self, certificate: Certificate) -> bool:
        """Whether liars alone may have signed `certificate`, and this member has not."""
        signers = [signed.peer for signed in certificate.ballots]
        liars = most_liars(self._model, self.votes.total)
        return self.votes.among(signers) <= liars and self._me not in signers

    def accused_by(self, certificate: Certificate) -> bool:
        """Whether all signers of `certificate` call this member silent."""
        return self._me in silenced(certificate, self.membership)

    def believes(self, certificate: Certificate) -> bool:
        """Whether there is no reason to hesitate."""
        return self._preference(certificate) == _BEST

    def pending_ballots(self) -> list[tuple[BallotKind, int, RecordId]]:
        """What this member has cast and no certificate came of yet: (kind, slot, block)."""
        return [
            (kind, slot, block)
            for slot, state in self._slots.items()
            for kind, by_block in state.ballots.items()
            for block, seen in by_block.items()
            if self._me in seen and kind not in state.certificates
        ]

    # Private

    def _find_contradiction(
        self, sender: PeerId, state: _SlotState, slot: int, new: Testimony
    ) -> str:
        """How a ballot contradicts an earlier one of its sender, if it does; the proof is kept."""
        for kind, by_block in state.ballots.items():
            for block, tally in by_block.items():
                versions = tally.cast.get(sender)
                if versions is None:
                    continue
                signed = next(iter(versions.values()))
                old = Testimony(kind, block, signed.silent, signed.signature)
                if contradict(old, new):
                    if sender not in self.contradictions:
                        self.contradictions[sender] = accuse(
                            sender, self.round, self.parent, slot, old, new
                        )
                    return f"a {old.kind} and another {new.kind} in slot {slot}"
        return ""

    def _certify(self, kind: BallotKind, slot: int, block: RecordId, tally: _Tally) -> None:
        """Look for a certificate, where there may be one and none is known that will do.

        It costs time in the number of members, and ballots come as often: so not for each of them.
        """
        most = (0, 0) if tally.settled else self._most_signers(tally)
        if most <= tally.tried:
            return
        tally.tried = most
        found = find_quorum(
            {peer: versions.values() for peer, versions in tally.cast.items()},
            self.membership,
            self.votes,
            self._model,
        )
        if found is None:
            return
        certificate = Certificate(kind, self.round, self.parent, slot, block, found)
        preference = self._preference(certificate)
        tally.settled = preference == _BEST
        state = self._state(slot)
        if kind != "finalize":
            if self.doubts(certificate):
                self._doubted[kind, slot] = certificate
            else:
                self._end_slot(certificate)
            return
        known = state.certificates.get(kind)
        if known is None or known.block == block or preference < state.decision_preference:
            state.certificates[kind], state.decision_preference = certificate, preference

    def _most_signers(self, tally: _Tally) -> tuple[int, int]:
        """How many votes may be behind a certificate at most, and how many heirs: a quorum of those whom
        as many could agree to count.

        One liar that calls everybody else silent is a quorum by itself, and would have all ballots of
        a slot searched anew with each that comes.
        """
        voters = [
            (most, votes) for peer, most in tally.silent.items() if (votes := self.votes[peer])
        ]
        heirs = [(most, 1) for peer, most in tally.silent.items() if not self.votes[peer]]
        return self._most(voters, self.votes.total), self._most(heirs, len(self.membership))

    def _most(self, signers: list[tuple[int, int]], total: int) -> int:
        """The most that could agree, of signers with what each calls silent of the `total`, and has."""
        signers.sort(reverse=True)
        weights = itertools.accumulate(weight for _, weight in signers)
        return max(
            (
                weight
                for weight, (silent, _) in zip(weights, signers, strict=True)
                if weight >= quorum(self._model, total - silent)
            ),
            default=0,
        )

    def _end_slot(self, certificate: Certificate) -> None:
        """Take a slot for certified or skipped."""
        slot = certificate.slot
        self._state(slot).certificates[certificate.kind] = certificate
        if certificate.kind == "vote":
            self._certified[slot] = certificate
        self._ended = max(self._ended, slot)

    def _preference(self, certificate: Certificate) -> tuple[bool, bool]:
        """The lesser of two certificates is to be believed rather."""
        return self.doubts(certificate), self.accused_by(certificate)

    def _founded(self) -> list[RecordId | None]:
        """Blocks that the current slot may build on, the latest first; None stands for a fresh one."""
        founded: list[RecordId | None] = []
        for slot in range(self.slot - 1, 0, -1):
            certificates = self._state(slot).certificates
            if "vote" in certificates:
                founded.append(certificates["vote"].block)
            if "skip" not in certificates:
                return founded
        founded.append(None)
        return founded

    def _wanted(self, block: RecordId) -> bool:
        """Whether anybody has voted for or finalized `block`, so that its record must be kept."""
        return any(
            block in state.ballots["vote"] or block in state.ballots["finalize"]
            for state in self._slots.values()
        )

    def _may(self, kind: BallotKind, slot: int) -> bool:
        """Whether what this member has cast in a slot lets it cast a ballot of this kind there."""
        return self._me in self.membership and not any(
            self._cast(earlier, slot) for earlier in RULED_OUT[kind]
        )

    def _cast(self, kind: BallotKind, slot: int) -> bool:
        return any(self._me in seen for seen in self._state(slot).ballots[kind].values())

    def _state(self, slot: int) -> _SlotState:
        return self._slots.setdefault(slot, _SlotState())

    def _check_slot(self, slot: int) -> None:
        if slot > self.slot + SLOT_WINDOW:
            raise ProtocolError("too_far", f"slot {slot} is too far ahead of slot {self.slot}")
