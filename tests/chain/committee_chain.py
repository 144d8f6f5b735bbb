"""A chain with committees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.committees import CommitteeChain
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec, ScheduleSpec
from distro_node.protocol.wire.messages import UpdateEntry
from distro_node.protocol.wire.work_specs import CommitteesSpec
from simulation.chain import Chain

LIE = content_id(b"a lie")


def aggregate(committee: Iterable[PeerId], round_: int) -> ContentId:
    """Return the correct aggregate of a committee in a round."""
    return content_id(b"".join(committee) + bytes([round_]))


class AggregatedChain(Chain):
    """A chain whose committees announce correct aggregates, except the members in `lying`."""

    def __init__(
        self,
        count: int = 6,
        *,
        epoch: int = 2,
        total: int = 1000,
        outlier_filter: bool = False,
        **rounds: Any,
    ) -> None:
        self.lying: set[PeerId] = set()
        super().__init__(
            count,
            committees=CommitteesSpec(min_members=3, epoch_steps=epoch),
            # Eight blocks, so that every committee has a section.
            parameters=(ParameterSpec(name="weight", shape=(512, 64)),),
            optimizer=OptimizerSpec(outlier_filter=outlier_filter),
            schedule=ScheduleSpec(total_rounds=total, warmup_rounds=0),
            **rounds,
        )

    @property
    def committee_chain(self) -> CommitteeChain:
        return self.ledger.index(CommitteeChain)

    def aggregates(self) -> list[UpdateEntry]:
        """Return the aggregates of all members that are due in this round."""
        committees = self.committee_chain.epoch(self.round).committees
        return [
            self.update(
                peer,
                update=LIE if peer in self.lying else aggregate(committee, self.round),
                size=700,
            )
            for committee in committees
            for peer in committee
            if peer in self.membership
        ]

    def grow(self, **parts: Any) -> Any:
        if self.manifest.aggregates_in(self.round):
            parts.setdefault("updates", self.aggregates())
        return super().grow(**parts)
