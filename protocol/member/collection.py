"""Updates: who announced what in a round, what is held, and what was asked for.

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


class Collection:
    """Announcements of one round by member, with the time each update was held."""

    def __init__(self, others: Votes, *, shared: bool = False) -> None:
        """`others`: the votes of the other members. `shared`: several may announce the same, and each
        counts."""
        self._others = others
        self._shared = shared
        self._announced: dict[PeerId, SignedAnnouncement] = {}
        # The members that each update is from: with a thousand, one is held every few milliseconds.
        self._makers: dict[ContentId, list[PeerId]] = {}
        self._fingerprints: Counter[int] = Counter()
        self._arrivals: dict[PeerId, float] = {}
        self._failed: set[PeerId] = set()
        self.last_announced: float | None = None
        """When the latest announcement came."""
        self.contradictions: dict[PeerId, Evidence] = {}
        """Members that announced two things, each with a proof of it. Some members heard the one, some
        the other, so no leader names either, and no voter asks for one."""

    def announce(
        self, peer: PeerId, announcement: Announcement, signature: bytes, now: float = 0.0
    ) -> bool:
        """Take in an announcement whose signature was checked. The first of a member counts; of another
        one a proof is kept. Returns whether it is no other."""
        said, known = SignedAnnouncement(announcement, signature), self._announced.get(peer)
        if known is not None:
            if said != known and peer not in self.contradictions:
                self.contradictions[peer] = accuse_of_announcements(peer, known, said)
                if peer not in self._arrivals:
                    self._failed.add(peer)
            return said == known
        self._announced[peer] = said
        self.last_announced = now
        self._makers.setdefault(announcement.update, []).append(peer)
        self._fingerprints[announcement.fingerprint] += self._others[peer]
        return True

    def announced(self, peer: PeerId) -> bool:
        """Whether the member has announced its update."""
        return peer in self._announced

    def said(self, peer: PeerId) -> tuple[Announcement, bytes] | None:
        """The member's announcement and the signature under it."""
        said = self._announced.get(peer)
        return None if said is None else (said.announcement, said.signature)

    def announcements(self) -> list[tuple[PeerId, Announcement]]:
        """All announcements, each with its member."""
        return [(peer, said.announcement) for peer, said in self._announced.items()]

    def take_in(self, record: Record, now: float) -> None:
        """Take in the announcements that a record names, whose signatures were checked."""
        for entry in record.updates:
            self.announce(entry.peer, record.announcement(entry), entry.signature, now)

    def contradicted_by(self, record: Record) -> set[PeerId]:
        """Those of whom a record names another announcement than they made here."""
        return {
            entry.peer
            for entry in record.updates
            if self._announced.get(entry.peer)
            != SignedAnnouncement(record.announcement(entry), entry.signature)
        }

    def contradicts(self, fingerprint: int) -> bool:
        """Whether most of the other members, by their votes, trained from the same other parameters than
        these. A crowd without votes would otherwise have an honest member load them in every round."""
        return any(
            other != fingerprint and 2 * votes > self._others.total
            for other, votes in self._fingerprints.items()
        )

    def held(self, update: ContentId, now: float) -> None:
        """The update with this id is in the store and good."""
        for peer in self._makers.get(update, ()):
            self._arrivals.setdefault(peer, now)

    def bad(self, update: ContentId) -> set[PeerId]:
        """The update with this id is no update: its announcers are not waited for any more."""
        culprits = set(self._makers.get(update, ()))
        self._failed |= culprits
        return culprits

    def outstanding(self, expected: set[PeerId]) -> set[PeerId]:
        """Those of the `expected` members whose update is still to come."""
        return expected - self._arrivals.keys() - self._failed

    @property
    def settled(self) -> int:
        """How many members have nothing more to come: their update is held, or is none."""
        return len(self._arrivals) + len(self._failed)

    def arrivals(self, start: float) -> list[float]:
        """How long after `start` each update was held, in seconds."""
        return [max(0.0, at - start) for at in self._arrivals.values()]

    def held_by(self, until: float) -> set[PeerId]:
        """Those whose update was held at that time."""
        return {peer for peer, at in self._arrivals.items() if at <= until}

    def missed_by(self, record: Record, until: float) -> set[PeerId]:
        """Those whose update, trained from the parameters of a record, was held at that time, and is
        missing there. Not missed is what the record says of: who is silent or expelled; and a copy."""
        named = {entry.peer: entry.update for entry in record.updates}
        ids = {*named.values()}
        gone = {entry.peer for entry in record.departed if entry.reason == "silent"}
        gone |= {proof.peer for proof in record.evidence if proof.announcements}
        return {
            peer
            for peer in self.held_by(until) - gone - self.contradictions.keys()
            for said in (self._announced[peer].announcement,)
            if said.fingerprint == record.fingerprint
            and named.get(peer) != said.update
            and (self._shared or said.update not in ids)
        }

    def awaited(self) -> set[PeerId]:
        """Those whose update was announced and is still to come."""
        return self.outstanding({*self._announced})

    @property
    def updates(self) -> set[ContentId]:
        """The ids of all announced updates."""
        return {said.announcement.update for said in self._announced.values()}

    @property
    def last_arrival(self) -> float | None:
        """When the latest held update came."""
        # They were held in the order in which they are kept.
        return next(reversed(self._arrivals.values()), None)

    def entries(self, fingerprint: int) -> list[UpdateEntry]:
        """Record entries, sorted by peer, of all held updates trained from these parameters.

        An update counts once, for whom it was announced by first, since a copy comes later; but not
        where those who speak for one section announce what they agree on.
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
                signature=said.signature,
                capacity=announcement.capacity,
                speaks=announcement.speaks,
                commitment=announcement.commitment,
            )
            for peer, said in sorted(self._announced.items(), key=lambda item: item[0])
            for announcement in (said.announcement,)
            if peer in self._arrivals
            and peer not in self.contradictions
            and announcement.fingerprint == fingerprint
            and (self._shared or first[announcement.update] == peer)
        ]


class Holdings:
    """The updates that this member holds, and those that it asked the world for."""

    def __init__(self) -> None:
        self.held: set[ContentId] = set()
        self._asked: set[tuple[int, ContentId]] = set()

    def fetch(self, round: int, peer: PeerId, update: ContentId, size: int) -> list[Effect]:
        """Ask for an update of `peer`, unless it is held or was asked for."""
        if update in self.held or (round, update) in self._asked:
            return []
        self._asked.add((round, update))
        return [FetchUpdate(round, peer, update, size)]

    def fetch_all(self, round: int, entries: Iterable[UpdateEntry]) -> list[Effect]:
        """Ask for all of these updates that are not held yet."""
        return [
            effect
            for entry in entries
            for effect in self.fetch(round, entry.peer, entry.update, entry.size)
        ]

    def arrived(self, update: ContentId, ledger: Ledger, applied_round: int) -> None:
        """An update is there. It is held if it is still asked for: its round may be over by now."""
        rounds = range(applied_round + 1, len(ledger) + 1)
        if any((round_, update) in self._asked for round_ in rounds):
            self.held.add(update)

    def loaded(self, announced: set[ContentId], ledger: Ledger, applied_round: int) -> None:
        """Parameters were loaded: ask again for what they lack, drop what they leapt over."""
        self._asked.clear()
        needed = set(announced)
        for round_ in range(applied_round + 1, len(ledger)):
            needed |= {entry.update for entry in ledger[round_].record.updates}
        self.held &= needed

    def decided(self, ledger: Ledger, applied_round: int) -> None:
        """A round was decided: drop what did not count in it, however it was heard of, since the disk
        throws it away (`chain/keeping.py`). If it comes up again it is asked for again.

        Those that count stay until they are applied, and so do those of earlier rounds that still
        are to be applied: somebody may have announced such a one again.
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
        """These, of this round, are in the parameters. One that comes up later as well stays."""
        self._asked = {(round_, update) for round_, update in self._asked if round_ > round}
        self.held -= updates - {update for _, update in self._asked}
