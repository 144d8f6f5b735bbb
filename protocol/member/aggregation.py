"""Part of a member that orders aggregates from its trainer, in a swarm with committees."""

from __future__ import annotations

from dataclasses import dataclass

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.committees import CommitteeChain
from ..chain.ledger import Ledger
from ..wire.messages import Record
from .beacon_secrets import BeaconSecrets
from .effects import Effect, FeatureEffect
from .local_updates import Training
from .member_part import MemberPart, TipWork

# Part of a round's collect deadline for which aggregators wait for missing sign votes.
_SIGN_VOTES_SHARE = 0.5


@dataclass(frozen=True)
class MakeAggregate(FeatureEffect):
    """Compute the aggregate of one section of the model from the sign votes that the record before
    `round` names; report it as the update of `round` (`Trained`). `section` counts from 0, of
    `sections`."""

    round: int
    section: int
    sections: int
    sign_votes: Record
    update_weights: tuple[int, ...]
    """Weights of the record's sign votes in the sums, in the record's order."""
    agreed: tuple[ContentId, ...]
    """The section's aggregates that counted in the earlier steps of this epoch, after the last step in
    which none counted. The aggregator's state follows from them."""
    patience: float
    """Seconds to wait for sign votes that are not here yet."""


class AggregationPart(MemberPart):
    """Aggregates of one member. Without committees it orders nothing."""

    def __init__(self, me: PeerId, secrets: BeaconSecrets, training: Training) -> None:
        super().__init__(me, secrets, training)
        # The last round whose aggregate was ordered. It may be made while an update is ahead.
        self._ordered = -1

    def loaded(self) -> None:
        self._ordered = -1

    def work(self, at: TipWork, ledger: Ledger) -> list[Effect] | None:
        """Return the aggregate to make for the round at the tip, once the record of the round before is
        applied; empty unless this member is an aggregator there; None in a round of updates."""
        if not ledger.manifest.aggregates_in(at.round):
            return None
        tip, committee_chain = at.round, ledger.find(CommitteeChain)
        asked = at.announced or self._ordered == tip
        if committee_chain is None or asked or not self._training.owes(tip, tip, ledger):
            return []
        place, sign_votes = committee_chain.place(tip, self._me), ledger[tip - 1].record
        assert place is not None  # or nothing would be due
        self._ordered = tip
        weights_by_author = ledger.assignments.update_weights(sign_votes)
        update_weights = tuple(weights_by_author[entry.peer] for entry in sign_votes.updates)
        agreed = committee_chain.agreed(place[0])
        patience = _SIGN_VOTES_SHARE * at.collect_seconds
        return [MakeAggregate(tip, *place, sign_votes, update_weights, agreed, patience)]
