"""A chain with committees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.committees import CommitteeChain
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec, ScheduleSpec
from distro_node.protocol.wire.messages import UpdateEntry
from distro_node.protocol.wire.work_specs import SpeakersSpec
from simulation.chain import Chain

LIE = content_id(b"a lie")


def tally(panel: Iterable[PeerId], round_: int) -> ContentId:
    """Return the correct aggregate of a committee in a round."""
    return content_id(b"".join(panel) + bytes([round_]))


class Spoken(Chain):
    """A chain whose committees announce correct aggregates, except the members in `lying`."""

    def __init__(
        self,
        count: int = 6,
        *,
        term: int = 2,
        total: int = 1000,
        audit: bool = False,
        **rounds: Any,
    ) -> None:
        self.lying: set[PeerId] = set()
        super().__init__(
            count,
            speakers=SpeakersSpec(panel=3, term=term),
            # Eight blocks, so that every committee has a section.
            parameters=(ParameterSpec(name="weight", shape=(512, 64)),),
            optimizer=OptimizerSpec(audit=audit),
            schedule=ScheduleSpec(total_rounds=total, warmup_rounds=0),
            **rounds,
        )

    @property
    def speaking(self) -> CommitteeChain:
        assert self.ledger.speaking is not None
        return self.ledger.speaking

    def tallies(self) -> list[UpdateEntry]:
        """Return the aggregates of all members that are due in this round."""
        panels = self.speaking.term(self.round).panels
        return [
            self.update(
                peer, update=LIE if peer in self.lying else tally(panel, self.round), size=700
            )
            for panel in panels
            for peer in panel
            if peer in self.membership
        ]

    def grow(self, **parts: Any) -> Any:
        if self.manifest.speaks(self.round):
            parts.setdefault("updates", self.tallies())
        return super().grow(**parts)
