"""Fetching updates: whom to ask, when to go on asking, and what becomes of the bytes that come.

Only their content id and their decoding make bytes an update. A liar can tell one member something else
beside the id (a size, whose it is) than another; if that decided what is valid, a single liar could make
honest members disagree on what they hold. An announced size is a hint for planning; the longest update
that the manifest's layout allows bounds what is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from .effects import FetchUpdate
from .inputs import Input, UpdateBad, UpdateHeld, UpdatesGone

FETCH_SECONDS = 120.0
"""A download is given up after this and begun again while the round still needs it."""

FETCH_PAUSE_SECONDS = 1.0
"""Before it is begun again."""


@dataclass(frozen=True)
class Verdict:
    """What becomes of bytes that came."""

    report: Input
    """For the member."""
    discard: bool = False
    """Whether to remove them from the store."""
    culprit: PeerId | None = None
    """The member that announced bytes that are no update."""


class Fetching:
    """The updates that one member fetches at present."""

    def __init__(self) -> None:
        # Whether the bytes were not in the store before they were asked for.
        self._new: dict[tuple[int, ContentId], bool] = {}

    def begin(self, wanted: FetchUpdate, *, stored: bool) -> bool:
        """Whether to begin: it may be under way already. `stored` says whether the bytes are here,
        perhaps as something else of ours."""
        key = (wanted.round, wanted.update)
        if key in self._new:
            return False
        self._new[key] = not stored
        return True

    def is_new(self, wanted: FetchUpdate) -> bool:
        """Whether the bytes were fetched for this."""
        return self._new.get((wanted.round, wanted.update), False)

    def goes_on(self, wanted: FetchUpdate, applied_round: int) -> bool:
        """Whether to ask (again): not for a round that is in the parameters."""
        return wanted.round > applied_round

    def end(self, wanted: FetchUpdate) -> None:
        """It is no longer under way, however it ended."""
        self._new.pop((wanted.round, wanted.update), None)

    @property
    def under_way(self) -> set[ContentId]:
        """What is fetched at present, or found to be here already and looked at."""
        return {update for _, update in self._new}

    def providers(
        self, wanted: FetchUpdate, ledger: Ledger, connected: Iterable[PeerId]
    ) -> list[PeerId]:
        """Whom to ask, of those who are `connected`, in random order. Who made it certainly has it; the
        other members come in when it is slow or gone; and last who has been a member, as one that left
        may be the only one who has it. Nobody else has any use for an update, but for newcomers: where
        none of the others is there, they are asked."""
        connected = list(connected)
        members = ledger.membership(len(ledger))
        others = [p for p in connected if p != wanted.peer and ledger.has_been_member(p)]
        others.sort(key=lambda peer: peer not in members)
        known = [wanted.peer, *others] if wanted.peer in connected else others
        return known or connected

    def is_needed(self, round: int, ledger: Ledger, applied_round: int) -> bool:
        """Whether nothing but the updates of `round` takes the parameters past it."""
        newest = ledger.snapshot
        contained = newest is not None and newest.round >= round
        return round > applied_round and not contained

    def in_vain(self, wanted: FetchUpdate, ledger: Ledger, applied_round: int) -> list[Input]:
        """All who could have it say that they have not: what to tell the member."""
        if self.is_needed(wanted.round, ledger, applied_round):
            return []
        return [UpdatesGone(wanted.round)]

    def arrived(self, wanted: FetchUpdate, *, decodes: bool) -> Verdict:
        """The bytes with this content id are here, and decode in this swarm's layout or not."""
        if decodes:
            return Verdict(UpdateHeld(wanted.update))
        # What was here before is something else of ours that a liar named: it stays.
        discard = self.is_new(wanted)
        return Verdict(UpdateBad(wanted.update), discard=discard, culprit=wanted.peer)
