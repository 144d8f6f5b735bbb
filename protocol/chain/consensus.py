"""Simplex consensus on the record of one round.

After Chan & Pass, "Simplex Consensus" (TCC 2023, eprint 2023/463), with one block to decide instead of
a chain of them. The rules:

1. A round has slots 1, 2, 3 …; each slot has one leader, in an order that no member can choose
   (`leaders`).
2. The leader of the current slot proposes. A proposal is *well founded* if it repeats the block that
   was certified in an earlier slot s, or is fresh (s = 0), and every slot between s and its own was
   skipped by a quorum.
3. A member votes at most once a slot, for a well-founded proposal of the slot's leader that it finds
   acceptable, and only while it is in that slot.
4. A member skips a slot when its timer runs out, or when no block can get a quorum any more because
   too many members have skipped the slot or voted for other blocks, even if it has voted in that slot.
5. A quorum of votes certifies a block, a quorum of skips ends a slot; either takes a member into the
   next slot. A member finalizes a certified block unless it skipped that slot, and never skips a slot
   that it has finalized.
6. A quorum of finalizes decides.

*Safety.* Let a quorum finalize B in slot s. Any quorum of skips for s shares an honest member with that
quorum, and this member would have both finalized and skipped s, which rule 5 forbids. So no later slot
is well founded without B. No other block is certified in s either, since two quorums of votes share an
honest member and rule 3 forbids two votes. (In the fault model `crash` no member is byzantine, and
majorities share a member.) If members have different numbers of votes, quorums and the share of
byzantine members are counted in votes, and the argument is the same.

*Liveness.* In a slot with an honest leader and timely messages no honest member skips, so its proposal
is certified, finalized by all and decided. Leaders rotate, and slots grow longer.

*Quorums under silence.* Each ballot carries a mask of the members that its sender has not heard for a
lease. A certificate is valid with a quorum of the members that its signers do not *all* mark as silent
(`certificates`); otherwise no record could be decided once too many volunteers close their laptops. Two
quorums still share an honest member as long as each has an honest signer that hears all honest members:
this signer keeps them in the count, and only dead and byzantine members are left out. Two sides of a
partition that cannot hear each other for a lease break that premise and decide two chains. This is
intended, and `fork_choice` chooses one.

*Doubted certificates.* Byzantine members can mark any member as silent: by marking nearly all others
they form a quorum alone. So a member doubts a certificate if its signers have no more votes than
byzantine members may have and the member itself is not among them. That includes every certificate of
members without votes (heirs, see `certificates`) that it has not signed. Every other certificate of
votes or skips bears the signature of an honest member or of the member itself, so the arguments above
hold. A doubted certificate of votes or skips is set aside. This blocks no member: with one more ballot,
the member's own or another, the certificate is no longer doubted, and a member that has skipped a slot
finally leaves it by a doubted certificate (`concede`). Whether a doubted decision binds depends on which
peers the member hears; the round judges that (`Round.binds`).

*Restarts.* Rules 3 and 5 cover everything that a member ever signed, so each ballot is written to disk
before it is sent, together with the proposal that it votes for. A node that lost its disk first asks
the others (`vote_recovery`); if no reachable peer remembers, it may contradict itself, and then counts
as byzantine. A finalize is stored with the votes on which it was cast: a member that has finalized a
block cannot skip the slot any more, and if a byzantine voter withheld its vote, there would be no
certificate to continue from. If the certificate of skips for a slot is lost, members skip it again
(`gap`).

*Equivocation.* Two ballots of one slot that rules 3 and 5 forbid together (`RULED_OUT`) are a proof
that every peer can check. The proof is kept here and gossiped, and the next record that contains it
expels the signer (`evidence`). Until then each of the two ballots counts if another member cast the
same, since some members may hold a certificate that includes it; the argument for safety allows this,
because it relies on honest signers only.

`Consensus` keeps the ballots and applies the rules. The member decides when to act by them: it has the
timers, and knows which proposals are acceptable and which updates it holds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from ...crypto.identity import PeerId
from ..wire.errors import ProtocolError
from ..wire.membership import FaultModel, Membership, Votes, max_byzantine_votes, quorum
from ..wire.messages import (
    NO_BLOCK,
    Ballot,
    BallotHalf,
    BallotKind,
    Certificate,
    Evidence,
    Record,
    RecordId,
    SignedBallot,
)
from .certificates import disinherits, find_quorum, silenced, weigh
from .evidence import RULED_OUT, accuse, contradict
from .leaders import Leaders

SLOT_WINDOW = 32
"""Slots ahead of the current one for which ballots are accepted. This bounds how much a peer can make a
node keep."""

# Most versions kept of one member's ballot: a member casts it again, with another mask, when another
# member falls silent or is heard again.
_MAX_MASKS = 16

# The best preference of a certificate: it is not doubted and does not mark this member as silent.
_BEST = (False, False)

# The versions of a member's ballot of one kind for one block, by mask; it signed each of them.
_Versions = dict[bytes, SignedBallot]


@dataclass
class BallotSet:
    """The ballots of one kind for one block of a slot."""

    cast: dict[PeerId, _Versions] = field(default_factory=dict)
    silent: dict[PeerId, int] = field(default_factory=dict)
    """For each signer, the most votes that one of its masks marks as silent, which bounds how small a
    quorum can be. For signers without votes that could be heirs, the most members."""
    tried: tuple[int, int] = (0, 0)
    """The result of `_most_signers` when a certificate was last searched: the most votes and heirs that
    could have signed one. There is no new search until it is greater."""
    settled: bool = False
    """Whether a certificate was found that is not doubted and does not mark this member as silent."""

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.cast


@dataclass
class SlotBallots:
    """Proposal, ballots and certificates of one slot."""

    proposal: RecordId | None = None
    # Ballots by kind, then by block: almost always a single block.
    ballots: dict[BallotKind, dict[RecordId, BallotSet]] = field(
        default_factory=lambda: {"vote": {}, "skip": {}, "finalize": {}}
    )
    certificates: dict[BallotKind, Certificate] = field(default_factory=dict)
    decision_preference: tuple[bool, bool] = (True, True)
    """Preference of the certificate of finalizes, if there is one."""


class Consensus:
    """Consensus state of one round, as seen by one member or an observer."""

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
        """`leaders`: the leaders that follow from the chain; by default those of a chain on which no
        leader is passed over."""
        self.round = round
        self.parent = parent
        self.membership = membership
        self.votes = votes
        self.slot = 1
        """The slot that this member is in."""
        self.records: dict[RecordId, Record] = {}
        """Proposed records by id."""
        self.contradictions: dict[PeerId, Evidence] = {}
        """Members that contradicted themselves in this round, each with a proof."""
        self._model: FaultModel = model
        self._me = me
        self._leaders = leaders or Leaders(swarm, round, membership, votes)
        self._slots: dict[int, SlotBallots] = {}
        # Certificates of votes by slot, and the last slot that has ended: both are read with every
        # message.
        self._certified: dict[int, Certificate] = {}
        self._ended = 0
        # Certificates of votes and skips that byzantine members may have signed alone.
        self._doubted: dict[tuple[BallotKind, int], Certificate] = {}

    # Input

    def add_proposal(self, sender: PeerId, slot: int, record: Record) -> None:
        """Accept a proposal. Raises `ProtocolError` as `check_proposal` does.

        The first of several proposals for a slot is the one that this member may vote for. Members vote
        for a block, so a leader that sends different proposals to different members only wastes its
        slot.
        """
        self.check_proposal(sender, slot, record)
        state = self._state(slot)
        if state.proposal is None:
            state.proposal = record.id
        self.records[record.id] = record

    def check_proposal(self, sender: PeerId, slot: int, record: Record) -> None:
        """Raise `ProtocolError` if a proposal is to be refused, with the reason `too_far` if its slot is
        too far ahead, `not_leader` if its sender does not lead the slot, or `equivocation` if it is a
        second proposal for the slot for which no member has voted.

        Other second proposals are accepted, in case a quorum votes for them. If all were, a leader could
        make all members forward any number of proposals of the greatest length.
        """
        self._check_slot(slot)
        if sender != self.leader(slot):
            raise ProtocolError(
                "not_leader", f"a proposal for slot {slot} by a member that is not its leader"
            )
        known = self._slots[slot].proposal if slot in self._slots else None
        if known not in (None, record.id) and not self._wanted(record.id):
            raise ProtocolError("equivocation", f"a second proposal for slot {slot}")

    def add_ballot(
        self, kind: BallotKind, sender: PeerId, ballot: Ballot, signature: bytes
    ) -> None:
        """Accept a ballot whose signature was checked. Raises `ProtocolError` if it is invalid."""
        self._check_slot(ballot.slot)
        if sender not in self.membership:
            raise ProtocolError("not_member", "a ballot by a non-member")
        silent = self.membership.bits(ballot.silent)
        if silent & self.membership.bit(sender):
            raise ProtocolError("invalid", "a ballot that marks its own sender as silent")
        if (kind == "skip") != (ballot.block == NO_BLOCK):
            raise ProtocolError("invalid", f"a {kind} ballot with the wrong kind of block")
        state = self._state(ballot.slot)
        by_block = state.ballots[kind]
        contradiction = self._find_contradiction(
            sender, state, ballot.slot, BallotHalf(kind, ballot.block, ballot.silent, signature)
        )
        # A byzantine member may send one ballot to some members and another to others, and some of them
        # may hold a certificate that includes it. All must reach the same decision, so a contradicting
        # ballot counts if another member cast the same.
        backed = ballot.block in by_block and by_block[ballot.block].cast.keys() - {sender}
        if contradiction and not backed:
            raise ProtocolError("equivocation", contradiction)
        # The same ballot with another mask (silence is noticed over time) is kept in addition to the
        # first: members that receive the versions in different orders, or only some of them, must reach
        # the same decision.
        ballot_set = by_block.setdefault(ballot.block, BallotSet())
        if sender == self._me or sender in ballot_set.cast:
            # Search again: a certificate of the same size that includes this member's own ballot, or a
            # ballot with the new mask, may be preferable.
            ballot_set.tried = (0, 0)
        if self.votes[sender]:
            marked = weigh(silent, self.membership, self.votes)
            ballot_set.silent[sender] = max(ballot_set.silent.get(sender, 0), marked)
        elif disinherits(ballot.silent, self.membership, self.votes):
            ballot_set.silent[sender] = max(ballot_set.silent.get(sender, 0), silent.bit_count())
        versions = ballot_set.cast.setdefault(sender, {})
        versions[ballot.silent] = SignedBallot(sender, ballot.silent, signature)
        if len(versions) > _MAX_MASKS:
            del versions[next(iter(versions))]
        self._certify(kind, ballot.slot, ballot.block, ballot_set)

    def concede(self) -> None:
        """Leave the current slot by a doubted certificate of it, if there is one and this member has
        skipped the slot.

        Called when this member does not hear a quorum at work. The signers of the certificate may be
        honest: they may be the only members left, and wait for this member in a later slot. If they are
        byzantine, leaving the slot is still safe. If a quorum finalizes a block in this slot, the
        others, byzantine members included, are too few for a quorum and certify nothing else, whatever
        byzantine members make them believe; and this member's skip of the slot counts whatever slot it
        is in.
        """
        known = self._state(self.slot).certificates
        for kind in ("vote", "skip"):
            certificate = self._doubted.get((kind, self.slot))
            if certificate is not None and kind not in known and self._cast("skip", self.slot):
                self._end_slot(certificate)

    # Rules

    def leader(self, slot: int) -> PeerId:
        """Return the leader of a slot."""
        return self._leaders[slot]

    def advance(self) -> bool:
        """Enter the slot after the last one that is certified or skipped. Returns whether the slot
        changed.

        A member that missed certificates in between may not vote until it has them (rule 2), but it
        need not go through those slots.
        """
        if self._ended < self.slot:
            return False
        self.slot = self._ended + 1
        return True

    def repeatable(self) -> RecordId | None:
        """Return the block that a proposal in the current slot must repeat; None if it may be fresh."""
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
        """Return the current slot's proposal if rules 2 and 3 let this member vote for it."""
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
        """Return the slot that keeps proposals in all later slots from being well founded (rule 2): the
        last one before the current slot for which no certificate of skips is known. None if there is no
        such slot, if a block was certified in it or after it, or if this member may not skip it.

        Certificates are kept in memory only. If all members that had one were restarted, and a byzantine
        signer of it withholds its ballot, the certificate cannot be rebuilt unless the members that
        were absent skip the slot.
        """
        for slot in range(self.slot - 1, 0, -1):
            certificates = self._state(slot).certificates
            if "vote" in certificates:
                return None
            if "skip" not in certificates:
                return slot if self._may("skip", slot) else None
        return None

    def hopeless(self) -> bool:
        """Whether no block can get a quorum in the current slot: for each, too many members skipped the
        slot or voted for another one.

        In the fault model `byzantine` at least one of these members is then honest, so byzantine members
        alone cannot end a slot.
        """
        ballots = self._state(self.slot).ballots
        lost = skipped = ballots["skip"].get(NO_BLOCK, BallotSet()).cast.keys()
        blocks = [ballot_set.cast.keys() for ballot_set in ballots["vote"].values()]
        # Almost always there is one block.
        if len(blocks) > 1:
            most = max(blocks, key=lambda voters: self.votes.among(voters - skipped))
            lost = skipped | (frozenset[PeerId]().union(*blocks) - most)
        total = self.votes.total
        return total - self.votes.among(lost) < quorum(self._model, total)

    def finalizable(self) -> list[Certificate]:
        """Return the certificates of votes that rule 5 asks this member to finalize."""
        return [
            certificate
            for slot, certificate in self._certified.items()
            if self._may("finalize", slot)
        ]

    @property
    def decision(self) -> Certificate | None:
        """The certificate of finalizes, once there is one.

        Certificates that are doubted, or mark this member as silent, come last: `Round.binds` judges
        them.
        """
        # This is read with every message.
        found = [state for state in self._slots.values() if "finalize" in state.certificates]
        best = min(found, key=lambda state: state.decision_preference, default=None)
        return best.certificates["finalize"] if best is not None else None

    def doubts(self, certificate: Certificate) -> bool:
        """Whether byzantine members alone may have signed `certificate`, and this member has not."""
        signers = [signed.peer for signed in certificate.ballots]
        byzantine_votes = max_byzantine_votes(self._model, self.votes.total)
        return self.votes.among(signers) <= byzantine_votes and self._me not in signers

    def accused_by(self, certificate: Certificate) -> bool:
        """Whether all signers of `certificate` mark this member as silent."""
        return self._me in silenced(certificate, self.membership)

    def believes(self, certificate: Certificate) -> bool:
        """Whether `certificate` is neither doubted nor marks this member as silent."""
        return self._preference(certificate) == _BEST

    def pending_ballots(self) -> list[tuple[BallotKind, int, RecordId]]:
        """Return the ballots that this member cast and that no certificate covers yet: (kind, slot,
        block)."""
        return [
            (kind, slot, block)
            for slot, state in self._slots.items()
            for kind, by_block in state.ballots.items()
            for block, ballot_set in by_block.items()
            if self._me in ballot_set and kind not in state.certificates
        ]

    # Private

    def _find_contradiction(
        self, sender: PeerId, state: SlotBallots, slot: int, new: BallotHalf
    ) -> str:
        """Return how a ballot contradicts an earlier one of its sender; an empty text if it does not.
        Keeps the proof of a contradiction."""
        for kind, by_block in state.ballots.items():
            for block, ballot_set in by_block.items():
                versions = ballot_set.cast.get(sender)
                if versions is None:
                    continue
                signed = next(iter(versions.values()))
                old = BallotHalf(kind, block, signed.silent, signed.signature)
                if contradict(old, new):
                    if sender not in self.contradictions:
                        self.contradictions[sender] = accuse(
                            sender, self.round, self.parent, slot, old, new
                        )
                    return f"a {old.kind} and another {new.kind} in slot {slot}"
        return ""

    def _certify(self, kind: BallotKind, slot: int, block: RecordId, ballot_set: BallotSet) -> None:
        """Search for a certificate if a new one is possible and no preferred one is known yet.

        A search takes time in proportion to the number of members, and each member sends ballots. So a
        search does not run for every ballot.
        """
        most = (0, 0) if ballot_set.settled else self._most_signers(ballot_set)
        if most <= ballot_set.tried:
            return
        ballot_set.tried = most
        found = find_quorum(
            {peer: versions.values() for peer, versions in ballot_set.cast.items()},
            self.membership,
            self.votes,
            self._model,
        )
        if found is None:
            return
        certificate = Certificate(kind, self.round, self.parent, slot, block, found)
        preference = self._preference(certificate)
        ballot_set.settled = preference == _BEST
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

    def _most_signers(self, ballot_set: BallotSet) -> tuple[int, int]:
        """Return upper bounds of the votes and of the heirs that can support a certificate; 0 if no
        quorum is possible.

        Without this check, a byzantine member that marks all others as silent, and so is a quorum alone,
        would cause a search through all ballots of a slot with each ballot that arrives.
        """
        voters = [
            (most, votes) for peer, most in ballot_set.silent.items() if (votes := self.votes[peer])
        ]
        heirs = [(most, 1) for peer, most in ballot_set.silent.items() if not self.votes[peer]]
        return self._most(voters, self.votes.total), self._most(heirs, len(self.membership))

    def _most(self, signers: list[tuple[int, int]], total: int) -> int:
        """Return the largest weight of signers that could be a quorum together, by how much they mark as
        silent; 0 if none could. `signers`: for each, how much of the `total` it marks as silent at most,
        and its own weight."""
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
        """Record that a slot is certified or skipped."""
        slot = certificate.slot
        self._state(slot).certificates[certificate.kind] = certificate
        if certificate.kind == "vote":
            self._certified[slot] = certificate
        self._ended = max(self._ended, slot)

    def _preference(self, certificate: Certificate) -> tuple[bool, bool]:
        """Return a sort key: the certificate with the smaller key is more credible."""
        return self.doubts(certificate), self.accused_by(certificate)

    def _founded(self) -> list[RecordId | None]:
        """Return the blocks that the current slot may build on, the latest first; None means a fresh
        block."""
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
        """Whether any member has voted for or finalized `block`, so that its record must be kept."""
        return any(
            block in state.ballots["vote"] or block in state.ballots["finalize"]
            for state in self._slots.values()
        )

    def _may(self, kind: BallotKind, slot: int) -> bool:
        """Whether the ballots of this member in a slot allow it to cast a ballot of this kind there."""
        return self._me in self.membership and not any(
            self._cast(earlier, slot) for earlier in RULED_OUT[kind]
        )

    def _cast(self, kind: BallotKind, slot: int) -> bool:
        return any(
            self._me in ballot_set for ballot_set in self._state(slot).ballots[kind].values()
        )

    def _state(self, slot: int) -> SlotBallots:
        return self._slots.setdefault(slot, SlotBallots())

    def _check_slot(self, slot: int) -> None:
        if slot > self.slot + SLOT_WINDOW:
            raise ProtocolError("too_far", f"slot {slot} is too far ahead of slot {self.slot}")
