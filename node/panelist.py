"""What this node tells panels, and what it says for the section of its own, step by step.

It may be silent in a step, or come in the middle of a term. If its panel has agreed on nothing
meanwhile, it goes on, since then nothing was heard; else it is silent until the next term.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from ..crypto.hashing import ContentId
from ..crypto.identity import PeerId
from ..protocol.chain.speaking import Place
from ..protocol.codec.sections import sections
from ..protocol.codec.sheet import step_of
from ..protocol.codec.speaker import Speaker
from ..protocol.codec.update import update_layout
from ..protocol.member.effects import Tally, Train
from ..protocol.member.inputs import Input, Trained
from ..protocol.wire.manifest import Manifest
from ..protocol.wire.work_specs import SpeakersSpec
from .sheets import Sheets
from .storage.blob_store import BlobStore
from .trainer.client import Trained as Made
from .updates import Updates, report_of

_log = logging.getLogger(__name__)


class Panelist:
    """One node's part in the panels of a swarm."""

    def __init__(
        self,
        manifest: Manifest,
        speakers: SpeakersSpec,
        store: BlobStore,
        updates: Updates,
        sheets: Sheets,
        report: Callable[[Input], None],
    ) -> None:
        self._one_of = speakers.one_of
        self._store = store
        self._updates = updates
        self._sheets = sheets
        self._report = report
        optimizer = manifest.optimizer
        self._layout = update_layout(manifest.parameters, optimizer.chunk, optimizer.top_k)
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._place: Place | None = None
        self._speaker: Speaker | None = None
        # What the panel has agreed on in the steps of the term that the speaker has behind it, and in
        # which one it said something that is not settled yet.
        self._behind: list[ContentId | None] = []
        self._open: int | None = None

    async def tell(self, what: Train, made: Made) -> None:
        """Make a sheet of what the trainer has made, and report it. Raises `DiskFull`."""
        sheet = await self._sheets.cut(what.round, made.body)
        if sheet is not None:
            self._report(report_of(what, sheet, made))

    async def say(self, effect: Tally) -> None:
        """Make the tally that is asked for, and report it, unless this node cannot follow its panel.
        Raises `DiskFull`."""
        parts = await self._parts(effect)
        say = partial(self._say, effect, parts)
        tally = await trio.to_thread.run_sync(say, limiter=self._one_at_a_time)
        if tally is None:
            return
        update = await trio.to_thread.run_sync(self._store.put, tally)
        self._updates.keep(effect.round, update)
        self._report(Trained(effect.round, effect.round, update, len(tally), 0, 0.0))

    async def _parts(self, effect: Tally) -> list[tuple[bytes | None, int]]:
        """The section's part of each sheet, of those that are here in time, and how often it counts."""
        place, found = (effect.section, effect.sections), dict[ContentId, bytes]()
        told = effect.told

        async def get(peer: PeerId, sheet: ContentId) -> None:
            found[sheet] = await self._sheets.wait_for(told.round, peer, sheet, place)

        with trio.move_on_after(effect.patience):
            async with trio.open_nursery() as nursery:
                for entry in told.updates:
                    nursery.start_soon(get, entry.peer, entry.update)
        entries = zip(told.updates, effect.counts, strict=True)
        return [(found.get(entry.update), count) for entry, count in entries]

    def _say(self, effect: Tally, parts: list[tuple[bytes | None, int]]) -> bytes | None:
        speaker = self._follow(effect)
        if speaker is None:
            _log.info("silent in round %d: the panel counted what is not known here", effect.round)
            return None
        self._open = len(effect.agreed)
        return speaker.say(step_of(effect.round), parts)

    def _follow(self, effect: Tally) -> Speaker | None:
        """A speaker that has heard what the panel has agreed on in the term so far."""
        place, agreed = (effect.section, effect.sections), list(effect.agreed)
        behind = len(self._behind)
        same = self._place == place and self._behind == agreed[:behind]
        # Where nothing was agreed on yet, a new term may have begun.
        if self._speaker is None or not same or not agreed:
            own = sections(self._layout, effect.sections)[effect.section]
            self._place, self._speaker = place, Speaker(own, *place, self._one_of)
            self._behind, self._open, behind = [], None, 0
        for step, tally in enumerate(agreed[behind:], start=behind):
            if not self._settles(self._speaker, step, tally):
                self._speaker = None
                break
            self._behind.append(tally)
        return self._speaker

    def _settles(self, speaker: Speaker, step: int, tally: ContentId | None) -> bool:
        """Whether a speaker can go on from what counted in a step of the term."""
        if self._open != step:
            return tally is None
        body = None if tally is None else self._store.get(tally)
        return (tally is None or body is not None) and speaker.settle(body)


def panelist_of(
    manifest: Manifest, store: BlobStore, updates: Updates, report: Callable[[Input], None]
) -> Panelist | None:
    """That of a swarm in which panels speak for the others; `report` hands the member an input."""
    if manifest.speakers is None or updates.sheets is None:
        return None
    return Panelist(manifest, manifest.speakers, store, updates, updates.sheets, report)
