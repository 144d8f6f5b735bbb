"""Panels: who speaks for which section of the model, which tallies count, and who speaks no longer.

Where members speak for sections, all that is learned of a section goes through its *panel*: three
members or more who hear the same sheets and so come to the same tally, to the last bit. What the panel
says counts if nobody in it says anything else, and two of it say it at least (one, where it is alone in
the swarm). So a lone liar can make its panel say nothing in a step, but nothing wrong: that takes two
liars in a panel of which nobody honest is heard, since there is none, or a leader leaves them out
(`member/completeness`). Where one of a panel is left in the swarm, honest or not, its section stays as
it is until the next term.

Panels are drawn anew for each *term* of so many steps, by the beacon, which nobody can choose. Who said
something else than most of its panel is *struck*, and is not drawn for two terms; the next time for
four, and so on. Two liars beside an honest member have that one struck; but where most members are
honest, liars are struck many times as often, and soon hardly ever drawn. Each term in which somebody
speaks and is not struck takes one strike away.

All of this follows from the records, so everybody knows the same panels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId
from ..codec.sections import panel_count

Panel = tuple[PeerId, ...]
"""The members that speak for one section."""

# Who is new is not drawn for so many whole terms.
_NEW_TERMS = 4
# Nobody is left out for longer than so many terms, two to the power of this.
_MOST_STRIKES = 8


@dataclass(frozen=True, slots=True)
class Standing:
    """How often somebody was struck, but for what was made good, and when it may be drawn again."""

    strikes: int = 0
    back: int = 0
    """The first term in which it may be drawn again."""

    def struck(self, term: int) -> Standing:
        """After a term in which it said something else than most of its panel."""
        strikes = min(self.strikes + 1, _MOST_STRIKES)
        return Standing(strikes, term + 1 + (1 << strikes))

    def newly_admitted(self, term: int) -> Standing:
        """After it was admitted in a term, again or for the first time: identities cost nothing, so who
        was struck must not be back the sooner with another one."""
        return Standing(self.strikes, max(self.back, term + 1 + _NEW_TERMS))

    def served(self) -> Standing:
        """After a term in which it spoke, and was not struck."""
        return Standing(max(0, self.strikes - 1), self.back)


def draw_panels(
    members: Iterable[PeerId], *, size: int, most: int, seed: bytes
) -> tuple[Panel, ...]:
    """The panels of a term: as many as there can be of so many members each, but no more than `most`,
    one at least. Who is left over joins one of them; all are of one size, or one larger."""
    order = sorted(members, key=lambda peer: content_id(seed + peer))
    count = panel_count(len(order), size, most)
    return tuple(tuple(order[first::count]) for first in range(count))


def may_speak(
    members: Collection[PeerId], standings: Mapping[PeerId, Standing], term: int
) -> list[PeerId]:
    """Those who may be drawn for a term: everybody, where fewer than half are not out."""
    able = [peer for peer in members if standings.get(peer, Standing()).back <= term]
    return able if 2 * len(able) >= len(members) else list(members)


def agreed_tally(
    panel: Panel, said: Mapping[PeerId, ContentId], present: Collection[PeerId]
) -> ContentId | None:
    """The tally of a panel that counts; None if none does. `said`: the tally of each member that the
    record names; `present`: the members of the round."""
    told = [said[peer] for peer in panel if peer in said]
    needed = min(2, len(present))
    return told[0] if told and len(told) >= needed and len({*told}) == 1 else None


def against_most(panel: Panel, said: Mapping[PeerId, ContentId]) -> frozenset[PeerId]:
    """Those of a panel who said something else than most of those who spoke; all who spoke, where they
    differ and no tally has more behind it than each of the others."""
    told = {peer: said[peer] for peer in panel if peer in said}
    ranked = Counter(told.values()).most_common(2)
    if len(ranked) < 2:
        return frozenset()
    (first, most), (_, next_most) = ranked
    return frozenset(peer for peer, tally in told.items() if tally != first or most == next_most)
