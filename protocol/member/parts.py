"""Parts of a member, and how they are wired together."""

from __future__ import annotations

from collections.abc import Callable

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..util.bounded_dict import BoundedTable
from ..wire.manifest import Manifest
from .aggregation import AggregationPart
from .auditor import Auditor
from .beacon_secrets import BeaconSecrets, Sign
from .join_request import AdmissionRequest
from .lag_detector import LagDetector
from .lease import FinalityLease
from .liveness import Liveness
from .local_updates import Training
from .member_part import MemberPart
from .message_store import MessageStore
from .proposal import Accusations, JoinRequests
from .replica import Replica
from .round import Round, RoundContext
from .solo_quorum_guard import SoloQuorumGuard
from .states import MemberState
from .timeouts import RoundTimeouts
from .update_collection import HeldUpdates
from .vote_recovery import VoteRecovery

# Number of own messages that are kept: enough for dozens of rounds. A member that returns to a chain
# after more rounds finds them decided.
_OWN_MESSAGES = 512


# What not every swarm has: each feature is registered here and nowhere else.
FEATURES: tuple[Callable[[PeerId, BeaconSecrets, Training], MemberPart], ...] = (
    Auditor,
    AggregationPart,
)


class MemberParts:
    """Parts of one node's membership in a swarm. All times are seconds of any steady clock."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        me: PeerId,
        sign: Sign,
        ledger: Ledger,
        now: float,
        ticket: bytes = b"",
        recall: bool = False,
    ) -> None:
        """Arguments as for `Member`."""
        self.me = me
        self.manifest = manifest
        self.sign = sign
        self.liveness = Liveness(me, now)
        self.timeouts = RoundTimeouts(manifest.rounds)
        self.joins = JoinRequests()
        self.accusations = Accusations()
        self.secrets = BeaconSecrets(me, sign)
        self.training = Training(me, overlap=manifest.rounds.overlap)
        self.features = tuple(feature(me, self.secrets, self.training) for feature in FEATURES)
        """What not every swarm has."""
        self.solo_guard = SoloQuorumGuard(now)
        self.context = RoundContext(
            manifest=manifest,
            me=me,
            ledger=ledger,
            liveness=self.liveness,
            timeouts=self.timeouts,
            joins=self.joins,
            accusations=self.accusations,
            secrets=self.secrets,
            features=self.features,
            solo_guard=self.solo_guard,
            began=now,
        )
        self.replica = Replica(me, manifest.rounds.snapshot_interval)
        self.lease = FinalityLease(manifest.rounds.finality_lease_seconds, now)
        self.admission = AdmissionRequest(ticket, now)
        self.lag_detector = LagDetector(now)
        self.messages = MessageStore()
        """The signed messages of the current round and of the few after it."""
        self.own_messages: BoundedTable[Envelope, None] = BoundedTable(_OWN_MESSAGES)
        """Own messages: the member may switch to another chain, and come back to this one."""
        self.vote_recovery = VoteRecovery(needed=recall)
        self.held_updates = HeldUpdates()
        self.leave_requested = False
        self.state: MemberState = "loading"
        self.last_ready: float | None = None
        """Time since which the previous round did not need to wait for more updates."""
        # -inf: no decision was observed yet. Until then, the others know better what is going on.
        self.last_decision = float("-inf")
        self.round = Round(self.context, now)
        """The round at the tip."""
        self.liveness.set_members(self.round.membership.peers, now)

    @property
    def ledger(self) -> Ledger:
        """The chain that the member follows."""
        return self.context.ledger

    def enter_round(self, now: float) -> None:
        """Begin the round at the tip of the ledger."""
        ledger = self.ledger
        self.liveness.set_members(ledger.membership(len(ledger)).peers, now)
        self.accusations.forget(ledger)
        for feature in self.features:
            feature.forget(ledger)
        self.round = Round(self.context, now)
