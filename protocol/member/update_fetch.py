"""Fetching updates: which peers to ask, when to retry, and what to do with the received bytes.

A blob is accepted as an update if it has the announced content id and decodes; nothing else is checked.
A liar can send different members different metadata (size, author) for one id. If metadata decided what
is valid, a single liar could make honest members disagree on what they hold. An announced size is only a
hint for planning; a download is bounded by the longest update that the manifest's layout allows.
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
"""A download is aborted after this time, and restarted as long as the round needs it."""

FETCH_PAUSE_SECONDS = 1.0
"""Pause before the restart."""


@dataclass(frozen=True)
class FetchVerdict:
    """Result of a fetch."""

    report: Input
    """Input for the member."""
    discard: bool = False
    """Whether to remove the bytes from the store."""
    culprit: PeerId | None = None
    """The member that announced these bytes, if they are not an update."""


class UpdateDownloads:
    """Downloads of updates in progress."""

    def __init__(self) -> None:
        # Whether the bytes were missing from the store before the request.
        self._new: dict[tuple[int, ContentId], bool] = {}

    def begin(self, wanted: FetchUpdate, *, stored: bool) -> bool:
        """Register a download and return whether to start it: it may be under way already.

        `stored` says whether the store has the bytes already. They may be there for another purpose, for
        example as a chunk of a snapshot.
        """
        key = (wanted.round, wanted.update)
        if key in self._new:
            return False
        self._new[key] = not stored
        return True

    def is_new(self, wanted: FetchUpdate) -> bool:
        """Whether the bytes were fetched by this request."""
        return self._new.get((wanted.round, wanted.update), False)

    def continues(self, wanted: FetchUpdate, applied_round: int, *, loaded: bool = True) -> bool:
        """Whether to ask (again): not for a round that is already applied, and not while no parameters
        are `loaded`. In that case a snapshot is being fetched, which contains some of the updates and
        needs the bandwidth. The member requests the other updates once the snapshot is loaded."""
        return loaded and wanted.round > applied_round

    def end(self, wanted: FetchUpdate) -> None:
        """Unregister a download, however it ended."""
        self._new.pop((wanted.round, wanted.update), None)

    @property
    def under_way(self) -> set[ContentId]:
        """Ids of updates being fetched, or found in the store and being checked."""
        return {update for _, update in self._new}

    def providers(
        self, wanted: FetchUpdate, ledger: Ledger, connected: Iterable[PeerId]
    ) -> list[PeerId]:
        """Return the peers to ask, in order, out of `connected`, which is in random order.

        The author comes first, because it certainly has the update; then the other members, in case the
        author is slow or gone; then former members, since one that left may be the last holder. Other
        peers do not keep updates, except newcomers, which are asked if none of these is connected.
        """
        connected = list(connected)
        members = ledger.membership(len(ledger))
        others = [p for p in connected if p != wanted.peer and ledger.has_been_member(p)]
        others.sort(key=lambda peer: peer not in members)
        known = [wanted.peer, *others] if wanted.peer in connected else others
        return known or connected

    def is_needed(self, round: int, ledger: Ledger, applied_round: int) -> bool:
        """Whether the parameters can get past `round` only by its updates, because no certified snapshot
        contains them."""
        newest = ledger.snapshot
        contained = newest is not None and newest.round >= round
        return round > applied_round and not contained

    def in_vain(self, wanted: FetchUpdate, ledger: Ledger, applied_round: int) -> list[Input]:
        """Return the inputs to report if no peer that could have the update has it."""
        if self.is_needed(wanted.round, ledger, applied_round):
            return []
        return [UpdatesGone(wanted.round)]

    def arrived(self, wanted: FetchUpdate, *, decodes: bool) -> FetchVerdict:
        """Return the result for received bytes; `decodes` says whether they are an update of this
        swarm's layout."""
        if decodes:
            return FetchVerdict(UpdateHeld(wanted.update))
        # Keep bytes that the store had before: a liar announced the id of another blob of this node.
        discard = self.is_new(wanted)
        return FetchVerdict(UpdateBad(wanted.update), discard=discard, culprit=wanted.peer)
