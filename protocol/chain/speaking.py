"""The panels of a chain: who speaks in each of its rounds, and which tallies of a record count.

A step takes two rounds (`SpeakersSpec`): members tell what they found in an odd one, and panels speak in
the even one behind it. Panels are drawn for a term of steps, when its first round begins, by the beacon
of the one before. How members stand follows from the records of the terms before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..codec.layout import manifest_layout
from ..codec.sections import most_sections
from ..codec.sheet import step_of
from ..codec.tally import SAID_NOTHING
from ..wire.manifest import Manifest, SpeakersSpec
from ..wire.membership import Membership
from ..wire.messages import Record
from .beacon import Beacon
from .panels import (
    Panel,
    Standing,
    against_most,
    agreed_tally,
    draw_panels,
    may_speak,
)

Place = tuple[int, int]
"""A section's number, and how many there are."""


@dataclass(frozen=True)
class Term:
    """The panels of some steps."""

    panels: tuple[Panel, ...]
    """By section."""
    standings: Mapping[PeerId, Standing]
    """How members stood when they were drawn; who is not named was never struck, nor new."""

    def section_of(self, peer: PeerId) -> int | None:
        """For which section a member speaks; None if for none."""
        found = (number for number, panel in enumerate(self.panels) if peer in panel)
        return next(found, None)


