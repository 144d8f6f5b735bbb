"""Liveness: which members were heard, took leave, or fell silent.

*Silent* is a claim with consequences (it shrinks quorums), so it takes a whole lease. *Missing* is only
a hint that the connection broke; it keeps a leader from waiting for a peer that is probably dead.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.identity import PeerId
from ..wire.messages import Heartbeat, Leave

# Longer than any pause of a healthy event loop. If this node did not run for that long, it was away
# itself (a closed laptop, a stopped process), and the others' silence means nothing.
_OWN_ABSENCE_SECONDS = 5.0
# A dropped connection is usually back within this time.
_RECONNECT_SECONDS = 2.0


class Liveness:
    """Liveness of the other members, as seen by one. Times are seconds of any steady clock."""

    def __init__(self, me: PeerId, now: float) -> None:
        self._me = me
        self._last_heard: dict[PeerId, float] = {}
        self._lost: dict[PeerId, float] = {}
        # Largest round and largest count in the heartbeats of each member.
        self._beats: dict[PeerId, tuple[int, int]] = {}
        self._leaves: dict[PeerId, tuple[Leave, bytes]] = {}
        self._last_tick = now
        # No other member was last heard before this time.
        self._oldest = now

    def tick(self, now: float) -> bool:
        """Detect an absence of this node and extend all others' leases by it. Returns whether there was
        one.

        Call it at every input, before silence is judged: the first input after an absence may be a
        message instead of a tick.
        """
        away = now - self._last_tick
        if away > _OWN_ABSENCE_SECONDS:
            self._last_heard = {
                peer: min(now, heard + away) for peer, heard in self._last_heard.items()
            }
        self._last_tick = now
        return away > _OWN_ABSENCE_SECONDS

    def note_message(self, peer: PeerId, now: float) -> None:
        """Note that a message signed by `peer` arrived."""
        if peer in self._last_heard:
            self._last_heard[peer] = now
        self._lost.pop(peer, None)

    def note_heartbeat(self, peer: PeerId, beat: Heartbeat, now: float) -> None:
        """Note a heartbeat of `peer`; a replay has no effect.

        A heartbeat of a later round is new whatever its count: a member that lost its disk may restart
        with a smaller count.
        """
        round_, count = self._beats.get(peer, (-1, -1))
        if beat.count > count or beat.round > round_:
            self._beats[peer] = max(beat.round, round_), max(beat.count, count)
            self.note_message(peer, now)

    def reached(self, peer: PeerId) -> int:
        """Return the largest round in a member's heartbeats; -1 without any."""
        return self._beats.get(peer, (-1, -1))[0]

    def note_disconnected(self, peer: PeerId, now: float) -> None:
        """Note that the connection to `peer` broke."""
        self._lost[peer] = now

    def note_connected(self, peer: PeerId) -> None:
        """Note that there is a connection to `peer` again."""
        self._lost.pop(peer, None)

    def note_leave(self, peer: PeerId, leave: Leave, signature: bytes) -> None:
        """Note the leave of `peer`."""
        self._leaves[peer] = (leave, signature)

    def leave_of(self, peer: PeerId) -> tuple[Leave, bytes] | None:
        """Return the leave of `peer` and its signature."""
        return self._leaves.get(peer)

    def last_message_time(self, peer: PeerId) -> float | None:
        """Return when a message of `peer` last arrived."""
        return self._last_heard.get(peer)

    def set_members(self, members: Iterable[PeerId], now: float) -> None:
        """Set the membership: newcomers get a full lease, departed members are forgotten.

        If this node itself is the newcomer, it gives all others a full lease: while it caught up it
        hardly listened, and most messages that it received were repeated by others.
        """
        members = set(members)
        admitted = self._me in members and self._me not in self._last_heard
        self._last_heard = {
            peer: now if admitted else self._last_heard.get(peer, now) for peer in members
        }
        self._beats = {peer: beat for peer, beat in self._beats.items() if peer in members}
        self._lost = {peer: at for peer, at in self._lost.items() if peer in members}
        self._leaves = {peer: leave for peer, leave in self._leaves.items() if peer in members}

    def silent(self, lease: float, now: float) -> set[PeerId]:
        """Return the members unheard for `lease` seconds."""
        # Called for every message; the result is almost always empty, so that case must be fast.
        if now - self._oldest <= lease:
            return set()
        others = {peer: heard for peer, heard in self._last_heard.items() if peer != self._me}
        self._oldest = min(others.values(), default=now)
        return {peer for peer, heard in others.items() if now - heard > lease}

    def leaving(self) -> set[PeerId]:
        """Return the members that took leave and have not departed yet."""
        return set(self._leaves)

    def missing(self, now: float) -> set[PeerId]:
        """Return the members whose connection broke and was not restored within a short time."""
        return {peer for peer, at in self._lost.items() if now - at > _RECONNECT_SECONDS}
