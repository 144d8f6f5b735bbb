"""Part of a member that orders aggregates from its trainer, in a swarm with committees."""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..chain.committees import CommitteeChain
from ..chain.ledger import Ledger
from .effects import Effect, MakeAggregate
from .local_updates import Training
from .member_part import MemberPart, TipWork

# Part of a round's collect deadline for which aggregators wait for missing sign votes.
_SIGN_VOTES_SHARE = 0.5


class AggregationPart(MemberPart):
    """Aggregates of one member. Without committees it orders nothing."""

    def __init__(self, me: PeerId, training: Training) -> None:
        self._me = me
        self._training = training
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