class Speaking:
    """The panels of a ledger, to be grown by one record."""

    def __init__(
        self,
        manifest: Manifest,
        spec: SpeakersSpec,
        memberships: Sequence[Membership],
        beacon: Beacon,
    ) -> None:
        """`memberships` and `beacon` are the ledger's, and grow before this does."""
        self._manifest = manifest
        self._spec = spec
        self._memberships = memberships
        self._beacon = beacon
        self._most = most_sections(manifest_layout(manifest))
        # The terms that have begun.
        self._terms: list[Term] = []
        # How many records it has followed.
        self._length = 0
        self._begin_notes()

    def term(self, round: int) -> Term:
        """The term of a round in which members train or panels speak, at most the next one."""
        return self._terms[self._number(round)]

    def place(self, round: int, peer: PeerId) -> Place | None:
        """For which section a member speaks in the step of a round, and how many there are; None if for
        none, or if that round's panels are not drawn."""
        term = self._known(round)
        section = None if term is None else term.section_of(peer)
        return None if term is None or section is None else (section, len(term.panels))

    def sections(self, round: int) -> int:
        """How many sections there are in the step of a round; 0 if its panels are not drawn."""
        term = self._known(round)
        return 0 if term is None else len(term.panels)

    def panel(self, round: int, section: int) -> Panel:
        """Who speaks for a section in the step of a round; nobody if that round's panels are not
        drawn."""
        term = self._known(round)
        panels = () if term is None else term.panels
        return panels[section] if section < len(panels) else ()

    def agreed(self, section: int) -> tuple[ContentId, ...]:
        """The tallies of a section that counted in the latest term, since the last step without one.
        What its speakers hold comes of these alone."""
        return tuple(self._agreed.get(section, ()))

    def due(self, round: int) -> frozenset[PeerId]:
        """The members whose tally is due in a round: none unless panels speak in it."""
        if not self._manifest.speaks(round):
            return frozenset()
        return frozenset(peer for panel in self.term(round).panels for peer in panel)

    def tallies(self, record: Record) -> tuple[ContentId | None, ...]:
        """By section the tally that counts in a round in which panels speak; None where none does."""
        said = _said(record)
        present = self._memberships[record.round].peers
        panels = self.term(record.round).panels
        return tuple(agreed_tally(panel, said, present) for panel in panels)

    def counts(self, record: Record) -> dict[PeerId, int]:
        """How often each update of a record counts in the step: each tally that counts once, for the
        first of those who say it; sheets do not."""
        found = {entry.peer: 0 for entry in record.updates}
        if not self._manifest.speaks(record.round):
            return found
        counted = self.tallies(record)
        for panel, tally in zip(self.term(record.round).panels, counted, strict=True):
            said = (e.peer for e in record.updates if e.peer in panel and e.update == tally)
            if (first := next(said, None)) is not None:
                found[first] = 1
        return found

    def counted(self, record: Record) -> set[PeerId]:
        """Those whose updates it takes to apply a record: one for each tally that counts. Sheets are for
        those who speak."""
        return {peer for peer, count in self.counts(record).items() if count}

    def places(self, record: Record) -> dict[PeerId, Place]:
        """By who says it, for which section each tally is that counts, and how many there are."""
        places = ((peer, self.place(record.round, peer)) for peer in self.counted(record))
        return {peer: place for peer, place in places if place is not None}

    def follow(self, record: Record) -> None:
        """Add what comes after the last `record`, which must have been checked."""
        self._note(record)
        following = self._length = record.round + 1
        if not self._manifest.schedule.trains(following) or self._manifest.speaks(following):
            return
        if self._number(following) == len(self._terms):
            self._terms.append(self._drawn(following))
            self._begin_notes()

    def before(
        self,
        length: int,
        memberships: Sequence[Membership],
        beacon: Beacon,
        records: Callable[[int], Record],
    ) -> Speaking:
        """That of the first `length` records, in a ledger with these parts."""
        copy = Speaking.__new__(Speaking)
        vars(copy).update(vars(self))
        copy._memberships, copy._beacon = memberships, beacon
        # The term of the next round has begun if that is a first one; its own records are read again.
        begun = 0 if length == 0 else min(self._number(length) + 1, len(self._terms))
        copy._terms = self._terms[:begun]
        if length == self._length:
            copy._copy_notes(self)
            return copy
        copy._begin_notes()
        copy._length = length
        for round_ in range(2 * self._spec.term * max(0, begun - 1) + 1, length):
            copy._note(records(round_))
        return copy

    def _known(self, round: int) -> Term | None:
        """The term of a round, if its panels are drawn."""
        number = self._number(round)
        return self._terms[number] if 0 <= number < len(self._terms) else None

    def _number(self, round: int) -> int:
        return step_of(round) // self._spec.term

    def _begin_notes(self) -> None:
        # Of the latest term: what counted, who said anything, who was struck, and who was admitted.
        self._agreed: dict[int, list[ContentId]] = {}
        self._spoke: set[PeerId] = set()
        self._struck: set[PeerId] = set()
        self._admitted: set[PeerId] = set()

    def _copy_notes(self, other: Speaking) -> None:
        self._agreed = {section: [*said] for section, said in other._agreed.items()}
        self._spoke, self._struck = {*other._spoke}, {*other._struck}
        self._admitted = {*other._admitted}

    def _note(self, record: Record) -> None:
        # Who is there when training begins is not new.
        if record.round > 0:
            self._admitted |= {entry.peer for entry in record.admitted}
        if not self._manifest.speaks(record.round):
            return
        said = _said(record)
        for panel in self.term(record.round).panels:
            self._struck |= against_most(panel, said)
        self._spoke |= said.keys()
        for section, tally in enumerate(self.tallies(record)):
            so_far = self._agreed.get(section, [])
            self._agreed[section] = [] if tally is None else [*so_far, tally]

    def _drawn(self, round: int) -> Term:
        """The term that begins with a round."""
        number, members = len(self._terms), self._memberships[round].peers
        standings = self._standings()
        panels = draw_panels(
            may_speak(members, standings, number),
            size=self._spec.panel,
            most=self._most,
            seed=self._beacon[round - 1],
        )
        return Term(panels, standings)

    def _standings(self) -> Mapping[PeerId, Standing]:
        """How members stand when the latest term is over."""
        if not self._terms:
            return {}
        last = len(self._terms) - 1
        known = self._terms[last].standings
        after = dict(known)
        for peer in self._spoke | self._admitted:
            standing = after.get(peer, Standing())
            if peer in self._struck:
                standing = standing.struck(last)
            elif peer in self._spoke:
                standing = standing.served()
            if peer in self._admitted:
                standing = standing.newly_admitted(last)
            after[peer] = standing
        # Of whom there is nothing to hold against is forgotten: identities come and go without end.
        after = {
            peer: standing
            for peer, standing in after.items()
            if standing.strikes or standing.back > last + 1
        }
        return known if after == known else after


def _said(record: Record) -> dict[PeerId, ContentId]:
    """The tallies of a record by who says them."""
    said = ((entry.peer, entry.update) for entry in record.updates)
    return {peer: tally for peer, tally in said if tally != SAID_NOTHING}


def speaking_of(
    manifest: Manifest, memberships: Sequence[Membership], beacon: Beacon | None
) -> Speaking | None:
    """That of a new ledger; None where everybody speaks of everything."""
    spec = manifest.speakers
    if spec is None or beacon is None:
        return None
    return Speaking(manifest, spec, memberships, beacon)
