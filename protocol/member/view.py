"""Read-only view of a member, for its runner and for monitoring."""

from __future__ import annotations

from collections.abc import Collection

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.messages import Announcement
from .parts import MemberParts
from .shutdown import LONGEST_SECONDS
from .states import MemberConditions, MemberState

# After this many heartbeat intervals without a message, a member may be gone.
_UNUSUAL_HEARTBEATS = 2.0
# Number of leases after which a finished member no longer waits for answers. A member that lacks the
# last record then can still get it from the members that remain.
_END_LEASES = 3


class MemberView:
    """What others may know of a member (`Member.view`). All times are seconds of any steady clock."""

    def __init__(self, parts: MemberParts) -> None:
        self._parts = parts
        self._context = parts.context

    @property
    def ledger(self) -> Ledger:
        """The chain that is followed."""
        return self._context.ledger

    @property
    def me(self) -> PeerId:
        """This node's peer id."""
        return self._parts.me

    @property
    def round(self) -> int:
        """The round being decided."""
        return len(self.ledger)

    @property
    def members(self) -> tuple[PeerId, ...]:
        """The members of the current round."""
        return self.ledger.membership(self.round).peers

    @property
    def is_member(self) -> bool:
        """Whether this node is a member of the current round."""
        return self._parts.me in self._parts.round.membership

    @property
    def is_expelled(self) -> bool:
        """Whether a record proves that this node's identity contradicted itself: it may never return."""
        return self._parts.me in self.ledger.membership(self.round).expelled

    @property
    def is_outdated(self) -> bool:
        """Whether the swarm requires a version that this node does not support."""
        return self.ledger.versions.outdated

    @property
    def at_tip(self) -> bool:
        """Whether the parameters contain everything decided."""
        ledger = self.ledger
        return self._parts.replica.is_current(ledger) and ledger.anchored

    @property
    def is_finished(self) -> bool:
        """Whether the run is over and the parameters here are its result."""
        return self.ledger.finished and self.at_tip

    def may_end(self, now: float, connected: Collection[PeerId] = ()) -> bool:
        """Whether the run is over and no member needs this one any more: all others have announced that
        they have everything, or are silent. A `connected` member that still catches up is waited for, up
        to `LONGEST_SECONDS`. The wait for members that are not connected, and for the end to become
        final, is bounded by some leases."""
        if not self.is_finished:
            return False
        if not self.is_member:
            return True
        waited = now - self._parts.round.created
        behind = self.behind
        if waited <= LONGEST_SECONDS and not behind.isdisjoint(connected):
            return False
        if waited > _END_LEASES * self._parts.timeouts.lease:
            return True
        return self.ledger.outcome_is_final and behind <= self._parts.liveness.silent(
            self.lease, now
        )

    @property
    def behind(self) -> set[PeerId]:
        """The other members that have not sent a heartbeat for the round at the tip. At the end of a
        run, a heartbeat for the round after the last one announces that its sender has everything."""
        reached = self._parts.liveness.reached
        return {p for p in self.members if p != self._parts.me and reached(p) < self.round}

    @property
    def applied_round(self) -> int:
        """The last round whose record the parameters contain; -1 for the initial parameters."""
        return self._parts.replica.round

    @property
    def fingerprint(self) -> int | None:
        """Fingerprint of the parameters after `applied_round`; None until they are loaded."""
        return self._parts.replica.fingerprint

    @property
    def conditions(self) -> MemberConditions:
        """The conditions that determine the member's next state."""
        parts, ledger = self._parts, self.ledger
        return MemberConditions(
            expelled=self.is_expelled,
            leaving=parts.leave_requested,
            member=self.is_member,
            loaded=parts.replica.fingerprint is not None,
            at_tip=self.at_tip,
            remembers=parts.vote_recovery.complete,
            ready=parts.round.ready_since is not None,
            finished=ledger.finished,
            outdated=ledger.versions.outdated,
        )

    @property
    def state(self) -> MemberState:
        """State of this member, as in `states`; only inputs change it."""
        return self._parts.state

    @property
    def ready_since(self) -> float | None:
        """Time since which the round at the tip need not wait for more updates; None until then."""
        return self._parts.round.ready_since

    @property
    def last_ready(self) -> float | None:
        """Time since which the previous round did not need to wait for more updates; None if unknown."""
        return self._parts.last_ready

    @property
    def leaving(self) -> set[PeerId]:
        """Members that took leave and are still in the membership."""
        return self._parts.liveness.leaving()

    def last_message_time(self, peer: PeerId) -> float | None:
        """Return when a new message signed by a member last arrived."""
        return self._parts.liveness.last_message_time(peer)

    @property
    def lease(self) -> float:
        """Seconds of silence after which a member is recorded as gone."""
        return self._parts.timeouts.lease

    def overdue(self, now: float) -> list[tuple[PeerId, float]]:
        """Return the members whose update is awaited and that have been silent for unusually long, each
        with the seconds of its silence."""
        if not self.is_member or not self.ledger.manifest.schedule.trains(self.round):
            return []
        announced = self._parts.round.collection.announced
        silent = {
            peer: now - heard
            for peer in self.members
            if peer != self._parts.me and (heard := self.last_message_time(peer)) is not None
        }
        usual = _UNUSUAL_HEARTBEATS * self._parts.timeouts.heartbeat
        return [
            (peer, time)
            for peer, time in silent.items()
            if time > usual and self._parts.round.awaits(peer) and not announced(peer)
        ]

    def announcement(self, round: int, peer: PeerId) -> tuple[Announcement, bytes] | None:
        """Return the announcement of `peer` for `round` and its signature, if there is one: as decided,
        or as received if that is the round at the tip."""
        if round >= self.round:
            return (
                self._parts.round.collection.announcement_of(peer) if round == self.round else None
            )
        record = self.ledger[round].record
        for entry in record.updates:
            if entry.peer == peer:
                return record.announcement(entry), entry.signature
        return None

    def is_abandoned(self, now: float) -> bool:
        """Whether this node asks for admission in vain: no member of its chain works on the chain any
        more."""
        return self.wants_admission and self._parts.round.is_abandoned(now)

    def awaits(self, round: int) -> bool:
        """Whether the record of `round` is being applied, on the current chain."""
        return self._parts.replica.awaits(round)

    def messages(self, round: int) -> list[Envelope]:
        """Return the round's signed messages, for a peer that asks for those it missed."""
        stored = self._parts.messages.of_round(round)
        if round != self.round:
            return stored
        return [*self._parts.accusations.envelopes(), *stored]

    @property
    def wants_admission(self) -> bool:
        """Whether this node is to ask for admission: it is not a member, and has followed the chain
        almost to its end."""
        stays_out = self._parts.leave_requested or self.is_expelled or self.ledger.finished
        return not (self.is_member or stays_out) and self._parts.replica.is_near(self.ledger)
