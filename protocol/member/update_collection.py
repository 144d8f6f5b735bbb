"""Announced updates of a round: who announced them, which are held, and which were requested.

An update is *held* when its bytes are in the store and have passed the codec's checks; only held
updates are proposed and voted for, so everything that is agreed on is available.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.evidence import accuse_of_announcements
from ..chain.ledger import Ledger
from ..wire.membership import Votes
from ..wire.messages import Announcement, Evidence, Record, SignedAnnouncement, UpdateEntry
from .effects import Effect, FetchUpdate


class RoundUpdates:
    """One round's announcements by member, and when each update became held."""

    def __init__(self, others: Votes, *, shared: bool = False) -> None:
        """`others`: the votes of the other members. `shared`: several members may announce the same
        update, and each announcement counts."""
        self._others = others
        self._shared = shared
        self._announced: dict[PeerId, SignedAnnouncement] = {}
        # The announcing members of each update. The lookup must be fast: in a swarm of a thousand
        # members, an update becomes held every few milliseconds.
        self._makers: dict[ContentId, list[PeerId]] = {}
        self._fingerprints: Counter[int] = Counter()
        self._arrivals: dict[PeerId, float] = {}
        self._failed: set[PeerId] = set()
        self.last_announced: float | None = None
        """Time of the latest announcement."""
        self.contradictions: dict[PeerId, Evidence] = {}
        """Proofs against members that announced two updates. Some members may have only the first,
        others only the second, so no leader names either, and no voter requires one."""

    def announce(
        self, peer: PeerId, announcement: Announcement, signature: bytes, now: float = 0.0
    ) -> bool:
        """Add an announcement whose signature was checked.

        A member's first announcement counts. If it makes a different one, a proof of the contradiction
        is kept. Returns False for such a different one.
        """
        signed, known = SignedAnnouncement(announcement, signature), self._announced.get(peer)
        if known is not None:
            if signed != known and peer not in self.contradictions:
                self.contradictions[peer] = accuse_of_announcements(peer, known, signed)
                if peer not in self._arrivals:
                    self._failed.add(peer)
            return signed == known
        self._announced[peer] = signed
        self.last_announced = now
        self._makers.setdefault(announcement.update, []).append(peer)
        self._fingerprints[announcement.fingerprint] += self._others[peer]
        return True

    def announced(self, peer: PeerId) -> bool:
        """Whether the member has announced its update."""
        return peer in self._announced

    def announcement_of(self, peer: PeerId) -> tuple[Announcement, bytes] | None:
        """Return the member's announcement and its signature."""
        signed = self._announced.get(peer)
        return None if signed is None else (signed.announcement, signed.signature)

    def announcements(self) -> list[tuple[PeerId, Announcement]]:
        """Return all announcements, each with its member."""
        return [(peer, signed.announcement) for peer, signed in self._announced.items()]

    def take_in(self, record: Record, now: float) -> None:
        """Add the announcements that a record names, whose signatures were checked."""
        for entry in record.updates:
            self.announce(entry.peer, record.announcement(entry), entry.signature, now)

    def contradicted_by(self, record: Record) -> set[PeerId]:
        """Return the members for which a record names an announcement other than the one held here."""
        return {
            entry.peer
            for entry in record.updates
            if self._announced.get(entry.peer)
            != SignedAnnouncement(record.announcement(entry), entry.signature)
        }

    def contradicts(self, fingerprint: int) -> bool:
        """Whether most other members, by votes, share one fingerprint that differs from this one.

        Members are weighted by votes: otherwise a crowd without votes could make an honest member reload
        its parameters every round.
        """
        return any(
            other != fingerprint and 2 * votes > self._others.total
            for other, votes in self._fingerprints.items()
        )

    def held(self, update: ContentId, now: float) -> None:
        """Note that the update with this id is in the store and valid."""
        for peer in self._makers.get(update, ()):
            self._arrivals.setdefault(peer, now)

    def mark_invalid(self, update: ContentId) -> set[PeerId]:
        """Mark the update with this id as invalid, stop waiting for it, and return its announcers."""
        culprits = set(self._makers.get(update, ()))
        self._failed |= culprits
        return culprits

    def outstanding(self, expected: set[PeerId]) -> set[PeerId]:
        """Return the `expected` members whose update has not arrived."""
        return expected - self._arrivals.keys() - self._failed

    @property
    def settled(self) -> int:
        """Number of members that owe nothing more: their update is held or invalid."""
        return len(self._arrivals) + len(self._failed)

    def arrivals(self, start: float) -> list[float]:
        """Return how long after `start` each update became held, in seconds."""
        return [max(0.0, at - start) for at in self._arrivals.values()]

    def held_by(self, until: float) -> set[PeerId]:
        """Return the members whose update this member held at the time `until`."""
        return {peer for peer, at in self._arrivals.items() if at <= until}

    def missed_by(self, record: Record, until: float) -> set[PeerId]:
        """Return the members whose update was held at the time `until`, was trained from the record's
        parameters, and is missing from the record. Members that the record declares silent, or expels
        for two announcements, do not count, nor do copies of an update that is in the record."""
        named = {entry.peer: entry.update for entry in record.updates}
        ids = {*named.values()}
        gone = {entry.peer for entry in record.departed if entry.reason == "silent"}
        gone |= {proof.peer for proof in record.evidence if proof.announcements}
        return {
            peer
            for peer in self.held_by(until) - gone - self.contradictions.keys()
            for signed in (self._announced[peer].announcement,)
            if signed.fingerprint == record.fingerprint
            and named.get(peer) != signed.update
            and (self._shared or signed.update not in ids)
        }

    def awaited(self) -> set[PeerId]:
        """Return the members whose update was announced but has not arrived."""
        return self.outstanding({*self._announced})

    @property
    def last_arrival(self) -> float | None:
        """Time when the latest held update arrived."""
        # The dictionary is in order of arrival.
        return next(reversed(self._arrivals.values()), None)

    def entries(self, fingerprint: int) -> list[UpdateEntry]:
        """Return record entries, sorted by peer, of all held updates trained from the parameters with
        this fingerprint.

        An update counts once, for the member that announced it first, since a copy comes later. Only
        aggregates count for every announcer: the aggregators of a section announce the same one.
        """
        first: dict[ContentId, PeerId] = {}
        for peer, announcement in self.announcements():
            if announcement.fingerprint == fingerprint and peer not in self.contradictions:
                first.setdefault(announcement.update, peer)
        return [
            UpdateEntry(
                peer=peer,
                update=announcement.update,
                size=announcement.size,
                tokens=announcement.tokens,
                loss=announcement.loss,
                signature=signed.signature,
                capacity=announcement.capacity,
                max_version=announcement.max_version,
                commitment=announcement.commitment,
            )
            for peer, signed in sorted(self._announced.items(), key=lambda item: item[0])
            for announcement in (signed.announcement,)
            if peer in self._arrivals
            and peer not in self.contradictions
            and announcement.fingerprint == fingerprint
            and (self._shared or first[announcement.update] == peer)
        ]


