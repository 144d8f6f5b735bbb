"""Read-only view of a member, for its runner and for monitoring."""

from __future__ import annotations

from collections.abc import Collection

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.messages import Announcement
from .liveness import Liveness
from .message_filter import MessageFilter
from .replica import Replica
from .round import Round
from .shutdown import LONGEST_SECONDS
from .states import MemberState
from .timeouts import RoundTimeouts

# After this many heartbeat intervals without a message, a member may be gone.
_UNUSUAL_HEARTBEATS = 2.0
# Number of leases after which a finished member no longer waits for answers. A member that lacks the
# last record then can still get it from the members that remain.
_END_LEASES = 3


class MemberView:
    """Read-only side of a member. All times are seconds of any steady clock."""

    _ledger: Ledger
    _me: PeerId
    _replica: Replica
    _liveness: Liveness
    _timeouts: RoundTimeouts
    _message_filter: MessageFilter
    _current: Round
    """The round at the tip."""
    _last_ready: float | None
    _state: MemberState
    _leaving: bool

    @property
    def ledger(self) -> Ledger:
        """The chain that is followed."""
        return self._ledger

    @property
    def me(self) -> PeerId:
        """This node's peer id."""
        return self._me

    @property
    def round(self) -> int:
        """The round being decided."""
        return len(self._ledger)

    @property
    def members(self) -> tuple[PeerId, ...]:
        """The members of the current round."""
        return self._ledger.membership(self.round).peers

    @property
    def is_member(self) -> bool:
        """Whether this node is a member of the current round."""
        return self._me in self._current.membership

    @property
    def is_expelled(self) -> bool:
        """Whether a record proves that this node's identity contradicted itself: it may never return."""
        return self._me in self._ledger.membership(self.round).expelled

    @property
    def is_outdated(self) -> bool:
        """Whether the swarm requires a version that this node does not support."""
        return self._ledger.versions.outdated

    @property
    def at_tip(self) -> bool:
        """Whether the parameters contain everything decided."""
        return self._replica.is_current(self._ledger) and self._ledger.anchored

    @property
    def is_finished(self) -> bool:
        """Whether the run is over and the parameters here are its result."""
        return self._ledger.finished and self.at_tip

    def may_end(self, now: float, connected: Collection[PeerId] = ()) -> bool:
        """Whether the run is over and no member needs this one any more: all others have announced that
        they have everything, or are silent. A `connected` member that still catches up is waited for, up
        to `LONGEST_SECONDS`. The wait for members that are not connected, and for the end to become
        final, is bounded by some leases."""
        if not self.is_finished:
            return False
        if not self.is_member:
            return True
        waited = now - self._current.created
        behind = self.behind
        if waited <= LONGEST_SECONDS and not behind.isdisjoint(connected):
            return False
        if waited > _END_LEASES * self._timeouts.lease:
            return True
        return self._ledger.outcome_is_final and behind <= self._liveness.silent(self.lease, now)

    @property
    def behind(self) -> set[PeerId]:
        """The other members that have not sent a heartbeat for the round at the tip. At the end of a
        run, a heartbeat for the round after the last one announces that its sender has everything."""
        reached = self._liveness.reached
        return {p for p in self.members if p != self._me and reached(p) < self.round}

    @property
    def applied_round(self) -> int:
        """The last round whose record the parameters contain; -1 for the initial parameters."""
        return self._replica.round

    @property
    def fingerprint(self) -> int | None:
        """Fingerprint of the parameters after `applied_round`; None until they are loaded."""
        return self._replica.fingerprint

    @property
    def state(self) -> MemberState:
        """State of this member, as in `states`; only inputs change it."""
        return self._state

    @property
    def ready_since(self) -> float | None:
        """Time since which the round at the tip need not wait for more updates; None until then."""
        return self._current.ready_since

    @property
    def last_ready(self) -> float | None:
        """Time since which the previous round did not need to wait for more updates; None if unknown."""
        return self._last_ready

    @property
    def leaving(self) -> set[PeerId]:
        """Members that took leave and are still in the membership."""
        return self._liveness.leaving()

    def last_message_time(self, peer: PeerId) -> float | None:
        """Return when a new message signed by a member last arrived."""
        return self._liveness.last_message_time(peer)

    @property
    def lease(self) -> float:
        """Seconds of silence after which a member is recorded as gone."""
        return self._timeouts.lease

    def overdue(self, now: float) -> list[tuple[PeerId, float]]:
        """Return the members whose update is awaited and that have been silent for unusually long, each
        with the seconds of its silence."""
        if not self.is_member or not self._ledger.manifest.schedule.trains(self.round):
            return []
        announced = self._current.collection.announced
        silent = {
            peer: now - heard
            for peer in self.members
            if peer != self._me and (heard := self.last_message_time(peer)) is not None
        }
        usual = _UNUSUAL_HEARTBEATS * self._timeouts.heartbeat
        return [
            (peer, time)
            for peer, time in silent.items()
            if time > usual and self._current.awaits(peer) and not announced(peer)
        ]

    def announcement(self, round: int, peer: PeerId) -> tuple[Announcement, bytes] | None:
        """Return the announcement of `peer` for `round` and its signature, if there is one: as decided,
        or as received if that is the round at the tip."""
        if round >= self.round:
            return self._current.collection.announcement_of(peer) if round == self.round else None
        record = self._ledger[round].record
        for entry in record.updates:
            if entry.peer == peer:
                return record.announcement(entry), entry.signature
        return None

    def is_abandoned(self, now: float) -> bool:
        """Whether this node asks for admission in vain: no member of its chain works on the chain any
        more."""
        return self._wants_in and self._current.is_abandoned(now)

    def awaits(self, round: int) -> bool:
        """Whether the record of `round` is being applied, on the current chain."""
        return self._replica.awaits(round)

    def messages(self, round: int) -> list[Envelope]:
        """Return the round's signed messages, for a peer that asks for those it missed."""
        return self._message_filter.messages(round, self._ledger)

    @property
    def _wants_in(self) -> bool:
        wants_membership = not (
            self.is_member or self.is_expelled or self._leaving or self._ledger.finished
        )
        return wants_membership and self._replica.is_near(self._ledger)