class HeldUpdates:
    """Updates that this member holds or has requested."""

    def __init__(self) -> None:
        self.held: set[ContentId] = set()
        self._asked: set[tuple[int, ContentId]] = set()

    def fetch(self, round: int, peer: PeerId, update: ContentId, size: int) -> list[Effect]:
        """Request an update of `peer`, unless it is held or already requested."""
        if update in self.held or (round, update) in self._asked:
            return []
        self._asked.add((round, update))
        return [FetchUpdate(round, peer, update, size)]

    def fetch_all(self, round: int, entries: Iterable[UpdateEntry]) -> list[Effect]:
        """Request each of these updates that is neither held nor requested."""
        return [
            effect
            for entry in entries
            for effect in self.fetch(round, entry.peer, entry.update, entry.size)
        ]

    def arrived(self, update: ContentId, ledger: Ledger, applied_round: int) -> None:
        """Note an update's arrival. It counts as held if it is still wanted: its round may be over."""
        rounds = range(applied_round + 1, len(ledger) + 1)
        if any((round_, update) in self._asked for round_ in rounds):
            self.held.add(update)

    def loaded(self) -> None:
        """Reset after parameters were loaded: all updates can be requested again. None counts as held
        until it has arrived again, since the disk may have lost it, which may be why the parameters were
        loaded."""
        self._asked.clear()
        self.held.clear()

    def decided(self, ledger: Ledger, applied_round: int) -> None:
        """Drop the updates that do not count in the round just decided, because they are deleted from
        the disk, too (`chain/retention.py`). If one is announced again, it is requested again.

        Updates that count stay until they are applied. So does an update that counts in an earlier round
        not applied yet, even if it was requested only because a member announced it again in this round.
        """
        over = len(ledger) - 1
        counted = {entry.update for entry in ledger[over].record.updates}
        self._asked = {
            (round_, update)
            for round_, update in self._asked
            if round_ > applied_round and (round_ != over or update in counted)
        }
        missed = self.held - {update for _, update in self._asked}
        for round_ in range(over, applied_round, -1):
            if not missed:
                break
            missed -= {entry.update for entry in ledger[round_].record.updates}
        self.held -= missed

    def applied(self, round: int, updates: set[ContentId]) -> None:
        """Drop this round's updates, now applied, unless a later round names them again."""
        self._asked = {(round_, update) for round_, update in self._asked if round_ > round}
        self.held -= updates - {update for _, update in self._asked}
